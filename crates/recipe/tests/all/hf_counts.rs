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
        let config = row["config"].to_string();
        match hf::import(&config, model_type) {
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

#[test]
fn the_eighteen_families_count_exactly() {
    let walked = walk("hf_counts.jsonl");
    assert_eq!(walked.differs, "");
    assert_eq!(walked.refused, [""; 0]);
    assert_eq!(walked.agreed, 18);
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
            "olmoe: OLMoE norms queries over hidden 64, and 4 heads are not as wide",
            "olmoe: OLMoE norms queries over hidden 66, and 4 heads are not as wide",
        ]
    );
    assert_eq!(walked.agreed, 340);
}
