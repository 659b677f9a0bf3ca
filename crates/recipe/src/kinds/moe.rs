//! `E`: routed experts, optionally with a shared expert and a latent space around the bank.

use super::{Activation, Bias, Emitter};
use crate::limits;
use crate::tensor::{Dim, Dtype, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;
use units::named;

named! {
    /// How expert scores are normalised before the top-k choice.
    pub enum ScoreFunction {
        /// Over all experts.
        Softmax = "softmax",
        /// Each expert by itself.
        Sigmoid = "sigmoid",
    }
}

named! {
    /// Over what the balancing loss counts tokens.
    pub enum BalanceOver {
        /// All tokens of a microbatch on a rank: Megatron's `aux_loss`, transformers' `load_balancing_loss_func`.
        Batch = "batch",
        /// Each sequence by itself: DeepSeek's.
        Sequence = "sequence",
    }
}

named! {
    /// How a group of experts is scored where a token goes to some groups only.
    pub enum GroupScore {
        /// By its best expert: DeepSeek-V2.
        Max = "max",
        /// By the sum of its two best: DeepSeek-V3.
        TopTwo = "top2",
    }
}

/// How experts are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Router {
    /// How scores become comparable.
    pub score: ScoreFunction,
    /// Number format the scores are computed in.
    pub dtype: Dtype,
    /// A learned bias on the scores, one an expert: a parameter.
    pub bias: bool,
    /// A balancing bias that no gradient reaches: a buffer, not a parameter.
    pub expert_bias: bool,
    /// Coefficient of the auxiliary balancing loss, if there is one.
    pub aux_loss: Option<f64>,
    /// Over what that loss counts tokens.
    pub aux_loss_over: BalanceOver,
    /// Coefficient of the loss that keeps router logits small, if there is one.
    pub z_loss: Option<f64>,
    /// Whether the chosen scores are divided by their sum. Under softmax this is the same as a softmax
    /// over the chosen logits alone (Megatron without `--moe-router-pre-softmax`).
    pub normalize: bool,
    /// Factor on the weights of the chosen experts (`routed_scaling_factor`).
    pub scaling: f64,
    /// Groups that experts stand in; one where there are none.
    pub groups: u64,
    /// Groups that a token's experts come from.
    pub group_top_k: u64,
    /// How a group is scored.
    pub group_score: GroupScore,
    /// Step of the balancing bias, with `expert_bias`; the engine's own where there is none.
    pub bias_update_rate: Option<f64>,
}

/// An expert every token passes through.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedExpert {
    /// Inner width.
    pub ffn: u64,
    /// Function between the projections; may differ from the routed experts'.
    pub activation: Activation,
    /// Whether a scalar gate a token weighs it.
    pub gate: bool,
    /// Whether its projections add biases.
    pub bias: bool,
}

/// The routed experts of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Moe {
    /// Routed experts a layer.
    pub experts: u64,
    /// Experts a token goes to.
    pub top_k: u64,
    /// Inner width of one expert.
    pub ffn: u64,
    /// Function between the projections.
    pub activation: Activation,
    /// Whether expert projections add biases.
    pub bias: bool,
    /// Width experts work in, when it is not the hidden width; projections lead in and out.
    pub latent: Option<u64>,
    /// Whether those projections add biases.
    pub latent_bias: bool,
    /// Tokens an expert accepts, over the balanced share; dropless when there is none.
    pub capacity_factor: Option<f64>,
    /// An expert that every token passes besides the routed ones.
    pub shared: Option<SharedExpert>,
    /// How experts are chosen.
    pub router: Router,
}

impl Moe {
    /// A dropless bank without extras: no biases, no latent space, no shared expert.
    pub fn plain(experts: u64, top_k: u64, ffn: u64, activation: Activation) -> Moe {
        Moe {
            experts,
            top_k,
            ffn,
            activation,
            bias: false,
            latent: None,
            latent_bias: false,
            capacity_factor: None,
            shared: None,
            router: Router::default(),
        }
    }

