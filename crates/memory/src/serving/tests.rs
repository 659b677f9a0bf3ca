//! Serving figures, by hand and by property.

use super::*;
use layout::{LayoutRequest, Needs, settle};
use recipe::kinds::attention::Window;
use recipe::{Feature, builtin};

fn serving_of(recipe: &Recipe, request: LayoutRequest, stage: usize) -> Serving {
    let (layout, _) = settle(&request, Needs::of(recipe)).unwrap();
    let table = OwnershipTable::new(recipe, &layout).unwrap();
    Serving::new(recipe, &layout, &table, stage).unwrap()
}

fn serving(name: &str, tp: u64) -> Serving {
    serving_of(&builtin::find(name).unwrap(), LayoutRequest { tp: Some(tp), ..Default::default() }, 0)
}

fn contiguous(batch: u64, context: u64) -> ServeRequest {
    ServeRequest { substrate: Substrate::Contiguous, ..ServeRequest::usual(batch, context) }
}

fn bytes(serving: &Serving, request: &ServeRequest, item: Item) -> u64 {
    serving.price(request).unwrap().of(item).0
}

#[test]
fn weights_are_the_parameters_in_their_formats() {
    let price = serving("llama3-8b", 1).price(&contiguous(1, 4096)).unwrap();
    let weights = price.of(Item::ReplicatedWeights).0 + price.of(Item::TensorWeights).0;
    assert_eq!(weights, 2 * 8_030_261_248);
    // Norms alone are replicated: two a layer and the last.
    assert_eq!(price.of(Item::ReplicatedWeights).0, 2 * 65 * 4096);
    assert_eq!(price.of(Item::ExpertWeights), Bytes(0));
}

#[test]
fn each_axis_shrinks_its_own_weights_only() {
    let recipe = builtin::find("mixtral-8x7b").unwrap();
    let price = |tp, ep, etp| {
        let request = LayoutRequest { tp: Some(tp), ep: Some(ep), etp: Some(etp), ..Default::default() };
        serving_of(&recipe, request, 0).price(&contiguous(1, 4096)).unwrap()
    };
    let (one, tp, ep) = (price(1, 1, 1), price(2, 1, 1), price(1, 8, 1));
    assert_eq!(tp.of(Item::ReplicatedWeights), one.of(Item::ReplicatedWeights));
    assert_eq!(2 * tp.of(Item::TensorWeights).0, one.of(Item::TensorWeights).0);
    assert_eq!(tp.of(Item::ExpertWeights), one.of(Item::ExpertWeights));
    assert_eq!(8 * ep.of(Item::ExpertWeights).0, one.of(Item::ExpertWeights).0);
    assert_eq!(ep.of(Item::TensorWeights), one.of(Item::TensorWeights));
}

#[test]
fn grouped_query_cache_by_hand() {
    // 2 (keys, values) · 8 heads · 128 · 2 B · 32 layers, a token.
    let token = 2 * 8 * 128 * 2 * 32;
    let request = contiguous(3, 1000);
    assert_eq!(bytes(&serving("llama3-8b", 1), &request, Item::KvCache), 3 * 1000 * token);
    assert_eq!(bytes(&serving("llama3-8b", 4), &request, Item::KvCache), 3 * 1000 * token / 4);
    let fp8 = ServeRequest { cache: Dtype::Fp8, ..request };
    assert_eq!(bytes(&serving("llama3-8b", 1), &fp8, Item::KvCache), 3 * 1000 * token / 2);
}

#[test]
fn latent_cache_by_hand_and_whole_on_every_tensor_rank() {
    let token = (512 + 64) * 2 * 61;
    for tp in [1, 8] {
        assert_eq!(bytes(&serving("deepseek-v3", tp), &contiguous(2, 4096), Item::KvCache), 2 * 4096 * token);
    }
}

