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
        if let Some(factor) = self.capacity_factor {
            toml.float("capacity_factor", factor);
        }
        if let Some(shared) = &self.shared {
            toml.table("moe.shared");
            toml.int("ffn", shared.ffn);
            toml.word_unless("activation", shared.activation.name(), self.activation.name());
            toml.flag_unless("gate", shared.gate, false);
            toml.flag_unless("bias", shared.bias, false);
        }
        let default = Router::default();
        if self.router != default {
            toml.table("moe.router");
            toml.word_unless("score", self.router.score.name(), default.score.name());
            toml.word_unless("dtype", self.router.dtype.name(), default.dtype.name());
            toml.flag_unless("bias", self.router.bias, false);
            toml.flag_unless("expert_bias", self.router.expert_bias, false);
            if let Some(coefficient) = self.router.aux_loss {
                toml.float("aux_loss", coefficient);
            }
        }
    }

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
        Router { score: ScoreFunction::Softmax, dtype: Dtype::Fp32, bias: false, expert_bias: false, aux_loss: None }
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
    };
    section.finish();
    router
}
