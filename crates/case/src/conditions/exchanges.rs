//! Libraries that move tokens to their experts: what Megatron's flex dispatcher and each backend ask for
//! (`transformer/moe/token_dispatcher.py` MoEFlexTokenDispatcher; deepseek-ai/DeepEP, and its branch `hybrid-ep`).

use super::{quoted, refuse};
use crate::options::{Dispatch, Options};
use diag::{Blame, Finding};
use hardware::Cluster;
use layout::Layout;
use recipe::{Mixer, Recipe};

const WORD: &str = "--moe-token-dispatcher-type";

pub fn unmet(recipe: &Recipe, layout: &Layout, options: &Options, on: Option<&Cluster>) -> Vec<Finding> {
    if !recipe.uses(Mixer::Moe) {
        return Vec::new();
    }
    match options.kernels.dispatch {
        Dispatch::AllToAll | Dispatch::AllGather => Vec::new(),
        Dispatch::DeepEp => deepep(layout, on).into_iter().collect(),
        Dispatch::HybridEp => hybridep(recipe, layout, on),
    }
}

/// Ranks that exchange tokens, which stand one behind the other.
fn members(layout: &Layout) -> u64 {
    layout.ep.get() * layout.etp.get()
}

/// Groups that DeepEP has settings for (deepseek-ai/DeepEP, `deep_ep/buffers/legacy.py` get_dispatch_config).
const DEEPEP: [u64; 12] = [2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160];

/// Whether a cluster's nodes share their fabric with others, as trays of a rack do.
pub fn is_rack(cluster: &Cluster) -> bool {
    cluster.device.island_devices > cluster.device.devices_per_node
}

fn deepep(layout: &Layout, on: Option<&Cluster>) -> Option<Finding> {
    let members = members(layout);
    let refused = |message: &str, quote: &'static str, hint: &'static str| {
        Some(refuse("megatron/deepep", WORD, message).quote(quote).hint(hint))
    };
    let hint = "--moe-token-dispatcher-type alltoall, or another --ep";
    if members == 1 {
        return refused("no token leaves its rank: ep is 1", "DeepEP dispatcher requires TPxEP > 1", hint);
    }
    if !DEEPEP.contains(&members) {
        let message = format!("DeepEP has no setting for {members} ranks");
        return refused(&message, "Unsupported number of EP ranks", hint);
    }
    let rack = on.filter(|cluster| is_rack(cluster) && members > cluster.devices_per_node)?;
    let message = format!(
        "{members} ranks stand on several trays of {}, which DeepEP does not reach over NVLink",
        rack.device.name
    );
    // `transformer/transformer_config.py` moe_flex_dispatcher_backend.
    let quote = "Currently only \"hybridep\" backend supports the MNNVL case.";
    refused(&message, quote, "--moe-flex-dispatcher-backend hybridep")
}

/// HybridEP's own conditions (`csrc/hybrid_ep/config.cuh`, `hybrid_ep.cu`, `executor/executor.cu`).
fn hybridep(recipe: &Recipe, layout: &Layout, on: Option<&Cluster>) -> Vec<Finding> {
    /// Ranks that a kernel's arguments have room for.
    const MOST_RANKS: u64 = 72;
    /// Tokens of a chunk, and bytes that the copy engine moves at least.
    const CHUNK: u64 = 64;
    const MOVED: u64 = 16;
    let Some(moe) = &recipe.moe else { return Vec::new() };
    let members = members(layout);
    let (width, tokens) = (moe.latent.unwrap_or(recipe.hidden), layout.tokens_per_microbatch_per_rank());
    let rest = tokens % CHUNK * members * 4;
    let asked = [
        (
            on.is_some_and(|cluster| members > cluster.island_devices()),
            "ep",
            format!("{members} ranks do not stand in one NVLink domain: a plain build of HybridEP knows one"),
            "Inter-node communication is not supported. Please rebuild with HYBRID_EP_MULTINODE flag",
            "a smaller --ep, or --moe-token-dispatcher-type alltoall",
        ),
        (
            members > MOST_RANKS && on.is_none_or(|cluster| members <= cluster.island_devices()),
            "ep",
            format!("{members} ranks of one domain are more than the {MOST_RANKS} that HybridEP has room for"),
            "#define MAX_NUM_OF_RANKS_PER_NODE 72",
            "a smaller --ep",
        ),
        (
            !width.is_multiple_of(16),
            WORD,
            format!("tokens are {width} wide, no multiple of 16"),
            "valid &= (hidden_dim % 16 == 0); // Make TMA work.",
            "--moe-token-dispatcher-type alltoall",
        ),
        (
            !(moe.experts * layout.etp.get()).is_multiple_of(4),
            WORD,
            format!("{} experts of a domain are no multiple of 4", moe.experts),
            "valid &= ((num_of_experts_per_rank * num_of_ranks_per_node) % 4 == 0);",
            "--moe-token-dispatcher-type alltoall",
        ),
        (
            !rest.is_multiple_of(MOVED),
            "seq",
            format!("the last {} of a rank's {tokens} tokens make {rest} bytes of places", tokens % CHUNK),
            "TMA 16B alignment error",
            "a --seq and --mbs that make a multiple of 64 tokens",
        ),
    ];
    quoted("megatron/hybridep", asked)
}

