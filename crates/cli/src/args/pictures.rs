//! Pictures of an answer.

use clap::Args;
use std::path::PathBuf;

/// An answer as a picture.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Pictures")]
pub struct PictureArgs {
    /// Write the picture as SVG
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
