//! A valid recipe: what the model is, with nothing said about ranks.

use crate::features::{Feature, Features};
use crate::kinds::attention::{Attention, AttentionKind};
use crate::kinds::depths::Depths;
use crate::kinds::dsa::Dsa;
use crate::kinds::gated_delta::GatedDelta;
use crate::kinds::linear::Linear;
use crate::kinds::m2rnn::M2rnn;
use crate::kinds::mamba::Mamba;
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::Moe;
use crate::kinds::shared::Shared;
use crate::kinds::{Emitter, Norm, NormPlace, edges};
use crate::mode::{Mode, replace};
use crate::multipliers::Multipliers;
use crate::pattern::{Block, Family, Layer, Mixer, Pattern};
use crate::precision::{OptimizerPolicy, Precision};
use crate::rope::Positions;
use crate::tensor::{Dim, Place, Role, Surface, Tensor, Unit};
use diag::{Blame, Finding, Untrusted};

/// What the model is. Built by [`Recipe::parse`] and the importers only, so that every value of
/// this type is consistent: each mixer of the pattern has its table, sizes are within limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// Name, part of a run's identity.
    pub name: Untrusted,
    /// Where the figures come from.
    pub source: Untrusted,
    /// One period, as written.
    pub pattern: Pattern,
    /// Every layer.
    pub layers: Vec<Layer>,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Rows of the token table, before any padding that a split asks for.
    pub vocab: u64,
    /// Whether the output head is the token table.
    pub tied: bool,
    /// Tokens a training sequence has.
    pub sequence: u64,
    /// Norm of every block, of token embeddings where they have one, and at the end.
    pub norm: Norm,
    /// Where a block's norm stands.
    pub norm_place: NormPlace,
    /// Whether token embeddings are normalised before the first layer: BLOOM.
    pub embedding_norm: bool,
    /// Whether the projection onto the vocabulary adds a bias: Phi, GPT-J.
    pub head_bias: bool,
    /// Added to the mean square under the root of every norm.
    pub norm_eps: f64,
    /// Deviation of fresh weights; the engine's own where there is none.
    pub init_std: Option<f64>,
    /// Share of what a block adds to the residual stream that is dropped in training.
    pub dropout: f64,
    /// How position enters.
    pub positions: Positions,
    /// Constants that activations are multiplied with.
    pub multipliers: Multipliers,
    /// Modes the recipe may run in.
    pub modes: Vec<Mode>,
    /// A blocks.
    pub attention: Option<Attention>,
    /// E blocks.
    pub moe: Option<Moe>,
    /// M blocks.
    pub mamba: Option<Mamba>,
    /// R blocks.
    pub recurrent: Option<M2rnn>,
    /// G blocks.
    pub gated_delta: Option<GatedDelta>,
    /// L blocks.
    pub linear: Option<Linear>,
    /// F blocks.
    pub mlp: Option<Mlp>,
    /// S blocks.
    pub shared: Option<Shared>,
    /// Features the recipe has values for, on or off.
    pub features: Features,
    /// Number formats by role of a tensor.
    pub precision: Precision,
    /// Optimizers by role of a tensor.
    pub optimizer: OptimizerPolicy,
    /// Keys of an imported configuration that no field holds, each with its value as JSON. Whoever
    /// launches the recipe launches a model without them.
    pub not_carried: Vec<(String, String)>,
    /// Notes on what was changed while the recipe was made, such as E becoming attention.
    pub notes: Vec<Finding>,
}

/// What norms add under the root unless a recipe says otherwise: Megatron-Core's, torch's LayerNorm's and
/// our runtime's figure.
pub const NORM_EPS: f64 = 1e-5;

impl Recipe {
    /// Number of layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// The attention that runs: the recipe's own, or the latent one where the feature is on.
    pub fn attention(&self) -> Option<Attention> {
        let own = self.attention.clone()?;
        match self.features.mla.as_ref().and_then(|s| s.active()) {
            Some(mla) => Some(Attention { kind: AttentionKind::Mla(mla.clone()), ..own }),
            None => Some(own),
        }
    }