/// Groups of HybridEP that do not divide an NVLink domain: ranks have to be placed so that none lies in two, as prices
/// take it that none does (`deep_ep/hybrid_ep_buffer.py`).
pub fn placement(recipe: &Recipe, layout: &Layout, options: &Options, on: &Cluster) -> Option<Finding> {
    let (members, domain) = (members(layout), on.island_devices());
    let is_hybrid = options.kernels.dispatch == Dispatch::HybridEp && recipe.uses(Mixer::Moe);
    if !is_hybrid || members > domain || domain.is_multiple_of(members) || on.islands() == 1 {
        return None;
    }
    let used = domain / members * members;
    let message =
        format!("groups of {members} ranks do not divide NVLink domains of {domain}: HybridEP finds fewer peers");
    let finding = Finding::warning("megatron/hybridep", Blame::Layout, "ep", message);
    let finding = finding.quote("should be divisible by the number of ranks per node");
    Some(
        finding
            .hint(format!("place {used} ranks in each domain, as the price has it, or an --ep that divides {domain}")),
    )
}

#[cfg(test)]
mod tests {
    use super::super::tests::{refused_on, warnings_on};

    const FLEX: &str = "--engine-args '--moe-token-dispatcher-type flex";

    #[track_caller]
    fn one(words: &str, on: &str, rule: &'static str, object: &str) {
        assert_eq!(refused_on(words, on), [(rule, object.to_string())], "{words}");
    }

    #[test]
    fn megatron_sends_tokens_by_deepep_where_it_can() {
        let with = |words: &str| format!("{words} {FLEX}'");
        let (h200, rule) = ("2x8xH200", "megatron/deepep");
        assert_eq!(refused_on(&with("qwen3-30b-a3b --ep 8"), h200), []);
        assert_eq!(refused_on(&with("qwen3-30b-a3b --ep 16"), h200), []);
        one(&with("qwen3-30b-a3b --ep 1"), h200, rule, super::WORD);
        assert_eq!(refused_on(&with("llama3-8b"), h200), []);
        // A tray of GB200 has four.
        assert_eq!(refused_on(&with("qwen3-30b-a3b --ep 4"), "16xGB200"), []);
        one(&with("qwen3-30b-a3b --ep 8"), "16xGB200", rule, super::WORD);
    }

    /// A rack has 72 of them, in which 64 fit once and 8 nine times.
    #[test]
    fn groups_are_placed_inside_domains() {
        let warned = |ep: u64, on: &str| {
            let words = format!("deepseek-v3 --ep {ep} --seq 4096 {FLEX} --moe-flex-dispatcher-backend hybridep'");
            let hints = warnings_on(&words, on).into_iter().filter(|f| f.rule == "megatron/hybridep");
            hints.map(|f| f.hint.unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(
            warned(64, "128xGB200"),
            ["place 64 ranks in each domain, as the price has it, or an --ep that divides 72"]
        );
        assert_eq!(warned(64, "64xGB200"), [""; 0]);
        assert_eq!(warned(8, "144xGB200"), [""; 0]);
    }

    #[test]
    fn megatron_sends_tokens_by_hybridep_where_it_can() {
        let with = |words: &str| format!("{words} {FLEX} --moe-flex-dispatcher-backend hybridep'");
        let rule = "megatron/hybridep";
        assert_eq!(refused_on(&with("qwen3-30b-a3b --ep 8"), "16xGB200"), []);
        assert_eq!(refused_on(&with("deepseek-v3 --ep 64 --seq 4096"), "64xGB200"), []);
        assert_eq!(refused_on(&with("qwen3-30b-a3b --ep 8"), "2x8xH200"), []);
        one(&with("qwen3-30b-a3b --ep 16"), "2x8xH200", rule, "ep");
        one(&with("deepseek-v3 --ep 128 --seq 4096"), "128xGB200", rule, "ep");
        assert_eq!(refused_on(&with("qwen3-30b-a3b --ep 8 --seq 4097 --mbs 1"), "16xGB200"), []);
        one(&with("mixtral-8x7b --ep 2 --seq 4097 --mbs 1"), "2xGB200", rule, "seq");
        assert_eq!(refused_on(&with("llama3-8b"), "16xGB200"), []);
    }
}
