//! From the text a person wrote to a valid recipe. Reports every finding, not the first.

use crate::features::Features;
use crate::kinds::attention::{Attention, AttentionKind};
use crate::kinds::gated_delta::GatedDelta;
use crate::kinds::linear::Linear;
use crate::kinds::m2rnn::M2rnn;
use crate::kinds::mamba::Mamba;
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::Moe;
use crate::kinds::shared::Shared;
use crate::kinds::{Norm, NormPlace};
use crate::limits;
use crate::megatron;
use crate::mode::Mode;
use crate::multipliers::Multipliers;
use crate::pattern::{Block, Layer, Mixer, Pattern};
use crate::precision::{OptimizerPolicy, Precision};
use crate::recipe::{NORM_EPS, Recipe};
use crate::rope::{Positions, Scaling};
use crate::write::{Field, Toml};
use diag::{Blame, Finding, Untrusted, quote, refuses};
use reading::{Dialect, Section, read_text};

/// How a recipe's mistakes are worded.
static RECIPE: Dialect = Dialect {
    whole: "the recipe",
    blame: Blame::Recipe,
    most_bytes: limits::FILE_BYTES,
    syntax: "recipe/syntax",
    text: "recipe/text",
    wrong_type: "recipe/type",
    missing_key: "recipe/missing-key",
    limit: "recipe/limit",
    choice: "recipe/choice",
    unknown_key: "recipe/unknown-key",
};

impl Recipe {
    /// Reads a recipe. Every mistake of the file is reported, each where it stands.
    pub fn parse(text: &str) -> Result<Recipe, Vec<Finding>> {
        let (mut recipe, mut findings) = read_text(text, &RECIPE, read)?;
        check(&recipe, &mut findings);
        if refuses(&findings) {
            return Err(findings);
        }
        recipe.notes.extend(findings);
        Ok(recipe)
    }

    /// The recipe as TOML that [`Recipe::parse`] reads back to the same recipe.
    pub fn to_toml(&self) -> String {
        self.written().finish()
    }

    /// Every field of the recipe, defaults included: what an engine has to be told, or be known to do.
    pub fn fields(&self) -> Vec<Field> {
        self.written().fields()
    }

    fn written(&self) -> Toml {
        let mut toml = Toml::default();
        toml.text("name", self.name.raw());
        toml.word_unless("source", self.source.raw(), "");
        toml.text("pattern", &self.pattern.to_string());
        toml.int_unless("depth", self.depth() as u64, self.pattern.period.len() as u64);
        toml.int("hidden", self.hidden);
        toml.int("vocab", self.vocab);
        toml.flag_unless("tied", self.tied, false);
        toml.int("sequence", self.sequence);
        toml.word_unless("norm", self.norm.name(), Norm::RmsNorm.name());
        toml.word_unless("norm_place", self.norm_place.name(), NormPlace::Before.name());
        toml.flag_unless("embedding_norm", self.embedding_norm, false);
        toml.flag_unless("head_bias", self.head_bias, false);
        toml.float_unless("norm_eps", self.norm_eps, NORM_EPS);
        toml.some_float("init_std", self.init_std);
        toml.float_unless("dropout", self.dropout, 0.0);
        self.positions.write(&mut toml);
        toml.words("modes", &self.modes.iter().map(|m| m.name()).collect::<Vec<_>>());
        self.positions.write_table(&mut toml);
        self.multipliers.write(&mut toml);
        self.attention.iter().for_each(|k| k.write(&mut toml));
        self.moe.iter().for_each(|k| k.write(&mut toml));
        self.mamba.iter().for_each(|k| k.write(&mut toml));
        self.recurrent.iter().for_each(|k| k.write(&mut toml));
        self.gated_delta.iter().for_each(|k| k.write(&mut toml));
        self.linear.iter().for_each(|k| k.write(&mut toml));
        self.mlp.iter().for_each(|k| k.write(&mut toml));
        self.shared.iter().for_each(|k| k.write(&mut toml));
        self.features.write(&mut toml);
        self.precision.write(&mut toml);
        self.optimizer.write(&mut toml);
        toml.optional_table("not_carried");
        self.not_carried.iter().for_each(|(key, value)| toml.text_under(key, value));
        toml
    }

