//! Ways to train that a library brings beside an engine: how weights are kept when they are frozen, what steps those
//! that are not, and what is followed besides. The emitted FSDP2 program has all of them (`launch/assets/fsdp2`,
//! `stepped.py`, `quantised.py`, `lora.py`); other engines have none.

use recipe::Recipe;
use units::named;

named! {
    /// What steps every element that no matrix optimizer does.
    pub enum ElementStep {
        /// torch's fused AdamW.
        AdamW = "adamw",
        /// bitsandbytes' AdamW with moments of 8 bits, in blocks of 256.
        AdamW8bit = "adamw8bit",
        /// bitsandbytes' AdamW with fp32 moments in unified memory, which the driver moves as there is room.
        PagedAdamW = "paged-adamw",
        /// The same with moments of 8 bits.
        PagedAdamW8bit = "paged-adamw8bit",
        /// bitsandbytes' Lion: one momentum in fp32.
        Lion = "lion",
        /// The same with a momentum of 8 bits.
        Lion8bit = "lion8bit",
        /// torch's Adafactor: a row and a column of second moments.
        Adafactor = "adafactor",
        /// torch's fused SGD with momentum.
        Sgd = "sgd",
        /// pytorch_optimizer's SOAP: AdamW in the eigenbases of Shampoo's preconditioners.
        Soap = "soap",
        /// pytorch_optimizer's ScalableShampoo: directions turned by roots of statistics, in blocks, with RMSProp's length.
        Shampoo = "shampoo",
        /// torchao's AdamW with moments of 8 bits, in blocks of 256.
        AoAdamW8bit = "ao-adamw8bit",
        /// The same with moments of 4 bits, in blocks of 128.
        AoAdamW4bit = "ao-adamw4bit",
        /// The same with moments in fp8, in blocks of 256.
        AoAdamWFp8 = "ao-adamwfp8",
    }
}

/// Elements below which bitsandbytes keeps state in fp32 (`min_8bit_size`), and torchao in the weights' format
/// (`_new_buffer`).
pub const LEAST_8BIT: u64 = 4096;
/// Elements of a shard from which its state is paged (`get_state_buffer`).
pub const LEAST_PAGED: u64 = 100_000;
/// Rows or columns beyond which SOAP has no preconditioner of that side (`max_precondition_dim`), and steps between two
/// refreshes of its eigenbases (`precondition_frequency`): pytorch_optimizer's defaults, and the authors'.
pub const MOST_PRECONDITIONED: u64 = 10_000;
/// See [`MOST_PRECONDITIONED`].
pub const REFRESH_EVERY: u64 = 10;
/// Rows or columns beyond which Shampoo turns nothing of a matrix (`no_preconditioning_for_layers_with_dim_gt`), and the
/// sides of its blocks (`block_size`): pytorch_optimizer's defaults.
pub const SHAMPOO_MOST: u64 = 8192;
/// See [`SHAMPOO_MOST`].
pub const SHAMPOO_BLOCK: u64 = 512;
/// Steps between two roots of Shampoo's statistics (`launch/assets/fsdp2/shampoo.py`), set by us: the library's 1000 leave
/// shorter runs without any.
pub const ROOTS_EVERY: u64 = 100;
/// Elements of 8-bit state, and of Muon's int8 momentum, under one fp32 scale.
pub const BLOCK: u64 = 256;

/// Whole blocks of Shampoo along a side, and what is left of it.
pub fn blocks_of(side: u64) -> (u64, u64) {
    (side / SHAMPOO_BLOCK, side % SHAMPOO_BLOCK)
}

impl ElementStep {
    /// Whether it keeps preconditioners of whole matrices.
    pub fn preconditions(self) -> bool {
        matches!(self, ElementStep::Soap | ElementStep::Shampoo)
    }