    /// The most copies of tokens that one of `ep` ranks can receive, over its even share: every token of every rank, on
    /// as many of its experts as a token chooses. One where a capacity factor gives every expert the same slots.
    pub fn most_overload(&self, ep: u64) -> f64 {
        let chosen = self.top_k.min(self.experts / ep.max(1));
        match self.capacity_factor {
            None if chosen > 0 => (ep * chosen) as f64 / self.top_k as f64,
            _ => 1.0,
        }
    }

    /// Reads `[moe]` with `[moe.shared]` and `[moe.router]`.
    pub(crate) fn read(mut section: Section) -> Option<Moe> {
        let experts = section.count("experts", limits::EXPERTS);
        let top_k = section.count("top_k", limits::EXPERTS);
        let ffn = section.count("ffn", limits::WIDTH);
        let activation = section.choice("activation", Activation::ALL, Activation::SwiGlu);
        let bias = section.flag_or("bias", false);
        let latent = section.optional_count("latent", limits::WIDTH);
        let latent_bias = section.flag_or("latent_bias", false);
        let capacity_factor = section.positive("capacity_factor");
        let shared = section.section("shared").and_then(|s| read_shared(s, activation));
        let router = read_router(section.section("router"));
        if let (Some(experts), Some(top_k)) = (experts, top_k)
            && top_k > experts
        {
            let message = format!("`top_k` {top_k} chooses among only {experts} experts");
            let finding = Finding::error("moe/top-k", Blame::Recipe, "moe.top_k", message);
            section.report("top_k", finding.hint(format!("top_k may be 1 to {experts}")));
        }
        section.finish();
        Some(Moe {
            experts: experts?,
            top_k: top_k?,
            ffn: ffn?,
            activation,
            bias,
            latent,
            latent_bias,
            capacity_factor,
            shared,
            router,
        })
    }

    /// What is wrong with the groups that the router chooses among.
    pub(crate) fn group_finding(&self) -> Option<Finding> {
        let Router { groups, group_top_k, group_score, .. } = self.router;
        let refuse = |key: &str, message: String| {
            Some(Finding::error("moe/groups", Blame::Recipe, format!("moe.router.{key}"), message))
        };
        if !self.experts.is_multiple_of(groups) {
            let finding = refuse("groups", format!("{} experts do not stand in {groups} equal groups", self.experts))?;
            let groups_may_be = diag::list(&units::divisors(self.experts));
            return Some(finding.hint(format!("experts may be a multiple of {groups}, or groups {groups_may_be}")));
        }
        let each = self.experts / groups;
        if group_top_k > groups {
            let finding = refuse("group_top_k", format!("`group_top_k` {group_top_k} chooses among {groups} groups"))?;
            return Some(finding.hint(format!("group_top_k may be 1 to {groups}")));
        }
        let within = group_top_k.saturating_mul(each);
        // Without groups `moe/top-k` says it.
        if groups > 1 && self.top_k > within {
            let message = format!("`top_k` {} exceeds the {each} experts each of {group_top_k} groups", self.top_k);
            return Some(refuse("group_top_k", message)?.hint(format!("top_k may be 1 to {within}")));
        }
        if groups > 1 && group_score == GroupScore::TopTwo && each < 2 {
            return refuse("group_score", "a group of one expert has no two best".to_string());
        }
        None
    }

    /// What is wrong with a capacity factor: at `experts / top_k` every expert has room for every token, and
    /// above it there is room that nothing can fill.
    pub(crate) fn capacity_finding(&self) -> Option<Finding> {
        let factor = self.capacity_factor?;
        let most = self.experts as f64 / self.top_k as f64;
        if factor <= most {
            return None;
        }
        let message = format!(
            "`capacity_factor` {factor} makes room for more tokens than there are: at {most} each of {} experts takes every token, since a token chooses {}",
            self.experts, self.top_k
        );
        let finding = Finding::error("moe/capacity", Blame::Recipe, "moe.capacity_factor", message);
        Some(finding.hint(format!("capacity_factor may be up to {most}; left out, no token is dropped")))
    }