    /// Holds a recipe that was put together or changed to everything a file is held to: what only the whole
    /// shows, and the rules of each table, which are asked by reading the recipe as it would be written.
    pub fn validated(self) -> Result<Recipe, Vec<Finding>> {
        let mut findings = Vec::new();
        check(&self, &mut findings);
        if !refuses(&findings) {
            let written = Recipe::parse(&self.to_toml()).err().unwrap_or_default();
            findings.extend(written.into_iter().map(|finding| finding.at(None)));
        }
        if refuses(&findings) { Err(findings) } else { Ok(self) }
    }
}

fn read(mut root: Section) -> Option<Recipe> {
    let name = root.required_text("name").map(Untrusted::from);
    let source = Untrusted::from(root.text("source").unwrap_or_default());
    let pattern = read_pattern(&mut root);
    let depth = root.optional_count("depth", limits::DEPTH);
    let hidden = root.count("hidden", limits::WIDTH);
    let vocab = root.count("vocab", limits::VOCAB);
    let tied = root.flag_or("tied", false);
    let sequence = root.count("sequence", limits::SEQUENCE);
    let norm = root.choice("norm", Norm::ALL, Norm::RmsNorm);
    let norm_place = root.choice("norm_place", NormPlace::ALL, NormPlace::Before);
    let embedding_norm = root.flag_or("embedding_norm", false);
    let head_bias = root.flag_or("head_bias", false);
    let norm_eps = root.positive("norm_eps").unwrap_or(NORM_EPS);
    let init_std = root.positive("init_std");
    let dropout = probability(&mut root, "dropout");
    let positions = Positions::read(&mut root);
    let multipliers = Multipliers::read(root.section("multipliers"));
    let modes = read_modes(&mut root);
    let attention = root.section("attention").and_then(|s| Attention::read(s, hidden));
    let moe = root.section("moe").and_then(Moe::read);
    let mamba = root.section("mamba").and_then(Mamba::read);
    let recurrent = root.section("recurrent").and_then(M2rnn::read);
    let gated_delta = root.section("gated_delta").and_then(GatedDelta::read);
    let linear = root.section("linear").and_then(Linear::read);
    let mlp = root.section("mlp").and_then(Mlp::read);
    let shared = root.section("shared").and_then(Shared::read);
    let features = Features::read(root.section("features"), root.section("adapters"));
    let precision = Precision::read(root.section("precision"));
    let optimizer = OptimizerPolicy::read(root.section("optimizer"));
    let not_carried = root.texts("not_carried");
    let not_carried = not_carried.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let has_moe = root.has("moe");
    root.finish();
    let pattern = pattern?;
    let depth = depth.unwrap_or(pattern.period.len() as u64) as usize;
    let mut notes = Vec::new();
    if depth < pattern.period.len() {
        let message = format!("depth {depth} cuts into the pattern's first period of {}", pattern.period.len());
        notes.push(Finding::note("pattern/short-depth", Blame::Recipe, "depth", message));
    }
    let mut recipe = Recipe {
        name: name?,
        source,
        layers: pattern.tile(depth),
        pattern,
        hidden: hidden?,
        vocab: vocab?,
        tied,
        sequence: sequence?,
        norm,
        norm_place,
        embedding_norm,
        head_bias,
        norm_eps,
        init_std,
        dropout,
        positions: positions?,
        multipliers,
        modes,
        attention,
        moe,
        mamba,
        recurrent,
        gated_delta,
        linear,
        mlp,
        shared,
        features,
        precision,
        optimizer,
        not_carried,
        notes,
    };
    if !has_moe && recipe.experts_become(None).is_err() {
        unreachable!("nothing was asked for that could be refused");
    }
    recipe.mark_layers();
    Some(recipe)
}