    /// Numbers a token that go from layer to layer: the hidden width, once for every residual stream.
    pub fn residual_width(&self) -> u64 {
        self.hidden * self.features.mhc().map_or(1, |mhc| mhc.streams)
    }

    /// How many blocks of a mixer the layers hold.
    pub fn count(&self, mixer: Mixer) -> u64 {
        self.layers.iter().flat_map(Layer::mixers).filter(|m| *m == mixer).count() as u64
    }

    /// Indices of layers that hold a mixer.
    pub fn layers_with(&self, mixer: Mixer) -> Vec<usize> {
        (0..self.layers.len()).filter(|&i| self.layers[i].has(mixer)).collect()
    }

    /// How many blocks of a mixer run: in the layers, and in the prediction suffix if it is on.
    pub fn count_with_suffix(&self, mixer: Mixer) -> u64 {
        let suffix =
            self.features.mtp().map_or(0, |mtp| mtp.depth * mtp.layer.mixers().filter(|m| *m == mixer).count() as u64);
        self.count(mixer) + suffix
    }

    /// Whether the attention that runs is latent.
    pub fn is_latent(&self) -> bool {
        self.uses(Mixer::Attention) && matches!(self.attention().map(|a| a.kind), Some(AttentionKind::Mla(_)))
    }

    /// Whether the attention that runs is latent and multiplies its heads with gates.
    pub fn gates_latent_heads(&self) -> bool {
        let gates = |a: &Attention| matches!(&a.kind, AttentionKind::Mla(mla) if mla.head_gate);
        self.uses(Mixer::Attention) && self.attention().as_ref().is_some_and(gates)
    }

    /// Whether layer 0 lacks a part that others with the same blocks have: RWKV-7's way to the first layer's values.
    pub fn first_layer_lacks(&self) -> bool {
        matches!(self.linear, Some(Linear::Rwkv7(_)))
    }

    /// Whether some layer holds the mixer.
    pub fn has(&self, mixer: Mixer) -> bool {
        self.layers.iter().any(|l| l.has(mixer))
    }

    /// Whether the mixer runs in some layer, or in the prediction suffix if it is on.
    pub fn uses(&self, mixer: Mixer) -> bool {
        self.has(mixer) || self.features.mtp().is_some_and(|mtp| mtp.layer.has(mixer))
    }

    /// The feature bundle: routed experts, where the pattern has E blocks, and every feature the recipe
    /// has values for; whether each is on.
    pub fn bundle(&self) -> Vec<(Feature, bool)> {
        let is_on = self.uses(Mixer::Moe);
        let moe = (is_on || self.pattern.to_string().contains('E')).then_some((Feature::Moe, is_on));
        moe.into_iter().chain(self.features.listed()).collect()
    }

    /// Switches features on and off. Switching `moe` off turns E blocks into others and adds a note.
    pub fn with_features(mut self, on: &[Feature], off: &[Feature]) -> Result<Recipe, Finding> {
        let wanted = on.iter().map(|f| (*f, true)).chain(off.iter().map(|f| (*f, false)));
        for (feature, state) in wanted {
            let instead = match feature {
                Feature::Moe => Some(None),
                Feature::MoeAsMlp => Some(Some(Mixer::Mlp)),
                Feature::MoeAsAttention => Some(Some(Mixer::Attention)),
                _ => None,
            };
            if let (Some(instead), true) = (instead, self.moe.is_some()) {
                if !state {
                    self.moe = None;
                    self.experts_become(instead)?;
                } else if feature != Feature::Moe {
                    let message = format!("`{feature}` says what E becomes without experts");
                    let finding = Finding::error("features/unknown", Blame::Usage, feature.name(), message);
                    return Err(finding.hint(format!("--without {feature}")));
                }
            } else if !self.features.set(feature, state) {
                let listed: Vec<_> = self.features.listed().iter().map(|(f, _)| format!("`{f}`")).collect();
                let message = format!("recipe `{}` has no values for feature `{feature}`", self.name.terminal());
                let finding = Finding::error("features/unknown", Blame::Usage, feature.name(), message);
                return Err(finding.hint(match listed.is_empty() {
                    true if feature == Feature::Adapters => "give them in `[adapters]`".to_string(),
                    true => "give them in `[features]`".to_string(),
                    false => format!("it has {}", listed.join(", ")),
                }));
            }
        }
        self.mark_layers();
        let lost = self.adapter_findings().into_iter().filter(|_| self.adapters().is_some());
        match lost.chain(self.stream_findings()).next() {
            Some(finding) => Err(finding),
            None => Ok(self),
        }
    }

