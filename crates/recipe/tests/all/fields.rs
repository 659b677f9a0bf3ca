//! Fields that define a model beyond its shapes: read, written back, and refused where they contradict
//! each other.

use recipe::{Positions, Recipe, Scaling, builtin};

/// A recipe with every field of every table set to something that is not its default.
pub const EVERYTHING: &str = include_str!("everything.toml");

fn rules(text: &str) -> Vec<&'static str> {
    Recipe::parse(text).expect_err("refused").iter().map(|f| f.rule).collect()
}

/// The text with one line changed.
fn changed(line: &str, to: &str) -> String {
    assert!(EVERYTHING.contains(line), "{line}");
    EVERYTHING.replacen(line, to, 1)
}

#[test]
fn every_field_is_read_and_written_back() {
    let recipe = Recipe::parse(EVERYTHING).expect("a recipe");
    let again = Recipe::parse(&recipe.to_toml()).expect("what was written");
    assert_eq!(recipe.to_toml(), again.to_toml());
    assert_eq!(Recipe { notes: Vec::new(), ..recipe.clone() }, Recipe { notes: Vec::new(), ..again });
    assert_eq!(recipe.not_carried, [("swiglu_limit".to_string(), "7.0".to_string())]);
    assert_eq!(recipe.multipliers.set().len(), 11);
    let Positions::Rope(rope) = recipe.positions else { panic!("{:?}", recipe.positions) };
    assert!(rope.width(16) == 8 && matches!(rope.scaling, Some(Scaling::Yarn(yarn)) if yarn.amplitude() == 1.5));
}

#[test]
fn scalings_of_each_kind_are_read_and_written() {
    for table in [
        "kind = \"linear\"\nfactor = 4.0\n",
        "kind = \"llama3\"\nfactor = 8.0\nlow = 1.0\nhigh = 4.0\noriginal = 8192\n",
        "kind = \"yarn\"\nfactor = 40.0\noriginal = 4096\n",
    ] {
        let text = format!("{}\n[rope.scaling]\n{table}", builtin::find("llama3-8b").expect("built in").to_toml());
        let recipe = Recipe::parse(&text).expect(table);
        assert!(recipe.to_toml().contains(table), "{}", recipe.to_toml());
    }
}

#[test]
fn fields_that_contradict_each_other_are_refused() {
    for (line, to, rule) in [
        ("fraction = 0.5", "fraction = 1.5", "rope/fraction"),
        ("fraction = 0.5", "fraction = 0.1", "rope/fraction"),
        ("kind = \"yarn\"", "kind = \"dynamic\"", "recipe/choice"),
        ("groups = 4\n", "groups = 3\n", "moe/groups"),
        ("group_top_k = 2", "group_top_k = 5", "moe/groups"),
        ("group_top_k = 2", "group_top_k = 1", "moe/groups"),
        ("capacity_factor = 1.25", "capacity_factor = 1e12", "moe/capacity"),
        ("factor = 40.0", "factor = 1e17", "rope/scaling"),
        ("expert_bias = true\n", "", "recipe/unused-key"),
        ("aux_loss = 0.001\n", "", "recipe/unused-key"),
        ("dropout = 0.1\n", "dropout = 1.0\n", "recipe/limit"),
        ("mlp = [0.5, 0.3]", "mlp = [0.5]", "recipe/limit"),
        ("rope_theta = 500000.0", "positions = \"none\"", "recipe/unused-key"),
        ("norm_eps = 1e-6", "norm_eps = 0", "recipe/type"),
    ] {
        let found = rules(&changed(line, to));
        assert!(found.contains(&rule), "{line} -> {to}: {found:?}");
    }
    let llama3 = "[rope.scaling]\nkind = \"llama3\"\nfactor = 8.0\nlow = 4.0\nhigh = 1.0\noriginal = 8192\n";
    let text = format!("{}\n{llama3}", builtin::find("llama3-8b").expect("built in").to_toml());
    assert_eq!(rules(&text), ["rope/scaling"]);
}

/// Figures of published config.json files that our own recipes must have.
#[test]
fn built_in_recipes_have_the_published_figures() {
    let recipe = |name| builtin::find(name).expect("built in");
    let v3 = recipe("deepseek-v3");
    let router = v3.moe.as_ref().expect("experts").router.clone();
    assert_eq!((router.scaling, router.groups, router.group_top_k), (2.5, 8, 4));
    assert_eq!(v3.norm_eps, 1e-6);
    assert!(!recipe("deepseek-v2-lite").moe.expect("experts").router.normalize);
    assert_eq!(recipe("nemotron-3-nano-30b-a3b").moe.expect("experts").router.scaling, 2.5);
    assert_eq!((recipe("qwen3-30b-a3b").norm_eps, recipe("llama3-8b").norm_eps), (1e-6, 1e-5));
}
