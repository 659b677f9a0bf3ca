//! Feed-forward, experts, Mamba and gated delta nets out of Megatron's flags, with its defaults.

use super::depth::{Depth, Variant};
use super::flags::Flags;
use crate::kinds::gated_delta::GatedDelta;
use crate::kinds::mamba2::Mamba2;
use crate::kinds::mlp::Mlp;
use crate::kinds::moe::{BalanceOver, GroupScore, Moe, Router, ScoreFunction, SharedExpert};
use crate::kinds::{Activation, Norm};
use crate::megatron::Symbol;
use crate::tensor::Dtype;

/// A width that was given, or its default.
fn width(flags: &mut Flags, flag: &str, usual: u64) -> Option<u64> {
    if flags.has(flag) { flags.number(flag) } else { Some(usual) }
}

pub fn activation(flags: &mut Flags) -> Activation {
    if flags.has("--quick-geglu") {
        let said = [flags.positive("--glu-linear-offset"), flags.positive("--activation-func-clamp-value")];
        if said != [Some(1.0), Some(7.0)] {
            let message = "of `--quick-geglu` a recipe knows gpt-oss' alone: offset 1.0, clamped at 7.0";
            flags.refuse("--quick-geglu", message);
        }
        return Activation::SwiGluOai;
    }
    match (flags.has("--swiglu"), flags.has("--squared-relu")) {
        (true, true) => {
            flags.refuse("--swiglu", "`--swiglu` and `--squared-relu` exclude each other");
            Activation::SwiGlu
        }
        (true, false) => Activation::SwiGlu,
        (false, true) => Activation::Relu2,
        (false, false) => Activation::Gelu,
    }
}

/// Four times the hidden width, or two thirds of it rounded to 64 when gated, unless said.
pub fn mlp(flags: &mut Flags, hidden: u64, activation: Activation) -> Option<Mlp> {
    let usual = if activation.is_gated() { (4 * hidden * 2 / 3) / 64 * 64 } else { 4 * hidden };
    let ffn = width(flags, "--ffn-hidden-size", usual.max(1))?;
    Some(Mlp { ffn, activation, bias: !flags.has("--disable-bias-linear"), shift: false })
}

/// The experts, if `--num-experts` was given. Their projections, the router and the latent
/// projections all have biases unless linear biases are disabled (`moe/experts.py`,
/// `moe/router.py`, `moe/moe_layer.py`); shared experts refuse them.
pub fn moe(flags: &mut Flags, ffn: u64, activation: Activation) -> Option<Option<Moe>> {
    if !flags.has("--num-experts") {
        return Some(None);
    }
    let experts = flags.number("--num-experts")?;
    let top_k = width(flags, "--moe-router-topk", 2)?;
    if top_k > experts {
        let message = format!("`--moe-router-topk {top_k}` chooses among only {experts} experts");
        flags.refuse("--moe-router-topk", message);
    }
    let bias = !flags.has("--disable-bias-linear");
    let shared_ffn = flags.number("--moe-shared-expert-intermediate-size");
    if bias && shared_ffn.is_some() {
        let quote = "bias is not supported in the shared experts, ";
        flags.refuse_as("--disable-bias-linear", "shared experts have no biases, and the list keeps them", quote);
    }
    let gate = flags.has("--moe-shared-expert-gate");
    let router = router(flags, bias, top_k)?;
    Some(Some(Moe {
        experts,
        top_k,
        ffn: width(flags, "--moe-ffn-hidden-size", ffn)?,
        activation,
        bias,
        latent: flags.number("--moe-latent-size"),
        latent_bias: bias && flags.has("--moe-latent-size"),
        capacity_factor: capacity(flags),
        shared: shared_ffn.map(|ffn| SharedExpert { ffn, activation, gate, bias: false }),
        router,
    }))
}

/// The router: `core/transformer/moe/router.py` and `moe_utils.py`, `topk_routing_with_score_function`.
fn router(flags: &mut Flags, bias: bool, top_k: u64) -> Option<Router> {
    let sigmoid = flags.text("--moe-router-score-function") == Some("sigmoid");
    let pre_softmax = flags.has("--moe-router-pre-softmax");
    let (aux_loss, aux_loss_over) = balancing(flags);
    let expert_bias = flags.has("--moe-router-enable-expert-bias");
    let groups = width(flags, "--moe-router-num-groups", 1)?;
    let group_top_k = width(flags, "--moe-router-group-topk", 1)?;
    // `group_limited_topk` sums the `topk // group_topk` best experts of a group.
    let group_score = match top_k / group_top_k.max(1) {
        1 if groups > 1 => GroupScore::Max,
        2 => GroupScore::TopTwo,
        best if groups > 1 => {
            let message = format!("a group scored by its {best} best experts has no recipe; it is one or two");
            flags.refuse("--moe-router-group-topk", message);
            return None;
        }
        _ => GroupScore::TopTwo,
    };
    let rate = flags.positive("--moe-router-bias-update-rate");
    Some(Router {
        score: if sigmoid { ScoreFunction::Sigmoid } else { ScoreFunction::Softmax },
        dtype: if flags.text("--moe-router-dtype") == Some("fp32") { Dtype::Fp32 } else { Dtype::Bf16 },
        bias,
        expert_bias,
        aux_loss,
        aux_loss_over,
        z_loss: flags.positive("--moe-z-loss-coeff"),
        // Sigmoid scores are divided by their sum, but that of one expert.
        normalize: if sigmoid { top_k > 1 } else { !pre_softmax },
        scaling: flags.positive("--moe-router-topk-scaling-factor").unwrap_or(1.0),
        groups,
        group_top_k,
        group_score,
        bias_update_rate: rate.filter(|_| expert_bias),
    })
}