    /// Refuses what no source says of several residual streams and of branches among some tokens: what a prediction suffix behind them reads, where
    /// Megatron-Core refuses too (`transformer_config.py`, `enable_mhc_connections`), and how some tokens of them pass a
    /// layer by.
    pub(crate) fn stream_findings(&self) -> Vec<Finding> {
        let features = &self.features;
        let met = [
            (features.mtp().is_some(), "mtp", "prediction depths cannot stand behind several residual streams"),
            (features.depths().is_some(), "mod", "layers of several residual streams cannot let tokens pass by"),
            (
                features.engram().is_some(),
                "engram",
                "which of several residual streams an engram branch reads is not said",
            ),
        ];
        let refuse = |(_, other, message): (bool, &str, &str)| {
            let finding = Finding::error("features/placement", Blame::Recipe, "features.mhc", message);
            finding.hint(format!("leave out one of `mhc` and `{other}`"))
        };
        let mut findings: Vec<Finding> =
            met.into_iter().filter(|(is_on, ..)| *is_on && features.mhc().is_some()).map(refuse).collect();
        if let Some(layer) = self.layers.iter().position(|layer| layer.is_partial && layer.has_engram) {
            let message = format!("layer {layer} takes some tokens only, and its engram branch reads all");
            findings.push(Finding::error("features/placement", Blame::Recipe, "features.engram", message));
        }
        // What a shared block reads beside its stream is one embedding for each token of it.
        let shares = |layer: &Layer| layer.mixers().any(|mixer| mixer == Mixer::Shared);
        let streams = features.mhc().is_some() && self.layers.iter().any(shares);
        if streams || self.layers.iter().any(|layer| shares(layer) && (layer.is_partial || layer.has_engram)) {
            let message = "shared blocks stand beside one residual stream that all tokens take, and no branch";
            let finding = Finding::error("features/placement", Blame::Recipe, "shared", message);
            findings.push(finding.hint("leave out `mhc`, or `mod` and `engram` on layers with `S`"));
        }
        findings
    }

    /// Marks the layers that take some tokens only and those with an engram branch, and no others.
    pub(crate) fn mark_layers(&mut self) {
        let partial = self.features.depths().map(|depths| depths.layers.clone()).unwrap_or_default();
        let branched = self.features.engram().map(|engram| engram.layers.clone()).unwrap_or_default();
        for (index, layer) in (0u64..).zip(&mut self.layers) {
            layer.is_partial = partial.contains(&index);
            layer.has_engram = branched.contains(&index);
        }
    }

    /// Replaces every E, with a note: without experts an E block has nothing to route to. Unless it is said,
    /// E becomes an MLP where the recipe describes one, as the source of NAM56R has it (`nam56r_nemo_recipe.py`,
    /// `build_nemo_hybrid_pattern`: "else `-` (MLP-only)"), and attention otherwise.
    pub(crate) fn experts_become(&mut self, asked: Option<Mixer>) -> Result<(), Finding> {
        let places = self.layers_with(Mixer::Moe).len();
        let in_suffix = self.features.mtp.as_ref().is_some_and(|mtp| mtp.value.layer.has(Mixer::Moe));
        if places == 0 && !in_suffix {
            return Ok(());
        }
        let usual = if self.mlp.is_some() { Mixer::Mlp } else { Mixer::Attention };
        let instead = asked.unwrap_or(usual);
        let (table, described) = match instead {
            Mixer::Mlp => ("mlp", self.mlp.is_some()),
            _ => ("attention", self.attention.is_some()),
        };
        if asked.is_some() && !described {
            let message = format!("E cannot become {table}: recipe `{}` has no `[{table}]`", self.name.terminal());
            return Err(Finding::error("features/unknown", Blame::Usage, "moe", message));
        }
        replace(self, Mixer::Moe, instead);
        let (what, other) = match instead {
            Mixer::Mlp => ("MLP", "attention"),
            _ => ("attention", "mlp"),
        };
        let message = format!("{places} E layers became {what}: MoE is off, so E has no experts to route to");
        let note = Finding::note("pattern/e-without-moe", Blame::Recipe, "pattern", message);
        self.notes.push(note.hint(format!("`--without moe={other}` makes them {other}; a `[moe]` table keeps them")));
        Ok(())
    }

