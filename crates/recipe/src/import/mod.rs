//! Recipes from what other tools write: a Hugging Face `config.json`, a Megatron argument list.
//! What an importer does not know is refused by name; nothing is guessed.

pub mod hf;
pub mod megatron_args;
