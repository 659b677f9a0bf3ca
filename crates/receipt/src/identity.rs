//! Who a run is, of its model's side: hashes of the recipe and of its parts. `docs/receipts.md` lists what enters each.

use crate::canonical::{canonical, sha256};
use crate::record::Identity;
use recipe::Recipe;
use serde_json::{Map, Value, json};

/// Keys of a recipe that are no size: what it is called, and what other parts of an identity hold.
const APART: [&str; 6] = ["name", "source", "pattern", "depth", "modes", "features"];

impl Identity {
    /// What a recipe says; the rest of an identity is the run's.
    pub fn of_recipe(recipe: &Recipe) -> Identity {
        let text = recipe.to_toml();
        // What `to_toml` writes is TOML, which a property test of `recipe` holds.
        let all: Map<String, Value> = toml::from_str(&text).unwrap_or_default();
        let on: Vec<&str> = recipe.bundle().iter().filter(|(_, on)| *on).map(|(feature, _)| feature.name()).collect();
        let tables = all.get("features").and_then(Value::as_object);
        let table = |name: &str| tables.and_then(|all| all.get(name)).cloned().unwrap_or_default();
        let bundle: Map<String, Value> = on.iter().map(|name| (name.to_string(), table(name))).collect();
        let shape: Map<String, Value> = all.into_iter().filter(|(key, _)| !APART.contains(&key.as_str())).collect();
        Identity {
            recipe: recipe.name.raw().to_string(),
            recipe_sha256: sha256(&text),
            shape_sha256: sha256(canonical(&json!(shape))),
            pattern: recipe.layers.iter().map(ToString::to_string).collect(),
            features: on.iter().map(ToString::to_string).collect(),
            features_sha256: sha256(canonical(&json!(bundle))),
            ..Identity::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recipe::builtin;

    fn changed(from: &str, to: &str) -> Identity {
        let text = builtin::find("nam56r").unwrap().to_toml();
        assert_eq!(text.matches(from).count(), 1, "{from}");
        Identity::of_recipe(&Recipe::parse(&text.replace(from, to)).unwrap())
    }

    /// One thing changed shows in the hash it belongs to, and in no other part.
    #[test]
    fn each_part_has_its_own_hash() {
        let of = |recipe: &Recipe| Identity::of_recipe(recipe);
        let plain = of(&builtin::find("nam56r").unwrap());
        assert_eq!((plain.pattern.len(), plain.features.join(" ").as_str()), (52, "moe"));
        let renamed = changed("name = \"nam56r\"", "name = \"other\"");
        assert_ne!(renamed.recipe_sha256, plain.recipe_sha256);
        let parts = |id: &Identity| [id.shape_sha256.clone(), id.pattern.clone(), id.features_sha256.clone()];
        assert_eq!(parts(&renamed), parts(&plain));
        let differing = |id: &Identity| -> Vec<usize> {
            parts(id).iter().zip(&parts(&plain)).enumerate().filter(|(_, (a, b))| a != b).map(|(at, _)| at).collect()
        };
        assert_eq!(differing(&changed("hidden = 3584", "hidden = 1792")), [0]);
        assert_eq!(differing(&changed("depth = 52", "depth = 48")), [1]);
        assert_eq!(differing(&changed("pattern = \"AEMEAEMEAEMR\"", "pattern = \"AEMEAEMEAEMM\"")), [1]);
        let with = builtin::find("nam56r").unwrap().with_features(&[recipe::Feature::Mla], &[]).unwrap();
        assert_eq!(differing(&of(&with)), [2]);
        // A feature that is off does not run, whatever its values.
        assert_eq!(differing(&changed("rope_dim = 64", "rope_dim = 32")), [] as [usize; 0]);
    }
}
