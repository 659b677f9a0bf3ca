//! Every imported config counts exactly as transformers builds it. Rows: `data/truth/README.md`.

use recipe::{Recipe, import::hf};
use std::fmt::Write;

/// What a file's rows came to: how many agreed, what differs, what was refused.
struct Walked {
    agreed: usize,
    differs: String,
    refused: Vec<String>,
}

/// Imports every row of a file.
fn walk(file: &str) -> Walked {
    let path = format!("{}/../../data/truth/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let mut walked = Walked { agreed: 0, differs: String::new(), refused: Vec::new() };
    for (number, line) in text.lines().enumerate() {
        let row: serde_json::Value = serde_json::from_str(&line.replace("Infinity", "null")).unwrap();
        let model_type = row["model_type"].as_str().unwrap();
        match import(row["config"].clone(), model_type) {
            Err(findings) => {
                walked.refused.push(format!("{model_type}: {}", findings[0].message));
            }
            Ok(recipe) => {
                let total = recipe.counts().all.total;
                if Some(total) != row["params"].as_u64() {
                    let _ =
                        writeln!(walked.differs, "{file}:{} {model_type}: {total}, not {}", number + 1, row["params"]);
                    continue;
                }
                let again = Recipe::parse(&recipe.to_toml()).unwrap_or_else(|f| panic!("{model_type}: {f:#?}"));
                assert_eq!(again, recipe, "{file}:{} does not read back", number + 1);
                walked.agreed += 1;
            }
        }
    }
    walked
}

/// A config as a recipe. Some small rows keep the class default of eight groups, in which their experts do
/// not stand; a count does not depend on groups, so they are taken out.
fn import(mut config: serde_json::Value, model_type: &str) -> Result<Recipe, Vec<diag::Finding>> {
    let read = |config: &serde_json::Value| hf::import(&config.to_string(), &hf::Asked::named(model_type));
    let first = read(&config);
    let has_groups = first.as_ref().is_err_and(|findings| findings[0].rule == "moe/groups");
    if has_groups {
        (config["n_group"], config["topk_group"]) = (1.into(), 1.into());
    }
    if has_groups { read(&config) } else { first }.map(|imported| imported.recipe)
}

#[test]
fn the_eighteen_families_count_exactly() {
    let walked = walk("hf_counts.jsonl");
    assert_eq!(walked.differs, "");
    // The class default, which transformers builds and no model can run.
    assert_eq!(walked.refused, ["glm4_moe: 0.5 of a head of 42 are 21 columns, and they turn in pairs"]);
    assert_eq!(walked.agreed, 17);
}

#[test]
fn other_sizes_and_every_switch_count_exactly() {
    let walked = walk("hf_matrix.jsonl");
    assert_eq!(walked.differs, "");
    // Configs that transformers builds and that no model can run; each is refused by name.
    assert_eq!(
        walked.refused,
        [
            "qwen3_next: a gate over a shared expert of no width has no recipe",
            "qwen3_next: layer kinds are `linear_attention` and `full_attention`",
            "deepseek_v2: a shared expert of no width with a bias has no recipe",
            "glm4_moe: 0.5 of a head of 42 are 21 columns, and they turn in pairs",
            "olmoe: OLMoE norms queries over hidden 64, and 4 heads are not as wide",
            "olmoe: OLMoE norms queries over hidden 66, and 4 heads are not as wide",
        ]
    );
    assert_eq!(walked.agreed, 339);
}
