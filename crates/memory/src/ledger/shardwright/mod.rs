//! This project's own runtime: what a rank holds follows from the ownership table, the optimizer's
//! policy and what every block declares to keep. Nothing is fitted; a run is held to it.

mod chunk;
mod engine;
mod local;
mod phase;
mod replay;
mod saves;
mod state;

pub use chunk::{mixers, of_chunk};
pub use engine::{ShardwrightOptions, replay};
pub use phase::{InPhase, Phase, phases};
pub use saves::{
    DELTA_CHUNK, Holds, M2RNN_CHUNK, Rows, Save, Sizes, bytes, head, norm_input, of_mixer, prediction, routing_indices,
};
pub use state::{Held, held};
