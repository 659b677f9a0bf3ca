//! Examples of rules: a built-in recipe, changed where need be, under a layout, and what the rule
//! says. A rule cannot be declared without them.

use super::Rule;
use crate::request::{Balance, Engine, Recompute, Schedule, ZeroStage};
use crate::{Checked, LayoutRequest, check};
use recipe::features::Switch;
use recipe::kinds::depths::Depths;
use recipe::kinds::engram::Engram;
use recipe::kinds::mhc::Mhc;
use recipe::{Adapters, Feature, Mode, Recipe};

/// A layout and what a rule says of it.
#[derive(Debug)]
pub struct Example {
    recipe: &'static str,
    layout: &'static str,
    says: &'static str,
    with: fn(&mut Recipe),
}

/// The rule speaks, with these words; several findings are joined by ` | `.
pub const fn found(recipe: &'static str, layout: &'static str, says: &'static str) -> Example {
    Example { recipe, layout, says, with: |_| {} }
}

/// The rule has nothing to say.
pub const fn silent(recipe: &'static str, layout: &'static str) -> Example {
    found(recipe, layout, "")
}

impl Example {
    /// The same of a recipe that is changed first.
    pub const fn with(self, with: fn(&mut Recipe)) -> Example {
        Example { with, ..self }
    }

    /// As typed.
    pub fn request(&self) -> LayoutRequest {
        request(self.layout)
    }

    /// As its mode runs it.
    pub fn recipe(&self) -> Recipe {
        self.checked().recipe
    }

    fn checked(&self) -> Checked {
        let mut recipe = recipe::builtin::find(self.recipe).unwrap();
        (self.with)(&mut recipe);
        check(&recipe, &self.request())
    }

    /// What the rule says.
    fn words(&self, rule: &Rule) -> String {
        let found = self.checked().findings.into_iter().filter(|f| rule.found(f));
        found.map(|f| f.message).collect::<Vec<_>>().join(" | ")
    }
}

/// Switches a feature on.
pub fn switch_on(recipe: &mut Recipe, feature: Feature) {
    *recipe = recipe.clone().with_features(&[feature], &[]).unwrap();
}

/// Gives a recipe adapters beside its attention.
pub fn adapted(recipe: &mut Recipe) {
    let targets = vec!["attention.qkv".to_string(), "attention.out".to_string()];
    let value = Adapters { rank: 16, alpha: 32.0, targets };
    recipe.features.adapters = Some(Switch { on: true, value });
}

/// A request as typed, `tp=2 sp=off engine=megatron`.
pub fn request(text: &str) -> LayoutRequest {
    let mut request = LayoutRequest::default();
    for word in text.split_whitespace() {
        let (key, value) = word.split_once('=').unwrap();
        let number = value.parse().ok();
        match key {
            "world" => request.world = number,
            "tp" => request.tp = number,
            "sp" => request.sp = Some(value == "on"),
            "cp" => request.cp = number,
            "pp" => request.pp = number,
            "vpp" => request.vpp = number,
            "ep" => request.ep = number,
            "etp" => request.etp = number,
            "dp" => request.dp = number,
            "mbs" => request.micro_batch = number,
            "gbs" => request.global_batch = number,
            "microbatches" => request.microbatches = number,
            "seq" => request.sequence = number,
            "vocab-multiple" => request.vocab_multiple = number,
            "zero" => request.zero = Some(ZeroStage::from_name(value).unwrap()),
            "schedule" => request.schedule = Some(Schedule::from_name(value).unwrap()),
            "recompute" => request.recompute = Some(Recompute::parse(value).unwrap()),
            "mode" => request.mode = Some(Mode::from_name(value).unwrap()),
            "balance" => request.balance = Some(Balance::from_name(value).unwrap()),
            "engine" => request.engine = Some(Engine::from_name(value).unwrap()),
            "boundaries" => request.boundaries = Some(value.split(',').map(|n| n.parse().unwrap()).collect()),
            _ => panic!("`{key}` is no key of a layout"),
        }
    }
    request
}

impl Rule {
    /// Holds the rule to its examples, among which it must both speak and keep silent.
    pub fn hold(&self) {
        for example in self.examples {
            let (recipe, layout) = (example.recipe, example.layout);
            assert_eq!(example.words(self), example.says, "{} of {recipe} under `{layout}`", self.id);
        }
        for speaks in [true, false] {
            let has = self.examples.iter().any(|example| example.says.is_empty() != speaks);
            assert!(has, "{} lacks an example on which it {}", self.id, if speaks { "speaks" } else { "is silent" });
        }
    }
}

/// Four residual streams, which no built-in recipe has.
pub fn four_streams(recipe: &mut Recipe) {
    recipe.features.mhc = Some(Switch { on: true, value: Mhc { streams: 4, sinkhorn: 20 } });
}

