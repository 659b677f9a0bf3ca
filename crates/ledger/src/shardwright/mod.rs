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
    DELTA_CHUNK, Holds, Link, MAMBA1_CHUNK, Rows, Save, Sizes, bytes, carried, dropped, head, m2rnn_chunk, norm_input,
    of_mixer, prediction, routing_indices,
};
pub use state::{Held, held};
