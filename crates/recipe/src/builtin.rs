//! Recipes compiled in, each with the source of its figures.

use crate::recipe::Recipe;
use diag::{Blame, Finding, did_you_mean};

macro_rules! recipes {
    ($($name:literal),+ $(,)?) => {
        &[$(($name, include_str!(concat!("../../../data/recipes/", $name, ".toml"))),)+]
    };
}

/// Name and text of every built-in recipe.
pub const RECIPES: &[(&str, &str)] = recipes![
    "nam56r",
    "nam56r-mini",
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "deepseek-v2-lite",
    "deepseek-v3",
    "nemotron-h-8b",
    "nemotron-3-nano-30b-a3b",
    "gpt3-175b",
    "turing-530b",
];

/// The built-in recipe of this name.
pub fn find(name: &str) -> Result<Recipe, Vec<Finding>> {
    match RECIPES.iter().find(|(known, _)| *known == name) {
        Some((_, text)) => Recipe::parse(text),
        None => {
            let message = format!("there is no built-in recipe `{name}`, and no such file");
            let hint = match did_you_mean(name, RECIPES.iter().map(|(known, _)| *known)) {
                Some(known) => format!("did you mean `{known}`? `shardwright recipes` lists them all"),
                None => "`shardwright recipes` lists the built-in ones; a path reads your own".to_string(),
            };
            Err(vec![Finding::error("recipe/unknown", Blame::Usage, name, message).hint(hint)])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_recipe_is_valid_and_sourced() {
        for (name, text) in RECIPES {
            let recipe = Recipe::parse(text).unwrap_or_else(|f| panic!("{name}: {f:#?}"));
            assert_eq!(recipe.name, *name);
            assert!(!recipe.source.is_empty(), "{name} names no source");
        }
    }

    #[test]
    fn writing_reads_back_to_the_same_recipe() {
        for (name, text) in RECIPES {
            let recipe = Recipe::parse(text).unwrap();
            let again =
                Recipe::parse(&recipe.to_toml()).unwrap_or_else(|f| panic!("{name}: {f:#?}\n{}", recipe.to_toml()));
            assert_eq!(again, recipe, "{name}");
        }
    }
}