    /// Writes `[moe]` and its tables.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.table("moe");
        toml.int("experts", self.experts);
        toml.int("top_k", self.top_k);
        toml.int("ffn", self.ffn);
        toml.word_unless("activation", self.activation.name(), Activation::SwiGlu.name());
        toml.flag_unless("bias", self.bias, false);
        toml.some_int("latent", self.latent);
        toml.flag_unless("latent_bias", self.latent_bias, false);
        toml.some_float("capacity_factor", self.capacity_factor);
        if let Some(shared) = &self.shared {
            toml.table("moe.shared");
            toml.int("ffn", shared.ffn);
            toml.word_unless("activation", shared.activation.name(), self.activation.name());
            toml.flag_unless("gate", shared.gate, false);
            toml.flag_unless("bias", shared.bias, false);
        }
        self.router.write(toml);
    }
}

impl Router {
    fn write(&self, toml: &mut Toml) {
        let default = Router::default();
        toml.optional_table("moe.router");
        toml.word_unless("score", self.score.name(), default.score.name());
        toml.word_unless("dtype", self.dtype.name(), default.dtype.name());
        toml.flag_unless("bias", self.bias, false);
        toml.flag_unless("expert_bias", self.expert_bias, false);
        toml.some_float("bias_update_rate", self.bias_update_rate);
        toml.some_float("aux_loss", self.aux_loss);
        toml.word_unless("aux_loss_over", self.aux_loss_over.name(), default.aux_loss_over.name());
        toml.some_float("z_loss", self.z_loss);
        toml.flag_unless("normalize", self.normalize, true);
        toml.float_unless("scaling", self.scaling, 1.0);
        toml.int_unless("groups", self.groups, 1);
        toml.int_unless("group_top_k", self.group_top_k, 1);
        toml.word_unless("group_score", self.group_score.name(), default.group_score.name());
    }
}

impl Moe {
    /// Its tensors, behind the block's norm. A bank is one tensor whose first unit is the expert.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let experts = || Dim::of(Unit::Expert, self.experts, 1);
        out.add("router.weight", Surface::Router, Role::Router, vec![Dim::whole(self.experts), Dim::whole(hidden)]);
        if self.router.bias {
            out.add("router.bias", Surface::Router, Role::Router, vec![Dim::whole(self.experts)]);
        }
        let width = self.latent.unwrap_or(hidden);
        let into = self.activation.in_dim(self.ffn);
        let columns = Dim::of(Unit::Channel, self.ffn, 1);
        let (fc1, fc2) = (Surface::ExpertIn, Surface::ExpertOut);
        let weight = vec![experts(), into.clone(), Dim::whole(width)];
        out.add_experts("experts.fc1.weight", fc1, Role::Expert, weight, self.top_k);
        if self.bias {
            out.add_experts("experts.fc1.bias", fc1, Role::Bias, vec![experts(), into], self.top_k);
        }
        let weight = vec![experts(), Dim::whole(width), columns];
        out.add_experts("experts.fc2.weight", fc2, Role::Expert, weight, self.top_k);
        if self.bias {
            out.add_experts("experts.fc2.bias", fc2, Role::Bias, vec![experts(), Dim::whole(width)], self.top_k);
        }
        if let Some(latent) = self.latent {
            let bias = Bias::from(self.latent_bias);
            let (down, up) = (Dim::whole(latent), Dim::whole(hidden));
            out.linear("latent_in", Surface::ExpertLatent, Role::Matrix, down.clone(), up.clone(), bias);
            out.linear("latent_out", Surface::ExpertLatent, Role::Matrix, up, down, bias);
        }
        if let Some(shared) = &self.shared {
            shared.tensors(hidden, out);
        }
    }
}