/// Reads `pattern` in either dialect; findings point into the text of the value.
fn read_pattern(root: &mut Section) -> Option<Pattern> {
    let text = root.required_text("pattern")?;
    let parsed = if megatron::is_dialect(text) { megatron::read_layers(text) } else { Pattern::parse(text) };
    match parsed {
        Ok(pattern) if pattern.period.len() as u64 <= limits::DEPTH => Some(pattern),
        Ok(pattern) => {
            let message =
                format!("the pattern has {} layers, and a model at most {}", pattern.period.len(), limits::DEPTH);
            root.report("pattern", Finding::error("recipe/limit", Blame::Recipe, "pattern", message));
            None
        }
        Err(finding) => {
            let shown: String = text.chars().take(60).collect();
            let column = finding.span.as_ref().map_or(1, |s| text[..s.start.min(text.len())].chars().count() + 1);
            let message = format!("{} (character {column} of `{shown}`)", finding.message);
            root.report("pattern", Finding { message, ..finding });
            None
        }
    }
}

/// A share from zero up to, not including, one.
pub(crate) fn probability(section: &mut Section, key: &'static str) -> f64 {
    let share = section.not_negative(key).unwrap_or(0.0);
    if share >= 1.0 {
        let message = format!("`{key}` is {share}, and whoever drops everything trains nothing");
        section.report(key, Finding::error("recipe/limit", Blame::Recipe, key, message).hint("it is below 1"));
    }
    share
}

fn read_modes(root: &mut Section) -> Vec<Mode> {
    let mut modes = Vec::new();
    for word in root.words("modes").unwrap_or_default() {
        match Mode::from_name(word) {
            Some(mode) => modes.push(mode),
            None => {
                let shown: String = word.chars().take(40).collect();
                let message = format!("`{shown}` is no mode");
                let finding = Finding::error("mode/unknown", Blame::Recipe, "modes", message);
                root.report("modes", finding.hint("modes are `nemo_native`, `author_dp`"));
            }
        }
    }
    modes
}

/// What only the whole recipe shows.
fn check(recipe: &Recipe, findings: &mut Vec<Finding>) {
    check_texts(recipe, findings);
    check_tables(recipe, findings);
    check_features(recipe, findings);
    findings.extend(recipe.adapter_findings());
    check_rope(recipe, findings);
    check_shared(recipe, findings);
    findings.extend(recipe.moe.as_ref().and_then(Moe::group_finding));
    findings.extend(recipe.moe.as_ref().and_then(Moe::capacity_finding));
    if !refuses(findings) {
        check_size(recipe, findings);
    }
}

/// Names that people read in an answer, files and folders are called after, and that importers take from
/// anywhere.
fn check_texts(recipe: &Recipe, findings: &mut Vec<Finding>) {
    let name = recipe.name.raw();
    if name.trim().is_empty() || name.len() > limits::NAME_BYTES || !quote::is_plain(name) {
        let shown = quote::bytes(name.as_bytes(), 60);
        let message = format!(
            "`{shown}` is no name of a model: one line of visible characters, {} bytes at most",
            limits::NAME_BYTES
        );
        let hint = "call it by another `name`; `import` takes one as --name";
        findings.push(Finding::error("recipe/name", Blame::Recipe, "name", message).hint(hint));
    }
    let lost = recipe.not_carried.iter().flat_map(|(key, value)| [("not_carried", key), ("not_carried", value)]);
    let texts = std::iter::once(("source", recipe.source.raw())).chain(lost.map(|(at, text)| (at, text.as_str())));
    for (object, text) in texts.filter(|(_, text)| !quote::is_plain(text)) {
        let message = format!("`{object}` has characters that do not show: `{}`", quote::bytes(text.as_bytes(), 60));
        let finding = Finding::error("recipe/text", Blame::Recipe, object, message);
        findings.push(finding.hint("take them out of the file it comes from"));
    }
}