#[test]
fn the_mla_feature_changes_the_cache() {
    let nam = builtin::find("nam56r").unwrap();
    let mla = nam.clone().with_features(&[Feature::Mla], &[]).unwrap();
    let cache = |recipe| bytes(&serving_of(recipe, LayoutRequest::default(), 0), &contiguous(1, 4096), Item::KvCache);
    assert_eq!(cache(&nam), 4096 * 13 * 2 * 8 * 64 * 2);
    assert_eq!(cache(&mla), 4096 * 13 * (64 + 64) * 2);
}

#[test]
fn kv_heads_below_tp_are_copied() {
    let request = ServeRequest::usual(4, 4096);
    let at = |tp| bytes(&serving("qwen3-30b-a3b", tp), &request, Item::KvCache);
    assert_eq!(at(8), at(4));
    assert_eq!(at(4) * 4, at(1));
    // The weights that make those heads are copied with them: q / 8, one k and one v head whole.
    let recipe = builtin::find("qwen3-30b-a3b").unwrap();
    let qkv = |tp: u64| (32 / tp + 2) * 128 * 2048 * 2 * 48;
    let others = |tp: u64| (32 * 128 * 2048 * 48 + 2 * recipe.vocab * 2048) * 2 / tp;
    assert_eq!(bytes(&serving("qwen3-30b-a3b", 8), &request, Item::TensorWeights), qkv(8) + others(8));
}

#[test]
fn the_indexer_keeps_its_own_keys() {
    let nam = builtin::find("nam56r").unwrap().with_features(&[Feature::Dsa], &[]).unwrap();
    let request = LayoutRequest { tp: Some(2), ..Default::default() };
    let serving = serving_of(&nam, request, 0);
    assert_eq!(bytes(&serving, &contiguous(1, 4096), Item::IndexKeys), 9 * 4096 * 64 * 2);
}

#[test]
fn windows_bound_the_cache() {
    let mut recipe = builtin::find("llama3-8b").unwrap();
    recipe.attention.as_mut().unwrap().window = Some(Window::sliding(512, vec![0, 1]));
    let serving = serving_of(&recipe, LayoutRequest::default(), 0);
    let layer_token = 2 * 8 * 128 * 2;
    let at = |context| bytes(&serving, &contiguous(1, context), Item::KvCache);
    assert_eq!(at(8192), (2 * 8192 + 30 * 512) * layer_token);
    assert_eq!(at(256), 32 * 256 * layer_token);
}

#[test]
fn paging_wastes_less_than_a_block_a_sequence_and_layer() {
    let serving = serving("llama3-8b", 1);
    let layer_token = 2 * 8 * 128 * 2;
    for (context, block) in [(1, 16), (4096, 16), (4097, 16), (4095, 64), (5, 4096)] {
        let request = ServeRequest { block, ..ServeRequest::usual(7, context) };
        let price = serving.price(&request).unwrap();
        let cache = price.cache;
        assert_eq!(cache.waste.0, cache.paged.0 - cache.contiguous.0);
        assert!(cache.waste.0 < 7 * 32 * block * layer_token, "{context} in blocks of {block}");
        assert_eq!(cache.blocks, 7 * context.div_ceil(block));
        assert_eq!(cache.paged.0, cache.blocks * block * 32 * layer_token);
        assert_eq!(price.of(Item::KvCache), cache.paged);
    }
    let even = serving.price(&ServeRequest::usual(7, 4096)).unwrap();
    assert_eq!(even.cache.waste, Bytes(0));
}

#[test]
fn the_map_saves_three_quarters_of_nam56r() {
    let serving = serving("nam56r", 1);
    assert_eq!(serving.map().saved_layers(), 39);
    let cache = serving.price(&contiguous(2, 4096)).unwrap().cache;
    assert_eq!(cache.saved_by_map.0, 3 * cache.contiguous.0);
}

#[test]
fn context_parallelism_shares_the_cache_out() {
    let recipe = builtin::find("llama3-8b").unwrap();
    let cp = |cp| serving_of(&recipe, LayoutRequest { cp: Some(cp), ..Default::default() }, 0);
    let at = |degree| bytes(&cp(degree), &contiguous(2, 8192), Item::KvCache);
    assert_eq!(4 * at(4), at(1));
}