    /// How many attention blocks of a layer have a sparse indexer.
    pub fn indexers_of(&self, layer: usize) -> u64 {
        let Some(dsa) = self.features.dsa() else { return 0 };
        let attention =
            |layers: &[Layer]| layers.iter().flat_map(Layer::mixers).filter(|m| *m == Mixer::Attention).count() as u64;
        let first = attention(&self.layers[..layer]);
        (first..first + attention(&self.layers[layer..=layer])).filter(|ordinal| dsa.indexes(*ordinal)).count() as u64
    }

    /// Every logical tensor, in the order of the forward pass.
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut out = Emitter::new(&self.precision, &self.optimizer, self.adapters());
        edges::front(self, &mut out);
        self.shared.iter().for_each(|k| k.shared_tensors(self.hidden, self.norm, &mut out));
        let mut attention_ordinal = Some(0);
        for (index, layer) in self.layers.iter().enumerate() {
            self.layer_tensors(
                layer,
                Place::Layer(index),
                &format!("layers.{index}"),
                &mut attention_ordinal,
                &mut out,
            );
        }
        edges::back(self, &mut out);
        self.mtp_tensors(&mut out);
        out.tensors
    }

    fn layer_tensors(&self, layer: &Layer, place: Place, prefix: &str, ordinal: &mut Option<u64>, out: &mut Emitter) {
        for (index, block) in layer.blocks.iter().enumerate() {
            let first = block.mixers[0];
            let twin = layer.blocks[..index].iter().filter(|b| b.mixers[0] == first).count();
            let suffix = if twin == 0 { String::new() } else { format!("_{}", twin + 1) };
            out.stand(place, first.family(), format!("{prefix}.{}{suffix}", first.table()));
            let place_of_norm = self.norm_place.of(layer);
            self.norm_before(place_of_norm, first, out);
            self.features.mhc().into_iter().for_each(|mhc| mhc.tensors(self.hidden, out));
            for mixer in &block.mixers {
                out.stand(place, mixer.family(), format!("{prefix}.{}{suffix}", mixer.table()));
                self.mixer_tensors(*mixer, *ordinal, out);
                if *mixer == Mixer::Attention {
                    *ordinal = ordinal.map(|o| o + 1);
                }
            }
            out.stand(place, first.family(), format!("{prefix}.{}{suffix}", first.table()));
            self.norm_behind(place_of_norm, out);
        }
        if let Some(engram) = self.features.engram().filter(|_| layer.has_engram) {
            out.stand(place, Family::Edge, prefix);
            engram.tensors(self.hidden, out);
        }
        if layer.is_partial {
            out.stand(place, layer.blocks[0].mixers[0].family(), prefix);
            Depths::tensors(self.hidden, out);
        }
    }

    /// A shared block brings its own.
    fn norm_before(&self, at: NormPlace, mixer: Mixer, out: &mut Emitter) {
        if at != NormPlace::After && mixer != Mixer::Shared {
            out.norm("norm", Surface::Norm, self.norm, self.hidden);
        }
    }

    fn norm_behind(&self, at: NormPlace, out: &mut Emitter) {
        if at != NormPlace::Before {
            out.norm("post_norm", Surface::Norm, self.norm, self.hidden);
        }
    }

    /// Tensors of one mixer; its table is there because the recipe is valid.
    fn mixer_tensors(&self, mixer: Mixer, attention_ordinal: Option<u64>, out: &mut Emitter) {
        match mixer {
            Mixer::Attention => {
                if let Some(attention) = self.attention() {
                    attention.tensors(self.hidden, self.norm, out);
                    self.indexer_tensors(&attention, attention_ordinal, out);
                }
            }
            Mixer::Moe => self.moe.iter().for_each(|k| k.tensors(self.hidden, out)),
            Mixer::Mamba => self.mamba.iter().for_each(|k| k.tensors(self.hidden, out)),
            Mixer::Recurrent => self.recurrent.iter().for_each(|k| k.tensors(self.hidden, out)),
            Mixer::GatedDelta => self.gated_delta.iter().for_each(|k| k.tensors(self.hidden, out)),
            Mixer::Linear => self.linear.iter().for_each(|k| k.tensors(self.hidden, out)),
            Mixer::Mlp => self.mlp.iter().for_each(|k| k.tensors(self.hidden, out)),
            Mixer::Shared => self.shared.iter().for_each(|k| k.tensors(self.hidden, out)),
        }
    }

    fn indexer_tensors(&self, attention: &Attention, ordinal: Option<u64>, out: &mut Emitter) {
        let covered = |dsa: &&Dsa| ordinal.is_some_and(|o| dsa.indexes(o));
        let Some(dsa) = self.features.dsa().filter(covered) else { return };
        let query_width = match &attention.kind {
            AttentionKind::Mla(mla) => mla.q_rank.unwrap_or(self.hidden),
            AttentionKind::Gqa { .. } => self.hidden,
        };
        dsa.tensors(query_width, self.hidden, out);
    }

    fn mtp_tensors(&self, out: &mut Emitter) {
        let Some(mtp) = self.features.mtp() else { return };
        for depth in 0..mtp.stacks() as usize {
            let prefix = format!("mtp.{depth}");
            let place = Place::Mtp(depth);
            out.stand(place, Family::Edge, prefix.clone());
            out.norm("embedding_norm", Surface::Norm, self.norm, self.hidden);
            out.norm("hidden_norm", Surface::Norm, self.norm, self.hidden);
            let join = vec![Dim::of(Unit::Channel, self.hidden, 1), Dim::whole(2 * self.hidden)];
            out.add("join.weight", Surface::PredictionJoin, Role::Matrix, join);
            // A suffix never carries the sparse indexer, so its attention has no ordinal.
            let mut ordinal = None;
            self.layer_tensors(&mtp.layer, place, &prefix, &mut ordinal, out);
            out.stand(place, Family::Edge, prefix);
            out.norm("final_norm", Surface::Norm, self.norm, self.hidden);
        }
    }

    /// Tensors of one block of a mixer, as every layer that has one repeats them; attention with its indexer,
    /// where some layer has one.
    pub fn block_tensors(&self, mixer: Mixer) -> Vec<Tensor> {
        let mut out = Emitter::new(&self.precision, &self.optimizer, self.adapters());
        // The first layer may lack what others have.
        out.stand(Place::Layer(1), mixer.family(), format!("layers.1.{}", mixer.table()));
        let place_of_norm = self.norm_place.of(&Layer::of(&[mixer]));
        self.norm_before(place_of_norm, mixer, &mut out);
        self.features.mhc().into_iter().for_each(|mhc| mhc.tensors(self.hidden, &mut out));
        let indexed = self.features.dsa().map(|dsa| dsa.layers.first().copied().unwrap_or(0));
        self.mixer_tensors(mixer, indexed, &mut out);
        self.norm_behind(place_of_norm, &mut out);
        out.tensors
    }

    /// Tensors outside blocks: tables, final norms, head, and what joins a prediction depth to the last.
    pub fn edge_tensors(&self) -> Vec<Tensor> {
        let bare = Recipe { layers: Vec::new(), ..self.clone() };
        let is_of_a_block = |tensor: &Tensor| matches!(tensor.place, Place::Mtp(_)) && tensor.family != Family::Edge;
        bare.tensors().into_iter().filter(|tensor| !is_of_a_block(tensor)).collect()
    }

    /// Blocks in order with the layer each stands in, for reports that name a block.
    pub fn blocks(&self) -> impl Iterator<Item = (usize, &Block)> {
        self.layers.iter().enumerate().flat_map(|(i, l)| l.blocks.iter().map(move |b| (i, b)))
    }
}
