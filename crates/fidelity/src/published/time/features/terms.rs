//! Options by the phrases that rows have for them.

use super::super::engine::Family;
use case::Options;
use case::options::{AttentionKernel, CrossEntropy, Dispatch, Elementwise, EpOverlap, TpOverlap};

/// One option: phrases that name it, between bars, and what saying or denying them sets.
pub(super) struct Term {
    phrases: &'static str,
    pub set: fn(&mut Options, bool, Family),
    /// Whether prose that mentions it means that it ran.
    pub in_prose: bool,
}

impl Term {
    pub fn phrases(&self) -> impl Iterator<Item = &'static str> {
        self.phrases.split('|')
    }
}

/// What is listed only.
const fn listed(phrases: &'static str, set: fn(&mut Options, bool, Family)) -> Term {
    Term { phrases, set, in_prose: false }
}

/// What notes say as well as lists.
const fn noted(phrases: &'static str, set: fn(&mut Options, bool, Family)) -> Term {
    Term { phrases, set, in_prose: true }
}

/// Terms whose phrases contain those of another stand before it.
pub(super) const TERMS: &[Term] = &[
    noted(
        "overlap moe expert parallel comm|expert parallel comm overlap|expert parallel overlap|ep communication overlap|\
         ep comm overlap|ep a2a overlap|moe a2a overlap|a2a overlap|moe comm overlap|ep overlap",
        |o, is_on, _| {
            o.overlap.ep = if is_on { EpOverlap::Microbatches } else { EpOverlap::None };
            o.overlap.delay_wgrad = is_on;
        },
    ),
    noted("tp communication overlap|tp comm overlap|tp overlap|userbuffers|user buffers", |o, is_on, family| {
        o.overlap.tp = match (is_on, family) {
            (true, _) => TpOverlap::Userbuffers,
            (false, Family::Megatron) => TpOverlap::Async,
            (false, _) => TpOverlap::None,
        }
    }),
    noted(
        "dp communication overlap|dp comm overlap|dp overlap|overlap grad reduce|grad reduce overlap",
        |o, is_on, _| {
            (o.overlap.gradients, o.overlap.weights) = (is_on, is_on);
        },
    ),
    noted("overlap param gather|param gather overlap", |o, is_on, _| o.overlap.weights = is_on),
    noted("pp communication overlap|pp comm overlap|pp overlap|p2p overlap|overlap p2p comm", |o, is_on, _| {
        o.overlap.p2p = is_on;
    }),
    noted("communication overlap|comm overlap", all_overlap),
    listed("async tp|asynctp|asynchronous tp", |o, is_on, _| {
        o.overlap.tp = if is_on { TpOverlap::Async } else { TpOverlap::None };
    }),
    listed("vanilla tp", |o, _, _| o.overlap.tp = TpOverlap::None),
    listed("overlap", all_overlap),
    noted("hybridep|hybrid ep", |o, is_on, _| {
        o.kernels.dispatch = if is_on { Dispatch::HybridEp } else { Dispatch::AllToAll };
    }),
    noted("deepep|deep ep", |o, is_on, _| {
        o.kernels.dispatch = if is_on { Dispatch::DeepEp } else { Dispatch::AllToAll };
    }),
    listed(
        "all to all dispatcher|alltoall dispatcher|a2a dispatcher|all to all dispatch|alltoall|all to all",
        |o, is_on, _| {
            if is_on {
                o.kernels.dispatch = Dispatch::AllToAll;
            }
        },
    ),
    listed("allgather dispatcher|all gather dispatcher", |o, is_on, _| {
        if is_on {
            o.kernels.dispatch = Dispatch::AllGather;
        }
    }),
    listed("torch compiled|torch compile|compiled|compile", |o, is_on, _| {
        o.kernels.elementwise = if is_on { Elementwise::Compiled } else { Elementwise::Eager };
    }),
    listed("eager", |o, is_on, _| {
        if is_on {
            o.kernels.elementwise = Elementwise::Eager;
        }
    }),
    noted("attention backend unfused|unfused attention|attention unfused", |o, is_on, _| {
        if is_on {
            o.kernels.attention = AttentionKernel::Unfused;
        }
    }),
    listed(
        "flash attention 3|flashattention 3|flashattention3|flash attn 3|fa3|cudnn attention|cudnn|fused attention",
        |o, is_on, _| {
            if is_on {
                o.kernels.attention = AttentionKernel::Flash3;
            }
        },
    ),
    listed(
        "sdpa flash attention|torchsdpa|sdpa|flash attention 2|flashattention 2|flashattention2|flash attn 2|fa2",
        |o, is_on, _| {
            if is_on {
                o.kernels.attention = AttentionKernel::Flash2;
            }
        },
    ),
    // Which flash kernel is not said: the engine's own, and the second where it had none.
    noted("flash attention|flashattention|flash attn", |o, is_on, _| match is_on {
        true if o.kernels.attention == AttentionKernel::Unfused => o.kernels.attention = AttentionKernel::Flash2,
        true => {}
        false => o.kernels.attention = AttentionKernel::Unfused,
    }),
    noted(
        "te fused cross entropy|cross entropy loss fusion|cross entropy fusion|fused cross entropy",
        |o, is_on, family| {
            o.kernels.cross_entropy = match (is_on, family) {
                (false, _) => CrossEntropy::Eager,
                (true, Family::Megatron) => CrossEntropy::TransformerEngine,
                (true, _) => CrossEntropy::Native,
            }
        },
    ),
    noted("permute fusion", |o, is_on, _| o.kernels.permute_fusion = is_on),
    // Experts run as grouped products everywhere here; weights travel in their own format, whatever they are
    // multiplied in; the rest is said by the row's own fields, or costs no time that is priced.
    listed(
        "grouped gemm|groupedgemm|fp8 all gather|float8 all gather|fp8 allgather|sequence parallelism|sequence parallel|\
         distributed optimizer|router fusion|mock data|synthetic data|force balanced|token drop|packed sequences|\
         dropless|hsdp|fsdp2|fsdp|ddp|gqa|rope fusion|bias activation fusion|gradient accumulation fusion",
        |_, _, _| {},
    ),
];

/// Denied, nothing runs beside anything; said, what does is the engine's own affair.
fn all_overlap(options: &mut Options, is_on: bool, _: Family) {
    if !is_on {
        let overlap = &mut options.overlap;
        (overlap.gradients, overlap.weights, overlap.p2p) = (false, false, false);
        (overlap.tp, overlap.ep) = (TpOverlap::None, EpOverlap::None);
    }
}

/// Whether a word beside a term adds nothing to it.
pub(super) fn is_passed(word: &str) -> bool {
    const PASSED: &str = "with and or but the a via using te transformer engine dispatcher dispatch backend 1f1b on \
                          enabled enable true kernels kernel float8 fp8 linear precomputed scale fused layers full";
    PASSED.split_whitespace().any(|passed| passed == word)
}

/// Flags that rows of Megatron-LM list and that move no step, or say what the reader has anyway.
pub(super) const STANDING: [(&str, &str); 8] = [
    ("transformer-impl", "transformer_engine"),
    ("moe-grouped-gemm", ""),
    ("no-load-optim", ""),
    ("main-grads-dtype", "fp32"),
    ("num-distributed-optimizer-instances", "1"),
    ("grad-reduce-in-bf16", ""),
    ("use-distributed-optimizer", ""),
    // Weights are gathered in their own format here.
    ("fp8-param-gather", ""),
];
