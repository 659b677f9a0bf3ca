//! Recipes compiled in, each with the source of its figures.

use crate::recipe::Recipe;
use diag::{Blame, Finding, did_you_mean_name};

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
            let hint = match did_you_mean_name(name, RECIPES.iter().map(|(known, _)| *known)) {
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
            assert!(recipe.source != "", "{name} names no source");
        }
    }

    #[test]
    fn no_two_tensors_share_a_path() {
        for (name, text) in RECIPES {
            let recipe = Recipe::parse(text).unwrap();
            let on: Vec<_> = recipe.features.listed().into_iter().map(|(feature, _)| feature).collect();
            let tensors = recipe.with_features(&on, &[]).unwrap().tensors();
            let paths: std::collections::HashSet<_> = tensors.iter().map(|t| t.path.as_str()).collect();
            assert_eq!(paths.len(), tensors.len(), "{name}");
        }
    }

    #[test]
    fn published_counts_come_out() {
        let total = |name| find(name).unwrap().counts().all;
        assert_eq!(total("llama3-8b").total, 8_030_261_248);
        assert_eq!(total("llama3-70b").total, 70_553_706_496);
        assert_eq!(total("llama3-405b").total, 405_853_388_800);
        assert_eq!(total("mixtral-8x7b").total, 46_702_792_704);
        assert_eq!(total("qwen3-30b-a3b").total, 30_532_122_624);
        assert_eq!(total("qwen3-235b-a22b").total, 235_093_634_560);
        assert_eq!(total("deepseek-v2-lite").total, 15_706_484_224);
        assert_eq!(total("deepseek-v3").total, 671_026_404_352);
        assert_eq!(total("deepseek-v3").active, 37_552_282_624);
        assert_eq!(total("nemotron-h-8b").total, 8_100_852_736);
        // The published 31,577,940,288 counts the balancing bias, a buffer, as well.
        assert_eq!(total("nemotron-3-nano-30b-a3b").total, 31_577_937_344);
        assert_eq!(total("gpt3-175b").total, 174_615_846_912);
        assert_eq!(total("turing-530b").total, 529_600_819_200);
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