    /// What people call it.
    pub fn title(self) -> &'static str {
        match self {
            ElementStep::AdamW => "AdamW",
            ElementStep::AdamW8bit => "AdamW in 8 bits",
            ElementStep::PagedAdamW => "paged AdamW",
            ElementStep::PagedAdamW8bit => "paged AdamW in 8 bits",
            ElementStep::Lion => "Lion",
            ElementStep::Lion8bit => "Lion in 8 bits",
            ElementStep::Adafactor => "Adafactor",
            ElementStep::Sgd => "SGD",
            ElementStep::Soap => "SOAP",
            ElementStep::Shampoo => "Shampoo",
            ElementStep::AoAdamW8bit => "torchao's AdamW in 8 bits",
            ElementStep::AoAdamW4bit => "torchao's AdamW in 4 bits",
            ElementStep::AoAdamWFp8 => "torchao's AdamW in fp8",
        }
    }

    /// torchao's: elements under one fp32 scale, and the bits of each.
    pub fn of_torchao(self) -> Option<(u64, u64)> {
        match self {
            ElementStep::AoAdamW8bit | ElementStep::AoAdamWFp8 => Some((256, 8)),
            ElementStep::AoAdamW4bit => Some((128, 4)),
            _ => None,
        }
    }

    /// Bytes of state an element has at least, of a parameter large enough for 8 bits, with state of `main` bytes
    /// where it follows the weights' format.
    pub fn state_bytes(self, main: u64) -> u64 {
        match self {
            ElementStep::AdamW => 2 * main,
            ElementStep::AdamW8bit | ElementStep::AoAdamW8bit | ElementStep::AoAdamWFp8 => 2,
            ElementStep::AoAdamW4bit => 1,
            // Unified memory is the host's.
            ElementStep::PagedAdamW | ElementStep::PagedAdamW8bit => 0,
            ElementStep::Lion => 4,
            ElementStep::Lion8bit => 1,
            ElementStep::Adafactor => 0,
            ElementStep::Sgd => main,
            ElementStep::Soap => 8,
            ElementStep::Shampoo => 12,
        }
    }

    /// Bytes of state an element has in unified memory, of a parameter large enough for it ([`LEAST_PAGED`]).
    pub fn paged_bytes(self) -> u64 {
        match self {
            ElementStep::PagedAdamW => 8,
            ElementStep::PagedAdamW8bit => 2,
            _ => 0,
        }
    }

    /// Bytes that a checkpoint of the emitted program holds of an element's state, at least: what is quantised is saved
    /// in fp32.
    pub fn saved_bytes(self, main: u64) -> u64 {
        match self {
            ElementStep::AdamW8bit | ElementStep::PagedAdamW8bit => 8,
            ElementStep::AoAdamW8bit | ElementStep::AoAdamW4bit | ElementStep::AoAdamWFp8 => 8,
            ElementStep::Lion8bit => 4,
            _ => self.state_bytes(main) + self.paged_bytes(),
        }
    }
}

named! {
    /// The format of frozen projections under adapters.
    pub enum BaseFormat {
        /// As everything else is kept.
        Main = "main",
        /// bitsandbytes' nf4: half a byte an element, an fp32 scale for 64.
        Nf4 = "nf4",
        /// The same with its scales quantised: one byte each, an fp32 scale for 256 of them.
        Nf4Double = "nf4-double",
    }
}

/// Weights that share a scale in nf4.
pub const NF4_BLOCK: u64 = 64;

impl BaseFormat {
    /// Whether projections are quantised.
    pub fn is_quantised(self) -> bool {
        self != BaseFormat::Main
    }
}

named! {
    /// Whose layers multiply adapters.
    pub enum AdapterLayers {
        /// The emitted program's own: factors cast to bf16.
        Ours = "ours",
        /// peft's: inputs cast to the factors' fp32.
        Peft = "peft",
    }
}

named! {
    /// The format Muon's momentum is kept in.
    pub enum MomentumFormat {
        /// As it is stepped.
        Fp32 = "fp32",
        /// One byte an element, an fp32 scale for 256.
        Int8 = "int8",
    }
}

/// How a job trains beside what its recipe and engine say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    /// What steps elements.
    pub elements: ElementStep,
    /// How frozen projections are kept.
    pub base: BaseFormat,
    /// Whose adapter layers run.
    pub adapters: AdapterLayers,
    /// Whether an average of the trained weights is kept, in fp32.
    pub average: bool,
    /// How Muon's momentum is kept.
    pub momentum: MomentumFormat,
    /// The built-in recipe of a frozen model whose answers are learned instead of the data's.
    pub teacher: Option<&'static str>,
}

impl Ways {
    /// The teacher's recipe.
    pub fn teacher(&self) -> Option<Recipe> {
        self.teacher.and_then(|name| recipe::builtin::find(name).ok())
    }

    /// What every engine does.
    pub const PLAIN: Ways = Ways {
        elements: ElementStep::AdamW,
        base: BaseFormat::Main,
        adapters: AdapterLayers::Ours,
        average: false,
        momentum: MomentumFormat::Fp32,
        teacher: None,
    };
}