fn check_tables(recipe: &Recipe, findings: &mut Vec<Finding>) {
    let described = [
        (Mixer::Attention, recipe.attention.is_some()),
        (Mixer::Moe, recipe.moe.is_some()),
        (Mixer::Mamba, recipe.mamba.is_some()),
        (Mixer::Recurrent, recipe.recurrent.is_some()),
        (Mixer::GatedDelta, recipe.gated_delta.is_some()),
        (Mixer::Linear, recipe.linear.is_some()),
        (Mixer::Mlp, recipe.mlp.is_some()),
        (Mixer::Shared, recipe.shared.is_some()),
    ];
    for (mixer, is_described) in described {
        let in_suffix = recipe.features.mtp.as_ref().is_some_and(|mtp| mtp.value.layer.has(mixer));
        if (recipe.has(mixer) || in_suffix) && !is_described {
            let (letter, table) = (mixer.letter(), mixer.table());
            let place = if recipe.has(mixer) { "the pattern" } else { "`features.mtp.pattern`" };
            let message = format!("{place} has `{letter}` blocks, and no `[{table}]` table describes them");
            let finding = Finding::error("pattern/table", Blame::Recipe, table, message);
            findings.push(finding.hint(format!("add `[{table}]`, or take `{letter}` out")));
        }
        if !recipe.has(mixer) && !in_suffix && is_described {
            let (letter, table) = (mixer.letter(), mixer.table());
            let message = format!("`[{table}]` describes `{letter}` blocks, and the pattern has none");
            findings.push(Finding::note("pattern/unused-table", Blame::Recipe, table, message));
        }
    }
}

fn check_features(recipe: &Recipe, findings: &mut Vec<Finding>) {
    let attention_layers = recipe.count(Mixer::Attention);
    findings.extend(recipe.stream_findings());
    let mut refuse = |key: &'static str, message: String| {
        findings.push(Finding::error("features/placement", Blame::Recipe, key, message));
    };
    if let Some(dsa) = &recipe.features.dsa {
        for layer in dsa.value.layers.iter().filter(|l| **l >= attention_layers) {
            refuse(
                "features.dsa.layers",
                format!(
                    "sparse attention is placed on attention layer {layer}, and the last is {}",
                    attention_layers as i64 - 1
                ),
            );
        }
        for layer in dsa.value.reuse.iter().filter(|l| **l >= attention_layers || !dsa.value.covers(**l)) {
            refuse("features.dsa.reuse", format!("attention layer {layer} is not sparse, and cannot read a choice"));
        }
        let first = (0..attention_layers).find(|layer| dsa.value.covers(*layer));
        if let Some(layer) = first.filter(|layer| dsa.value.reuse.contains(layer)) {
            let message = format!("no indexer stands before attention layer {layer}, whose choice it could read");
            refuse("features.dsa.reuse", message);
        }
    }
    let named = [
        ("features.mod.layers", recipe.features.depths.as_ref().map(|depths| &depths.value.layers)),
        ("features.engram.layers", recipe.features.engram.as_ref().map(|engram| &engram.value.layers)),
    ];
    for (key, layers) in named {
        for layer in layers.into_iter().flatten().filter(|layer| **layer >= recipe.depth() as u64) {
            refuse(key, format!("there is no layer {layer}: the last is {}", recipe.depth() - 1));
        }
    }
    if recipe.features.mla.is_some() && recipe.attention.is_none() {
        refuse("features.mla", "latent attention is offered, and the recipe has no `[attention]`".to_string());
    }
    if let Positions::Learned { count } = recipe.positions
        && count < recipe.sequence
    {
        refuse(
            "learned_positions",
            format!("{count} learned positions do not reach over a sequence of {}", recipe.sequence),
        );
    }
    let is_rwkv7 = matches!(recipe.linear, Some(Linear::Rwkv7(_)));
    if recipe.mlp.as_ref().is_some_and(|mlp| mlp.shift) && !is_rwkv7 {
        refuse("mlp.shift", "inputs mixed with the token before are RWKV's, and `[linear]` is not `rwkv7`".to_string());
    }
    if is_rwkv7 && recipe.has(Mixer::Linear) && !recipe.layers[0].has(Mixer::Linear) {
        refuse("pattern", "every `L` layer reads the values of layer 0, which has no `L` block".to_string());
    }
    if let Some(window) = recipe.attention.as_ref().and_then(|a| a.window.as_ref())
        && let Some(layer) = window.full_layers.iter().find(|l| **l >= attention_layers)
    {
        refuse("attention.full_attention_layers", format!("there is no attention layer {layer}"));
    }
}

