//! Gradients of every kind of block against finite differences, through a whole small model.

use super::*;
use layout::{LayoutRequest, check};

const BASE: &str = r#"
source = "test"
hidden = 8
vocab = 11
sequence = 8
rope_theta = 100.0
"#;

/// The largest error of any parameter's gradient, relative to the largest gradient.
fn error(pattern: &str, tables: &str) -> f64 {
    let text = format!("name = \"t\"\npattern = \"{pattern}\"\n{BASE}{tables}");
    let recipe = Recipe::parse(&text).unwrap_or_else(|f| panic!("{f:#?}"));
    let request = LayoutRequest { world: Some(1), micro_batch: Some(2), ..LayoutRequest::default() };
    let checked = check(&recipe, &request);
    let layout = checked.layout.as_ref().unwrap();
    let comm = comm::threads::alone();
    let mut trainer = Trainer::<f64>::new(&recipe, layout, &comm, 3, Settings::default()).unwrap();
    let batch = Batch::synthetic(&recipe, layout, 1, 0);
    let (_, grads) = trainer.gradients(&batch).unwrap();
    // What an indexer reads is a constant to its loss, which it alone learns from.
    let loss = |trainer: &mut Trainer<f64>, path: &str| {
        let report = trainer.accumulate(&batch).unwrap();
        match (recipe.features.dsa().is_some(), path.contains(".indexer.")) {
            (false, _) => report.loss + report.auxiliary,
            (true, false) => report.loss,
            (true, true) => report.auxiliary,
        }
    };
    let most = grads.iter().flat_map(|g| &g.data).fold(0.0f64, |a, b| a.max(b.abs()));
    let mut worst = 0.0f64;
    for (id, grad) in grads.iter().enumerate() {
        let len = grad.data.len();
        let path = trainer.shelf.params[id].row.tensor.path.clone();
        let mut largest = 0.0f64;
        for pick in 0..5 {
            let at = hash(17, (id * 5 + pick) as u64) as usize % len;
            let (h, old) = (1e-5, trainer.weights[id].data[at]);
            trainer.weights[id].data[at] = old + h;
            let up = loss(&mut trainer, &path);
            trainer.weights[id].data[at] = old - h;
            let down = loss(&mut trainer, &path);
            trainer.weights[id].data[at] = old;
            largest = largest.max((grad.data[at] - (up - down) / (2.0 * h)).abs());
        }
        assert!(largest < 1e-7 * most.max(1e-2), "{pattern}: {path} is off by {largest:e} of {most:e}");
        worst = worst.max(largest / most);
    }
    worst
}

#[test]
fn dense_blocks_have_true_gradients() {
    error("F", "[mlp]\nffn = 12\nactivation = \"relu2\"\nbias = true\n");
    error("F", "norm = \"layernorm\"\ntied = true\n[mlp]\nffn = 12\nactivation = \"geglu\"\n");
    error(
        "(AF)",
        "[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 4\nqk_norm = \"head\"\nqkv_bias = true\n[mlp]\nffn = 12\n",
    );
    error("A", "[attention]\nheads = 2\nkv_heads = 1\nhead_dim = 4\nwindow = 3\nout_bias = true\n");
}

#[test]
fn latent_attention_has_true_gradients() {
    let widths = "kv_rank = 4\nqk_dim = 4\nrope_dim = 2\nv_dim = 6\n";
    error("A", &format!("[attention]\nkind = \"mla\"\nheads = 2\nq_rank = 6\n{widths}"));
    error("A", &format!("[attention]\nkind = \"mla\"\nheads = 2\n{widths}"));
}

#[test]
fn experts_have_true_gradients() {
    let shared = "[moe.shared]\nffn = 6\ngate = true\nactivation = \"swiglu\"\n";
    let bank = "[moe]\nexperts = 6\ntop_k = 2\nffn = 5\n";
    error("E", &format!("{bank}{shared}[moe.router]\nscore = \"sigmoid\"\naux_loss = 0.3\n"));
    error("E", &format!("{bank}[moe.router]\nscore = \"softmax\"\nbias = true\naux_loss = 0.3\n"));
    error("E", &format!("{bank}capacity_factor = 0.7\nactivation = \"relu2\"\n"));
    error("E", &format!("{bank}bias = true\nlatent = 4\nlatent_bias = true\n{shared}"));
    error("E", &format!("{bank}bias = true\nactivation = \"swigluoai\"\n[moe.router]\nbias = true\n"));
}

#[test]
fn recurrences_have_true_gradients() {
    let channels = "[mamba]\nkind = \"mamba1\"\ninner = 6\nstate = 3\ndt_rank = 2\n";
    error("M", channels);
    error("M", &format!("{channels}inner_norms = true\nproj_bias = true\nconv_bias = false\n"));
    error("M", "[mamba]\nkind = \"mamba2\"\nheads = 4\nhead_dim = 3\nstate = 4\ngroups = 2\nchunk = 3\n");
    error("M", "[mamba]\nkind = \"mamba3\"\nheads = 4\nhead_dim = 3\nstate = 8\ngroups = 2\nangles = 2\nchunk = 3\n");
    error("G", "[gated_delta]\nkey_heads = 2\nvalue_heads = 4\nkey_dim = 3\nvalue_dim = 2\n");
    let recurrent = "[recurrent]\nheads = 4\nqk_heads = 2\nkey_dim = 3\nvalue_dim = 2\n";
    error("R", recurrent);
    error("RFRR", &format!("[mlp]\nffn = 12\n{recurrent}depth_carry = 3\n"));
}