/// Coefficient and kind of the balancing loss. The default type is `aux_loss` with a coefficient of zero.
fn balancing(flags: &mut Flags) -> (Option<f64>, BalanceOver) {
    let (kinds, coefficients) = ("--moe-router-load-balancing-type", "--moe-aux-loss-coeff");
    let values: Vec<f64> = flags.list(coefficients).iter().filter_map(|t| t.parse().ok()).collect();
    if values.iter().any(|x| *x < 0.0) {
        flags.refuse(coefficients, format!("`{coefficients}` is below zero"));
    }
    let kinds: Vec<&str> = match flags.list(kinds) {
        [] => vec!["aux_loss"],
        given => given.iter().map(String::as_str).collect(),
    };
    // One coefficient serves every kind, as in `transformer_config.py`.
    let of = |i: usize| *values.get(i).or(values.first()).unwrap_or(&0.0);
    let losses: Vec<(&str, f64)> = kinds.iter().enumerate().map(|(i, k)| (*k, of(i))).collect();
    let active: Vec<(&str, f64)> =
        losses.into_iter().filter(|(kind, c)| *kind != "none" && (*c > 0.0 || *kind == "sinkhorn")).collect();
    match active[..] {
        [] => (None, BalanceOver::Batch),
        [("aux_loss", c)] => (Some(c), BalanceOver::Batch),
        [("seq_aux_loss", c)] => (Some(c), BalanceOver::Sequence),
        [(kind, _)] => {
            let message =
                format!("balancing by `{kind}` has no recipe: a recipe's loss is a microbatch's or a sequence's");
            flags.refuse("--moe-router-load-balancing-type", message);
            (None, BalanceOver::Batch)
        }
        _ => {
            flags.refuse("--moe-router-load-balancing-type", "several balancing losses have no recipe: it has one");
            (None, BalanceOver::Batch)
        }
    }
}

/// The capacity factor; below zero it means none, as in Megatron.
fn capacity(flags: &mut Flags) -> Option<f64> {
    let factor: f64 = flags.text("--moe-expert-capacity-factor")?.parse().ok()?;
    if factor == 0.0 {
        flags.refuse("--moe-expert-capacity-factor", "a capacity of zero accepts no token");
    }
    (factor.is_finite() && factor > 0.0).then_some(factor)
}

/// The Mamba-2 mixer, where the pattern has one.
pub fn mamba(flags: &mut Flags, hidden: u64, depth: &Depth) -> Option<Option<Mamba2>> {
    if !depth.has_symbol(Symbol::Mamba) {
        return Some(None);
    }
    let head_dim = width(flags, "--mamba-head-dim", 64)?;
    if !flags.has("--mamba-num-heads") && !(2 * hidden).is_multiple_of(head_dim) {
        let message = format!("twice hidden {hidden} does not divide into heads of {head_dim}");
        flags.refuse("--mamba-head-dim", message);
        return None;
    }
    let heads = width(flags, "--mamba-num-heads", 2 * hidden / head_dim)?;
    let state = width(flags, "--mamba-state-dim", 128)?;
    let groups = width(flags, "--mamba-num-groups", 8)?;
    if !heads.is_multiple_of(groups) {
        flags.refuse("--mamba-num-groups", format!("{heads} Mamba heads do not share {groups} groups evenly"));
        return None;
    }
    Some(Some(Mamba2::new(heads, head_dim, state, groups)))
}

/// The gated delta net, where the pattern or the attention variant asks for one.
pub fn gated_delta(flags: &mut Flags, norm: Norm, depth: &Depth) -> Option<Option<GatedDelta>> {
    let by_variant = matches!(depth, Depth::Transformer(Variant::GatedDelta));
    if !by_variant && !depth.has_symbol(Symbol::GatedDelta) {
        return Some(None);
    }
    if norm == Norm::LayerNorm {
        flags.refuse("--normalization", "a gated delta net with LayerNorm has no recipe; its norm is RMSNorm");
    }
    let key_heads = width(flags, "--linear-num-key-heads", 16)?;
    let value_heads = width(flags, "--linear-num-value-heads", 32)?;
    if !value_heads.is_multiple_of(key_heads) {
        let message = format!("{value_heads} value heads do not share {key_heads} key heads evenly");
        flags.refuse("--linear-num-value-heads", message);
    }
    Some(Some(GatedDelta {
        key_heads,
        value_heads,
        key_dim: width(flags, "--linear-key-head-dim", 128)?,
        value_dim: width(flags, "--linear-value-head-dim", 128)?,
        conv: width(flags, "--linear-conv-kernel-dim", 4)?,
    }))
}
