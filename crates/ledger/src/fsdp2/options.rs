//! What FSDP2 is told besides recipe and layout.

use super::plain::Blocks;
use super::reference::missing;
use case::options::CrossEntropy;
use case::{Documents, Ways};
use layout::{Layout, ZeroStage};
use recipe::{Dtype, Recipe};
use replay::tape::Microbatches;

/// Which groups give their gathered weights back between forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reshard {
    /// Layers but the last.
    pub layers: bool,
    /// The last layer, which backward needs first.
    pub last_layer: bool,
    /// Edges: token table, final norm and head. `fully_shard` keeps them unless it is told.
    pub edges: bool,
}

impl Reshard {
    /// What `fully_shard` does when it is not told (ZeRO 3).
    pub const DEFAULT: Reshard = Reshard { layers: true, last_layer: true, edges: false };
    /// `reshard_after_forward=False` everywhere (ZeRO 2).
    pub const NEVER: Reshard = Reshard { layers: false, last_layer: false, edges: false };
}

/// How the edges are wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edges {
    /// Token table, final norm and head belong to the group of the whole model.
    InRoot,
    /// The token table is a group, final norm and head are another, as torchtitan does. A tied
    /// head stays in the root.
    Apart,
}

/// How many groups are gathered ahead of the one that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetch {
    /// In forward, by `set_modules_to_forward_prefetch`. Without it the next gather still overlaps,
    /// because the host runs ahead of the device, but in memory freed by the one before.
    pub forward: usize,
    /// In backward.
    pub backward: usize,
}

impl Prefetch {
    /// One group ahead in backward.
    pub const DEFAULT: Prefetch = Prefetch { forward: 0, backward: 1 };
}

/// What FSDP2 is told besides recipe and layout; checkpointing is the layout's.
#[derive(Clone, Debug, PartialEq)]
pub struct Fsdp2Options {
    /// Whose blocks run.
    pub blocks: Blocks,
    /// Format weights are gathered and computed in.
    pub param_dtype: Dtype,
    /// Format gradients are reduced in.
    pub reduce_dtype: Dtype,
    /// Which groups give their gathered weights back between forward and backward.
    pub reshard: Reshard,
    /// How the edges are wrapped.
    pub edges: Edges,
    /// How many groups are gathered ahead.
    pub prefetch: Prefetch,
    /// Whether each layer is compiled.
    pub compile: bool,
    /// Whether the loss is compiled too, as a function of its own.
    pub compile_loss: bool,
    /// Which of a step's microbatches are walked; the figures are the same.
    pub microbatches: Microbatches,
    /// Steps to replay; the second sees the optimizer's moments, later ones fragmentation.
    pub steps: u32,
    /// How weights are kept, stepped and followed.
    pub ways: Ways,
    /// Whose loss it is: eager, or one that multiplies the head.
    pub loss: CrossEntropy,
    /// Documents that a sequence is packed of.
    pub documents: Option<Documents>,
    /// Format of the weights that are stepped, and of AdamW's moments.
    pub main: Dtype,
}

impl Fsdp2Options {
    /// torchtitan's mixed precision, and a layout's ZeRO stage.
    pub fn of(layout: &Layout) -> Fsdp2Options {
        Fsdp2Options {
            blocks: Blocks::Common,
            param_dtype: Dtype::Bf16,
            reduce_dtype: Dtype::Fp32,
            reshard: if layout.zero == ZeroStage::Three { Reshard::DEFAULT } else { Reshard::NEVER },
            edges: Edges::InRoot,
            prefetch: Prefetch::DEFAULT,
            compile: false,
            compile_loss: false,
            microbatches: Microbatches::Steady,
            steps: 3,
            ways: Ways::PLAIN,
            loss: CrossEntropy::Eager,
            documents: None,
            main: Dtype::Fp32,
        }
    }

    /// The emitted program's where it has every block of the recipe, else those of a model of one's own.
    pub fn of_recipe(recipe: &Recipe, layout: &Layout) -> Fsdp2Options {
        if missing(recipe).is_empty() { Fsdp2Options::emitted(layout) } else { Fsdp2Options::of(layout) }
    }

    /// What the program that `shardwright launch --engine fsdp2` writes asks for: token table and
    /// head wrapped by themselves, and every group resharded or none
    /// (`crates/launch/assets/fsdp2/parallelize.py` apply_fsdp).
    pub fn emitted(layout: &Layout) -> Fsdp2Options {
        let gives_back = layout.zero == ZeroStage::Three;
        let reshard = Reshard { layers: gives_back, last_layer: gives_back, edges: gives_back };
        Fsdp2Options { blocks: Blocks::Emitted, reshard, edges: Edges::Apart, ..Fsdp2Options::of(layout) }
    }
}