#[test]
fn prediction_heads_have_true_gradients() {
    let mtp = "[mlp]\nffn = 12\n[features.mtp]\ndepth = 2\npattern = \"F\"\n";
    error("F", mtp);
    error("F", &format!("tied = true\n{mtp}"));
}

#[test]
fn side_embeddings_have_true_gradients() {
    let tables = "rows = 37\ndim = 3\ntables = 3\nscales = 2\n";
    for stage in ["first", "last"] {
        let sides = format!("[features.ngram_hash]\n{tables}[features.structure]\n{tables}stage = \"{stage}\"\n");
        error("F", &format!("[mlp]\nffn = 12\n{sides}"));
    }
}

#[test]
fn sparse_attention_has_true_gradients() {
    let dsa = "[features.dsa]\nheads = 3\nhead_dim = 4\ntop_k = 3\n";
    error("AA", &format!("[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 4\n{dsa}"));
    error("A", &format!("[attention]\nheads = 2\nkv_heads = 1\nhead_dim = 4\nwindow = 5\n{dsa}"));
    let latent = "[attention]\nkind = \"mla\"\nheads = 2\nkv_rank = 4\nqk_dim = 4\nrope_dim = 2\nv_dim = 6\n";
    error("AA", &format!("{latent}q_rank = 6\n{dsa}"));
    error("A", &format!("{latent}{dsa}"));
}

#[test]
fn heads_with_sinks_gates_and_whole_norms_have_true_gradients() {
    let heads = "[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 4\n";
    error("A", &format!("{heads}sinks = true\n"));
    error("A", &format!("{heads}output_gate = true\nqkv_bias = true\n"));
    error("A", &format!("{heads}qk_norm = \"full\"\n"));
    error("A", &format!("norm = \"layernorm\"\n{heads}qk_norm = \"full\"\nsinks = true\noutput_gate = true\n"));
    let latent = "[attention]\nkind = \"mla\"\nheads = 2\nkv_rank = 4\nqk_dim = 4\nrope_dim = 2\nv_dim = 6\n";
    error("A", &format!("{latent}sinks = true\n"));
}

/// Fields that change the forward pass, each with the gradient of what it computes.
#[test]
fn rotary_scaling_multipliers_and_routers_have_true_gradients() {
    let attention = "[attention]\nheads = 2\nkv_heads = 1\nhead_dim = 8\n";
    for rope in [
        "[rope]\nfraction = 0.5\n",
        "[rope.scaling]\nkind = \"linear\"\nfactor = 2.0\n",
        "[rope.scaling]\nkind = \"llama3\"\nfactor = 4.0\nlow = 1.0\nhigh = 4.0\noriginal = 8\n",
        "[rope.scaling]\nkind = \"yarn\"\nfactor = 4.0\noriginal = 8\n",
        "[multipliers]\nembedding = 3.0\nresidual = 0.5\nattention = 0.7\nlogits = 0.25\n",
    ] {
        error("A", &format!("norm_eps = 1e-3\n{rope}{attention}"));
    }
    let latent =
        "[attention]\nkind = \"mla\"\nheads = 2\nq_rank = 6\nkv_rank = 4\nqk_dim = 4\nrope_dim = 4\nv_dim = 4\n";
    let yarn = "[rope.scaling]\nkind = \"yarn\"\nfactor = 4.0\noriginal = 8\nmscale = 0.7\nmscale_all_dim = 0.9\n";
    error("A", &format!("{yarn}{latent}"));
    let moe = "[moe]\nexperts = 8\ntop_k = 4\nffn = 6\n[moe.router]\naux_loss = 0.1\n";
    for router in [
        "scaling = 2.5\n",
        "normalize = false\n",
        "normalize = false\nscaling = 0.5\nscore = \"sigmoid\"\n",
        "score = \"sigmoid\"\nscaling = 2.5\ngroups = 4\ngroup_top_k = 2\n",
        "groups = 2\ngroup_top_k = 1\ngroup_score = \"max\"\n",
    ] {
        error("E", &format!("{moe}{router}"));
    }
}

/// A recipe's epsilon is the one that norms add: a large one changes the loss.
#[test]
fn the_recipes_epsilon_is_used() {
    let loss = |eps: &str| {
        let text = format!("name = \"t\"\npattern = \"F\"\n{BASE}norm_eps = {eps}\n[mlp]\nffn = 12\n");
        let recipe = Recipe::parse(&text).unwrap();
        let request = LayoutRequest { world: Some(1), ..LayoutRequest::default() };
        let layout = check(&recipe, &request).layout.unwrap();
        let comm = comm::threads::alone();
        let mut trainer = Trainer::<f64>::new(&recipe, &layout, &comm, 3, Settings::default()).unwrap();
        trainer.accumulate(&Batch::synthetic(&recipe, &layout, 1, 0)).unwrap().loss
    };
    assert!((loss("1e-5") - loss("1.0")).abs() > 1e-3);
}

#[test]
fn what_no_block_computes_is_refused_by_name() {
    for (table, object) in [
        ("dropout = 0.1\n", "dropout"),
        ("[multipliers]\nmlp = [0.5, 0.3]\n", "multipliers.mlp"),
        ("[multipliers]\nkey = 0.5\n", "multipliers.key"),
    ] {
        let text = format!("name = \"t\"\npattern = \"F\"\n{BASE}{table}[mlp]\nffn = 12\n");
        let recipe = Recipe::parse(&text).unwrap();
        let findings = crate::supported::unsupported(&recipe);
        assert_eq!((findings[0].rule, findings[0].object.as_str()), ("runtime/unsupported", object));
    }
}