impl SharedExpert {
    fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let into = self.activation.in_dim(self.ffn);
        let columns = Dim::of(Unit::Channel, self.ffn, 1);
        let bias = Bias::from(self.bias);
        out.linear("shared.fc1", Surface::SharedExpertIn, Role::Matrix, into, Dim::whole(hidden), bias);
        out.linear("shared.fc2", Surface::SharedExpertOut, Role::Matrix, Dim::whole(hidden), columns, bias);
        if self.gate {
            let gate = vec![Dim::whole(1), Dim::whole(hidden)];
            out.add("shared.gate.weight", Surface::SharedExpertGate, Role::Router, gate);
        }
    }
}

impl Default for Router {
    /// What most published models do; every field can be said in `[moe.router]`.
    fn default() -> Router {
        Router {
            score: ScoreFunction::Softmax,
            dtype: Dtype::Fp32,
            bias: false,
            expert_bias: false,
            aux_loss: None,
            aux_loss_over: BalanceOver::Batch,
            z_loss: None,
            normalize: true,
            scaling: 1.0,
            groups: 1,
            group_top_k: 1,
            group_score: GroupScore::TopTwo,
            bias_update_rate: None,
        }
    }
}

fn read_shared(mut section: Section, routed: Activation) -> Option<SharedExpert> {
    let ffn = section.count("ffn", limits::WIDTH);
    let activation = section.choice("activation", Activation::ALL, routed);
    let gate = section.flag_or("gate", false);
    let bias = section.flag_or("bias", false);
    section.finish();
    Some(SharedExpert { ffn: ffn?, activation, gate, bias })
}

fn read_router(section: Option<Section>) -> Router {
    let default = Router::default();
    let Some(mut section) = section else { return default };
    let router = Router {
        score: section.choice("score", ScoreFunction::ALL, default.score),
        dtype: section.choice("dtype", Dtype::ALL, default.dtype),
        bias: section.flag_or("bias", false),
        expert_bias: section.flag_or("expert_bias", false),
        aux_loss: section.positive("aux_loss"),
        aux_loss_over: section.choice("aux_loss_over", BalanceOver::ALL, default.aux_loss_over),
        z_loss: section.positive("z_loss"),
        normalize: section.flag_or("normalize", true),
        scaling: section.positive("scaling").unwrap_or(1.0),
        groups: section.count_or("groups", limits::EXPERTS, 1).unwrap_or(1),
        group_top_k: section.count_or("group_top_k", limits::EXPERTS, 1).unwrap_or(1),
        group_score: section.choice("group_score", GroupScore::ALL, default.group_score),
        bias_update_rate: section.positive("bias_update_rate"),
    };
    let unused = [
        ("bias_update_rate", !router.expert_bias, "steps the balancing bias, and `expert_bias` is off"),
        ("aux_loss_over", router.aux_loss.is_none(), "is about `aux_loss`, and there is none"),
        ("group_score", router.groups == 1, "is about `groups`, and there are none"),
    ];
    for (key, is_unused, why) in unused {
        if is_unused && section.has(key) {
            let object = format!("moe.router.{key}");
            let finding = Finding::error("recipe/unused-key", Blame::Recipe, object, format!("`{key}` {why}"));
            section.report(key, finding.hint("take it out"));
        }
    }
    section.finish();
    router
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every token of every rank, on as many of the rank's experts as it chooses.
    #[test]
    fn a_rank_receives_no_more_than_there_is() {
        let moe = Moe::plain(64, 8, 1024, Activation::SwiGlu);
        assert_eq!([1, 2, 8, 32, 64].map(|ep| moe.most_overload(ep)), [1.0, 2.0, 8.0, 8.0, 8.0]);
        assert_eq!(Moe { capacity_factor: Some(1.2), ..moe }.most_overload(8), 1.0);
    }
}