#[test]
fn recurrent_states_by_hand() {
    // Nemotron-H: 24 Mamba-2 blocks of 128 heads × 64 × 128 in fp32, and three tokens of
    // 128·64 + 2·8·128 convolution channels in bf16.
    let serving_1 = serving("nemotron-h-8b", 1);
    let blocks = builtin::find("nemotron-h-8b").unwrap().count(recipe::Mixer::Mamba);
    let request = ServeRequest::usual(5, 8192);
    assert_eq!(bytes(&serving_1, &request, Item::RecurrentState), 5 * blocks * 128 * 64 * 128 * 4);
    assert_eq!(bytes(&serving_1, &request, Item::RecurrentTail), 5 * blocks * 3 * (8192 + 2048) * 2);
    let serving_8 = serving("nemotron-h-8b", 8);
    for item in [Item::RecurrentState, Item::RecurrentTail] {
        assert_eq!(8 * bytes(&serving_8, &request, item), bytes(&serving_1, &request, item));
    }
}

#[test]
fn mamba3_and_m2rnn_carry_what_their_references_allocate() {
    let request = ServeRequest::usual(1, 4096);
    let state = 13 * 56 * (64 * 64 + 16) + 4 * 44 * 16 * 64;
    assert_eq!(bytes(&serving("nam56r", 1), &request, Item::RecurrentState), 4 * state);
    // Mamba-3's last key and value; M2RNN's three tokens of q, k (one shared head) and v.
    let tail = |tp: u64| 13 * 56 / tp * (64 + 64) + 4 * 3 * (2 * 64 + 44 / tp * 16);
    assert_eq!(bytes(&serving("nam56r", 1), &request, Item::RecurrentTail), 2 * tail(1));
    // The shared head is copied, not cut.
    assert_eq!(bytes(&serving("nam56r", 2), &request, Item::RecurrentTail), 2 * tail(2));
}

#[test]
fn the_recurrent_pool_does_not_know_the_context() {
    let serving = serving("nam56r", 1);
    for item in [Item::RecurrentState, Item::RecurrentTail] {
        let at = |context| bytes(&serving, &ServeRequest::usual(8, context), item);
        assert_eq!(at(1), at(1 << 20));
        assert!(at(1) > 0);
    }
    let dense = self::serving("llama3-8b", 1);
    assert_eq!(bytes(&dense, &ServeRequest::usual(8, 4096), Item::RecurrentState), 0);
}

#[test]
fn the_workspace_is_the_widest_block() {
    // An MLP of 14336: gate and up out, their product in, and two residual streams; bf16.
    let request = ServeRequest { prefill_chunk: 100, ..ServeRequest::usual(1, 4096) };
    let at = |tp: u64| 100 * 2 * (2 * 4096 + 3 * 14_336 / tp);
    assert_eq!(bytes(&serving("llama3-8b", 1), &request, Item::Workspace), at(1));
    assert_eq!(bytes(&serving("llama3-8b", 8), &request, Item::Workspace), at(8));
    // A decode step wider than the chunk is what counts then.
    let wide = ServeRequest { batch: 1000, ..request };
    assert_eq!(bytes(&serving("llama3-8b", 1), &wide, Item::Workspace), 10 * at(1));
}

#[test]
fn only_expert_stages_route_and_only_the_last_samples() {
    let request = ServeRequest::usual(1, 4096);
    assert_eq!(bytes(&serving("llama3-8b", 1), &request, Item::Routing), 0);
    // 8192 tokens · 8 copies, there and back, and the table.
    let routing = 8192 * 8 * (2 * 2048 * 2 + 4);
    assert_eq!(bytes(&serving("qwen3-30b-a3b", 1), &request, Item::Routing), routing);
    let recipe = builtin::find("llama3-8b").unwrap();
    let stage = |stage| serving_of(&recipe, LayoutRequest { pp: Some(2), ..Default::default() }, stage);
    assert_eq!(bytes(&stage(0), &request, Item::Logits), 0);
    assert_eq!(bytes(&stage(1), &request, Item::Logits), 128_256 * 6);
    let halves: u64 = (0..2).map(|s| bytes(&stage(s), &request, Item::KvCache)).sum();
    assert_eq!(halves, bytes(&serving("llama3-8b", 1), &request, Item::KvCache));
}

