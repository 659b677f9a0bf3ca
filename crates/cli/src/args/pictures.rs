//! Pictures of an answer.

use clap::Args;
use std::path::{Path, PathBuf};

/// An answer as a picture.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Pictures")]
pub struct PictureArgs {
    /// Write the picture as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the picture as PNG
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,
}

impl PictureArgs {
    /// Flags that are given, each with its file.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        [("--svg", &self.svg), ("--png", &self.png)]
            .into_iter()
            .filter_map(|(flag, path)| Some((flag, path.as_deref()?)))
    }
}