/// A second layer that takes an eighth of the tokens, which no built-in recipe has.
pub fn some_tokens(recipe: &mut Recipe) {
    recipe.features.depths = Some(Switch { on: true, value: Depths { layers: vec![1], capacity: 0.125 } });
    recipe.layers[1].is_partial = true;
}

/// An engram branch before the second layer, which no built-in recipe has.
pub fn branched(recipe: &mut Recipe) {
    let engram = Engram { layers: vec![1], rows: 100_000, dim: 512, heads: 8, ngrams: 3, conv: 4 };
    recipe.features.engram = Some(Switch { on: true, value: engram });
    recipe.layers[1].has_engram = true;
}

/// Kinds that no built-in recipe has.
pub mod kinds {
    use recipe::kinds::Activation;
    use recipe::kinds::gated_delta::GatedDelta;
    use recipe::kinds::lightning::Lightning;
    use recipe::kinds::linear::Linear;
    use recipe::kinds::mamba::Mamba;
    use recipe::kinds::mamba1::Mamba1;
    use recipe::kinds::mlstm::Mlstm;
    use recipe::kinds::rwkv7::Rwkv7;
    use recipe::kinds::shared::Shared;
    use recipe::kinds::short_conv::ShortConv;
    use recipe::pattern::Block;
    use recipe::{Layer, Mixer, Recipe};

    /// Mamba-1 of 60 channels.
    pub fn mamba1(recipe: &mut Recipe) {
        let (conv_bias, proj_bias, inner_norms) = (true, false, true);
        let one = Mamba1 { inner: 60, heads: 1, state: 4, dt_rank: 3, conv: 4, conv_bias, proj_bias, inner_norms };
        recipe.mamba = Some(Mamba::One(one));
    }

    /// The same in two heads.
    pub fn mamba1_of_heads(recipe: &mut Recipe) {
        mamba1(recipe);
        if let Some(Mamba::One(one)) = &mut recipe.mamba {
            one.heads = 2;
        }
    }

    /// A last layer of gated delta net with 4 key heads.
    pub fn gated_delta(recipe: &mut Recipe) {
        recipe.gated_delta = Some(GatedDelta { key_heads: 4, value_heads: 8, key_dim: 4, value_dim: 8, conv: 4 });
        recipe.layers.push(Layer::of(&[Mixer::GatedDelta]));
    }

    /// A last layer of a short convolution.
    pub fn linear(recipe: &mut Recipe) {
        recipe.linear = Some(Linear::ShortConv(ShortConv { conv: 3, bias: false }));
        recipe.layers.push(Layer::of(&[Mixer::Linear]));
    }

    /// A last layer of lightning attention.
    pub fn lightning(recipe: &mut Recipe) {
        recipe.linear = Some(Linear::Lightning(Lightning { heads: 4, head_dim: 8, chunk: 256 }));
        recipe.layers.push(Layer::of(&[Mixer::Linear]));
    }

    /// A last layer of xLSTM's memory with 4 heads.
    pub fn mlstm(recipe: &mut Recipe) {
        recipe.linear = Some(Linear::Mlstm(Mlstm { heads: 4, qk_dim: 16, v_dim: 32, chunk: 64 }));
        recipe.layers.push(Layer::of(&[Mixer::Linear]));
    }

    /// A last layer of RWKV-7's time mixing with 4 heads.
    pub fn rwkv7(recipe: &mut Recipe) {
        let [decay_rank, rate_rank, value_rank, gate_rank] = [2; 4];
        let mixer = Rwkv7 { heads: 4, head_dim: 8, v_dim: 8, decay_rank, rate_rank, value_rank, gate_rank };
        recipe.linear = Some(Linear::Rwkv7(mixer));
        recipe.layers.push(Layer::of(&[Mixer::Linear]));
    }

    /// Two last layers that share a block of 4 heads.
    pub fn shared(recipe: &mut Recipe) {
        let (activation, bias, rank, adapts_attention) = (Activation::GeGlu, false, Some(2), false);
        let (heads, kv_heads, head_dim) = (4, 4, 8);
        let shared = Shared { blocks: 1, heads, kv_heads, head_dim, ffn: 16, activation, bias, rank, adapts_attention };
        recipe.shared = Some(shared);
        recipe.layers.extend([Layer::of(&[Mixer::Shared, Mixer::Mlp]), Layer::of(&[Mixer::Shared, Mixer::Mlp])]);
    }

    /// A last layer of attention and MLP behind one norm.
    pub fn side_by_side(recipe: &mut Recipe) {
        recipe.layers.push(Layer::of_blocks(vec![Block { mixers: vec![Mixer::Attention, Mixer::Mlp] }]));
    }
}