#[test]
fn the_largest_batch_is_the_largest() {
    for (name, tp) in [("llama3-8b", 1), ("nam56r", 2), ("deepseek-v3", 8), ("nemotron-h-8b", 4)] {
        let serving = serving(name, tp);
        for (gib, context) in [(141, 4096), (1400, 32_768), (1400, 1)] {
            let request = ServeRequest::usual(1, context);
            let budget = Bytes(gib << 30);
            let largest = serving.largest_batch(&request, budget).unwrap();
            let total = |batch| serving.price(&ServeRequest { batch, ..request }).unwrap().total;
            assert!(total(largest.batch + 1) > budget, "{name}");
            if largest.batch > 0 {
                assert!(total(largest.batch) <= budget, "{name}");
                assert_eq!(total(largest.batch), largest.total);
            }
        }
    }
}

#[test]
fn what_binds_is_named() {
    let binds = |name, budget, context| {
        let largest = serving(name, 1).largest_batch(&ServeRequest::usual(1, context), budget).unwrap();
        (largest.batch > 0, largest.binds)
    };
    let gib = |n: u64| Bytes(n << 30);
    assert_eq!(binds("llama3-8b", gib(80), 8192), (true, Some(Item::KvCache)));
    assert_eq!(binds("nemotron-h-8b", gib(80), 64), (true, Some(Item::RecurrentState)));
    assert_eq!(binds("llama3-8b", gib(8), 8192), (false, Some(Item::TensorWeights)));
    assert_eq!(binds("mixtral-8x7b", gib(80), 8192), (false, Some(Item::ExpertWeights)));
    assert_eq!(binds("llama3-8b", Bytes(u64::MAX), 1), (true, None));
}

#[test]
fn no_line_falls_as_batch_or_context_rises() {
    for (name, _) in builtin::RECIPES {
        let serving = serving(name, 1);
        let prices = [(1, 1), (1, 100), (2, 100), (2, 5000), (9000, 5000), (9000, 1 << 20)]
            .map(|(batch, context)| serving.price(&ServeRequest::usual(batch, context)).unwrap());
        for pair in prices.windows(2) {
            for (before, after) in pair[0].lines.iter().zip(&pair[1].lines) {
                assert!(before.bytes <= after.bytes, "{name}: {}", before.item.name());
            }
        }
    }
}

#[test]
fn every_line_says_what_it_is() {
    let price = serving("nam56r", 1).price(&ServeRequest::usual(1, 4096)).unwrap();
    let mut items: Vec<Item> = price.lines.iter().map(|line| line.item).collect();
    assert_eq!(price.total.0, price.lines.iter().map(|line| line.bytes.0).sum::<u64>());
    assert!(price.lines.iter().all(|line| !line.scales_with.is_empty() && !line.ignores.is_empty()));
    assert!(items.is_sorted() && !price.unmodelled.is_empty());
    items.dedup();
    assert_eq!(items.len(), price.lines.len());
}

#[test]
fn sizes_that_are_no_sizes_are_all_refused() {
    let serving = serving("llama3-8b", 1);
    let nothing = ServeRequest { block: 0, prefill_chunk: 0, ..ServeRequest::usual(0, 0) };
    assert_eq!(serving.price(&nothing).unwrap_err().len(), 4);
    assert!(serving.largest_batch(&nothing, Bytes(1)).is_err());
    let huge = ServeRequest::usual(MOST_BATCH, recipe::limits::SEQUENCE);
    assert_eq!(serving.price(&huge).unwrap_err()[0].rule, "serve/size");
    let recipe = builtin::find("llama3-8b").unwrap();
    let (layout, _) = settle(&LayoutRequest::default(), Needs::of(&recipe)).unwrap();
    let table = OwnershipTable::new(&recipe, &layout).unwrap();
    assert_eq!(Serving::new(&recipe, &layout, &table, 1).unwrap_err().rule, "serve/stage");
}
