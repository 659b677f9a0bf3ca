//! What is asked of checkpoints.

use super::work::WorkArgs;
use case::asked::{LayoutArgs, feature, pick};
use checkpoint::FileLayout;
use clap::{Args, Subcommand};
use recipe::Feature;
use std::path::PathBuf;

/// Arguments of `checkpoint`.
#[derive(Args)]
pub struct CheckpointArgs {
    /// What to do with it
    #[command(subcommand)]
    pub what: CheckpointCommand,
}

/// What can be done with a checkpoint.
#[derive(Subcommand)]
pub enum CheckpointCommand {
    /// What is in it: tensors, how they are cut, optimizer state, step, recipe and layout
    Inspect(InspectArgs),
    /// Is it whole? Every piece present, every element once, every checksum; and is it of this recipe?
    Verify(VerifyArgs),
    /// Write it again for another layout or in another format, into a new folder
    Reshard(ReshardArgs),
}

/// Arguments of `checkpoint inspect`.
#[derive(Args)]
pub struct InspectArgs {
    /// A checkpoint's folder (our own, torch DCP, safetensors), or a .safetensors file
    pub path: PathBuf,
    /// List every tensor
    #[arg(long)]
    pub all: bool,
    /// Print the recipe it was saved from, as TOML
    #[arg(long)]
    pub recipe: bool,
}

/// Arguments of `checkpoint verify`.
#[derive(Args)]
pub struct VerifyArgs {
    /// A checkpoint's folder (our own, torch DCP, safetensors), or a .safetensors file
    pub path: PathBuf,
    /// The recipe it must be of: built-in name, recipe .toml, or config.json
    #[arg(long, value_name = "RECIPE")]
    pub against: Option<String>,
    #[command(flatten)]
    pub switched: Switched,
    #[command(flatten)]
    pub layout: LayoutArgs,
}

/// Arguments of `checkpoint reshard`.
#[derive(Args)]
pub struct ReshardArgs {
    /// A checkpoint's folder (our own, torch DCP, safetensors), or a .safetensors file
    pub path: PathBuf,
    /// The new folder; what is there already is refused
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// The format to write: shardwright, dcp or safetensors (default: the source's)
    #[arg(long, value_parser = format)]
    pub format: Option<FileLayout>,
    /// The recipe it is of (default: the one the checkpoint says); without any, --world alone cuts
    /// tensors along their first dimension
    #[arg(long, value_name = "RECIPE")]
    pub of: Option<String>,
    #[command(flatten)]
    pub switched: Switched,
    #[command(flatten)]
    pub layout: LayoutArgs,
    #[command(flatten)]
    pub work: WorkArgs,
}

/// Features of a recipe that is not the first argument.
#[derive(Args, Default)]
pub struct Switched {
    /// Switch features on: mla, dsa, mtp, mhc, mod, engram, ngram_hash, structure, adapters
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature)]
    pub with: Vec<Feature>,
    /// Switch features off; `moe` turns E blocks into MLPs where the recipe has them (`moe=attention`: attention)
    #[arg(long, value_name = "FEATURE", value_delimiter = ',', value_parser = feature)]
    pub without: Vec<Feature>,
}

fn format(text: &str) -> Result<FileLayout, String> {
    pick(text, FileLayout::ALL)
}