/// What a shared block gives goes into the block behind it, and its weights stand whether layers run it or not.
fn check_shared(recipe: &Recipe, findings: &mut Vec<Finding>) {
    let Some(shared) = &recipe.shared else { return };
    let mut refuse = |object: &'static str, message: String| {
        findings.push(Finding::error("shared/placement", Blame::Recipe, object, message));
    };
    let uses = recipe.count(Mixer::Shared);
    if uses < shared.blocks {
        refuse("shared.blocks", format!("{} shared blocks stand beside {uses} layers that run one", shared.blocks));
    }
    let is_shared = |block: &Block| block.mixers.contains(&Mixer::Shared);
    let is_fed = |layer: &Layer| {
        let into = |pair: &[Block]| !is_shared(&pair[0]) || !is_shared(&pair[1]);
        layer.blocks.windows(2).all(into) && !layer.blocks.last().is_some_and(is_shared)
    };
    if let Some(index) = recipe.layers.iter().position(|layer| layer.has(Mixer::Shared) && !is_fed(layer)) {
        let message = format!("layer {index} has no block behind its shared one, which would read what that gives");
        refuse("pattern", message);
    }
    if recipe.blocks().any(|(_, block)| block.mixers.len() > 1 && is_shared(block)) {
        refuse("pattern", "a shared block has a norm of its own, and stands beside no other mixer".to_string());
    }
    if recipe.features.mtp.as_ref().is_some_and(|mtp| mtp.value.layer.has(Mixer::Shared)) {
        refuse(
            "features.mtp.pattern",
            "a prediction depth has no shared block: it has no token embeddings".to_string(),
        );
    }
    if recipe.norm_place != NormPlace::Before {
        refuse("norm_place", "a shared block has its norms before attention and feed-forward".to_string());
    }
    if recipe.positions.rope().is_some_and(|rope| rope.fraction < 1.0 || shared.head_dim % 2 != 0) {
        refuse("rope", format!("a shared block turns the whole of a head, {} columns in pairs", shared.head_dim));
    }
}

/// Columns turn in pairs, so that what turns of a head is an even width.
fn check_rope(recipe: &Recipe, findings: &mut Vec<Finding>) {
    let Some(rope) = recipe.positions.rope() else { return };
    if let Some(Scaling::Yarn(yarn)) = &rope.scaling
        && yarn.original as f64 * yarn.factor > limits::SEQUENCE as f64
    {
        let message = format!(
            "{} positions stretched by {} are more than the {} that a sequence may have",
            yarn.original,
            yarn.factor,
            limits::SEQUENCE
        );
        let finding = Finding::error("rope/scaling", Blame::Recipe, "rope.scaling.factor", message);
        let most = limits::SEQUENCE as f64 / yarn.original as f64;
        findings.push(finding.hint(format!("factor may be up to {most}")));
    }
    let mut refuse = |message: String, hint: &str| {
        findings.push(Finding::error("rope/fraction", Blame::Recipe, "rope.fraction", message).hint(hint));
    };
    match recipe.attention.as_ref().map(|a| &a.kind) {
        Some(AttentionKind::Gqa { head_dim, .. }) if rope.fraction < 1.0 => {
            let width = rope.width(*head_dim);
            if width < 2 || width % 2 != 0 {
                let message =
                    format!("{} of a head of {head_dim} are {width} columns, and they turn in pairs", rope.fraction);
                refuse(message, "give the share of an even number of columns");
            }
        }
        Some(AttentionKind::Mla(_)) if rope.fraction < 1.0 => {
            refuse("latent attention turns the whole of its rotary slice".to_string(), "give the slice as `rope_dim`");
        }
        _ => {}
    }
}

/// The sizes are each within limits; their products must be too.
fn check_size(recipe: &Recipe, findings: &mut Vec<Finding>) {
    let elements = |t: &crate::tensor::Tensor| t.dims.iter().map(|d| d.len() as u128).fold(1, u128::saturating_mul);
    let total: u128 = recipe.tensors().iter().map(elements).fold(0, u128::saturating_add);
    if total > limits::PARAMETERS {
        let most = limits::PARAMETERS;
        let message = format!("the model has {total} parameters, and at most {most} are counted in bytes");
        findings.push(
            Finding::error("recipe/limit", Blame::Recipe, "recipe", message).hint("make it narrower or shallower"),
        );
    }
}
