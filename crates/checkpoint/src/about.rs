//! What a checkpoint is of: `shardwright.json` beside torch's `.metadata` or safetensors files. Our own
//! index says the same under its own keys. Keys we do not know are left alone, so that others may add some.

use crate::damaged;
use crate::files;
use crate::index::identity;
use diag::{Finding, Untrusted};
use recipe::{Mode, Recipe};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::Path;

/// The file's name.
pub const NAME: &str = "shardwright.json";

/// The version this code writes and reads.
pub const SCHEMA: &str = "shardwright/checkpoint/1";

/// Which recipe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Of {
    /// Its name.
    pub name: Untrusted,
    /// SHA-256 of its lines, each with a newline.
    pub sha256: String,
    /// Its text, less what may change between runs of one model; empty where only the hash was kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
}

/// What a checkpoint says of itself; what it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// [`SCHEMA`].
    #[serde(default)]
    pub schema: String,
    /// The model, as its mode runs it.
    #[serde(default)]
    pub recipe: Option<Of>,
    /// The runtime mode.
    #[serde(default)]
    pub mode: Option<String>,
    /// Features that were on.
    #[serde(default)]
    pub features: Option<Vec<String>>,
    /// The layout it was written under, as flags.
    #[serde(default)]
    pub layout: Option<String>,
    /// Ranks that wrote it.
    #[serde(default)]
    pub world: Option<u64>,
    /// Steps taken.
    #[serde(default)]
    pub step: Option<u64>,
    /// Sequences of the data that were used up.
    #[serde(default)]
    pub data_position: Option<u64>,
    /// Seed of the run.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Of every expert layer the bias by which its experts are chosen, where the recipe has `expert_bias`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expert_bias: Vec<Vec<f64>>,
}

/// SHA-256 of lines, in hex.
pub fn hash(lines: &[String]) -> String {
    let mut digest = Sha256::new();
    lines.iter().for_each(|line| {
        digest.update(line.as_bytes());
        digest.update(b"\n");
    });
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Of {
    /// A recipe as a checkpoint names it.
    pub fn new(recipe: &Recipe) -> Of {
        let lines = identity(recipe);
        Of { name: recipe.name.clone(), sha256: hash(&lines), lines }
    }

    /// The same from the lines an index holds.
    pub fn of_lines(lines: &[String]) -> Of {
        let name = lines.iter().find_map(|line| line.strip_prefix("name = ")).unwrap_or("?");
        Of { name: name.trim_matches('"').into(), sha256: hash(lines), lines: lines.to_vec() }
    }

    /// The recipe with sequences as long as its positions reach, at most 65536: no checkpoint fixes a length.
    pub fn recipe_of_any_length(&self) -> Result<Recipe, Vec<Finding>> {
        let longest = (1..=16).rev().find_map(|power| self.recipe(1 << power).ok());
        longest.map_or_else(|| self.recipe(1), Ok)
    }

    /// The recipe itself, with this length of sequences.
    pub fn recipe(&self, sequence: u64) -> Result<Recipe, Vec<Finding>> {
        let (first, rest) = self.lines.split_first().ok_or_else(|| {
            let message = format!("the checkpoint names recipe `{}` and does not hold its text", self.name.terminal());
            vec![damaged("checkpoint/recipe", NAME, message).hint("--of RECIPE says which recipe it is")]
        })?;
        Recipe::parse(&format!("{first}\nsequence = {sequence}\n{}\n", rest.join("\n")))
    }
}

/// Names of the features that are on.
pub fn features(recipe: &Recipe) -> Vec<String> {
    recipe.features.listed().into_iter().filter(|(_, on)| *on).map(|(f, _)| f.name().to_string()).collect()
}

impl About {
    /// What a run of this recipe and mode is called.
    pub fn new(recipe: &Recipe, mode: Option<Mode>) -> About {
        About {
            schema: SCHEMA.to_string(),
            recipe: Some(Of::new(recipe)),
            mode: mode.map(|m| m.name().to_string()),
            features: Some(features(recipe)),
            ..About::default()
        }
    }

    /// Reads it from a folder; nothing where there is none.
    pub fn read(folder: &Path) -> Result<About, Finding> {
        if folder.join(NAME).symlink_metadata().is_err() {
            return Ok(About::default());
        }
        let unreadable =
            |what: String| damaged("checkpoint/about", NAME, what).hint("docs/checkpoints.md says what it holds");
        let about: About = serde_json::from_slice(&files::read_small(folder, NAME)?)
            .map_err(|e| unreadable(format!("`{NAME}` cannot be read: {e}")))?;
        if about.schema != SCHEMA {
            let schema = about.schema.escape_debug();
            return Err(unreadable(format!("`{NAME}` has schema `{schema}`, and this version reads `{SCHEMA}`")));
        }
        match &about.recipe {
            Some(of) if !of.lines.is_empty() && hash(&of.lines) != of.sha256 => {
                Err(unreadable(format!("the recipe's text in `{NAME}` does not have the hash it states")))
            }
            _ => Ok(about),
        }
    }

    /// As written.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}
