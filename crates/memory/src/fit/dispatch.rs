//! What libraries that move tokens to their experts hold outside torch's allocator.

use case::Options;
use case::options::Dispatch;
use layout::Layout;
use recipe::Recipe;
use recipe::kinds::moe::Moe;

/// Bytes that a job's exchange holds on every rank besides what it asks torch for.
pub fn dispatch_bytes(recipe: &Recipe, layout: &Layout, options: &Options) -> u64 {
    let Some(moe) = &recipe.moe else { return 0 };
    let width = moe.latent.unwrap_or(recipe.hidden);
    match options.kernels.dispatch {
        Dispatch::AllToAll | Dispatch::AllGather => 0,
        Dispatch::DeepEp => deepep(layout, width),
        Dispatch::HybridEp => hybridep(moe, layout, width),
    }
}

/// What DeepEP's kernels send from and receive into (deepseek-ai/DeepEP, `csrc/legacy/config.hpp`, with the settings of
/// `deep_ep/buffers/legacy.py` and Megatron's 20 multiprocessors), and its workspace.
fn deepep(layout: &Layout, width: u64) -> u64 {
    const PEERS: u64 = Dispatch::DEEPEP_PEERS;
    const CHANNELS: u64 = 10;
    const WORKSPACE: u64 = 32 << 20;
    let ranks = layout.ep.get() * layout.etp.get();
    let received = match ranks {
        1 => return 0,
        ..=8 => 256,
        96 => 480,
        128 => 560,
        144.. => 720,
        _ => 288,
    };
    // A token with where it came from, and 128 experts, weights and scales at most.
    let token = width * 2 + 8 + 128 * (8 + 4 + 4);
    let near = CHANNELS * ranks.min(PEERS) * received * token;
    let far = if ranks > PEERS { 2 * CHANNELS * (ranks / PEERS) * 128 * (token + 16) } else { 0 };
    near + far + WORKSPACE
}

/// What HybridEP's kernels write into inside one NVLink domain (deepseek-ai/DeepEP, branch `hybrid-ep`,
/// `csrc/hybrid_ep/buffer/intranode.cu` and `extension/allgather.cu`, sizes by `config.cuh`): room for the case that every
/// token of the group comes here. Dispatch and combine share it (`use_shared_buffer`); scales of 8-bit tokens and maps have
/// theirs, although Megatron sends bf16 and gathers maps by itself. Each is memory of its own that peers map, which the
/// driver hands out in pages of 2 MiB.
fn hybridep(moe: &Moe, layout: &Layout, width: u64) -> u64 {
    const LEAST_TOKENS: u64 = 512;
    const CHUNK: u64 = 64;
    const SCALED: u64 = 128;
    const PREPROCESSING_BLOCKS: u64 = 108;
    const FLAG: u64 = 4;
    const STATE: u64 = 8;
    const PAGE: u64 = 2 << 20;
    let ranks = layout.ep.get() * layout.etp.get();
    let experts = moe.experts * layout.etp.get();
    let tokens = layout.tokens_per_microbatch_per_rank().max(LEAST_TOKENS).next_multiple_of(CHUNK);
    let everyones = tokens * ranks;
    let flags = tokens / CHUNK * ranks * FLAG;
    let mapped = [
        everyones * width * 2,
        everyones * experts * 4,
        everyones * (width / SCALED) * 4,
        everyones * experts,
        flags,
        flags,
    ];
    let states = PREPROCESSING_BLOCKS * (ranks + experts / ranks) * STATE;
    mapped.iter().map(|bytes| bytes.next_multiple_of(PAGE)).sum::<u64>() + states
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::{LayoutRequest, check};

    /// Bytes of a built-in model's exchange over so many ranks.
    fn held(name: &str, ep: u64, dispatch: Dispatch, sequence: u64) -> u64 {
        let recipe = recipe::builtin::find(name).unwrap();
        let request =
            LayoutRequest { ep: Some(ep), world: Some(ep), sequence: Some(sequence), ..LayoutRequest::default() };
        let checked = check(&recipe, &request);
        let mut options = Options::of(None, &recipe);
        options.kernels.dispatch = dispatch;
        dispatch_bytes(&checked.recipe, &checked.layout.unwrap(), &options)
    }

    /// 64 ranks of 4096 tokens, 7168 wide, of 256 experts: 3.5 GiB of tokens, 256 MiB of scores, 56 MiB of scales, 64 MiB
    /// of maps, a page each for two times 4096 flags, and 108 states of 8 bytes for 64 ranks and 4 experts.
    #[test]
    fn hybridep_has_room_for_every_token_of_the_group() {
        let mib = 1 << 20;
        let states = 108 * (64 + 4) * 8;
        let wanted = (3584 + 256 + 56 + 64 + 2 + 2) * mib + states;
        assert_eq!(held("deepseek-v3", 64, Dispatch::HybridEp, 4096), wanted);
        // Below 512 tokens it has room for 512.
        let few = held("qwen3-30b-a3b", 8, Dispatch::HybridEp, 128);
        assert_eq!(few, held("qwen3-30b-a3b", 8, Dispatch::HybridEp, 512));
    }

    /// Ten channels of eight peers, 256 places of 2048 elements in bf16, 8 bytes and 128 experts of 16 bytes.
    #[test]
    fn deepep_has_places_for_each_peer() {
        let near = 10 * 8 * 256 * (2048 * 2 + 8 + 128 * 16);
        assert_eq!(held("qwen3-30b-a3b", 8, Dispatch::DeepEp, 4096), near + (32 << 20));
        assert_eq!(held("qwen3-30b-a3b", 1, Dispatch::DeepEp, 4096), 0);
        assert_eq!(held("qwen3-30b-a3b", 8, Dispatch::AllToAll, 4096), 0);
    }
}
