//! How many layouts are priced a second. `cargo run --release -p shardwright-search --example rate -- nam56r 1024xH200`

use hardware::Cluster;
use layout::{Engine, LayoutRequest};
use ledger::Ledger;
use search::{Effort, OffloadChoice, Question, Reach, lay_out, pricers, search};
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let recipe = recipe::builtin::find(&args.next().unwrap_or("gpt3-175b".to_string())).expect("a built-in recipe");
    let cluster = Cluster::parse(&args.next().unwrap_or("4096xH100".to_string())).expect("a cluster");
    let pinned = LayoutRequest { engine: Some(Engine::Megatron), ..LayoutRequest::default() };
    let ledger = |recipe: &recipe::Recipe, layout: &layout::Layout| Ledger::of(layout.engine, recipe, layout);
    let question = Question {
        recipe: &recipe,
        cluster: &cluster,
        pinned: &pinned,
        headroom: memory::fit::HEADROOM,
        caution: units::Bytes(0),
        offload: OffloadChoice::Free,
        reach: Reach::Anywhere,
        ledger: &ledger,
        options: cost::Options::of(pinned.engine, &recipe),
    };
    let start = Instant::now();
    let space = lay_out(question).unwrap_or_else(|findings| panic!("{findings:?}"));
    println!("laid out in {:?}: {} keys", start.elapsed(), space.realms.iter().map(|r| r.keys.len()).sum::<usize>());
    let found = search(
        &space,
        &pricers(&space),
        24,
        if args.next().is_some() { Effort::Priced } else { Effort::Bounded },
        &|_, _| (),
    );
    let seconds = start.elapsed().as_secs_f64();
    let threads = rayon::current_num_threads();
    println!(
        "{} enumerated, {} legal, {} bounded, {} priced, {} fit, {} simulated in {seconds:.2} s on {threads}: {:.0} a second a core",
        found.counts.enumerated,
        found.counts.legal,
        found.tally.bounded,
        found.tally.priced,
        found.tally.fit,
        found.simulated,
        found.tally.priced as f64 / seconds / threads as f64
    );
    for (rule, count) in &found.counts.refused {
        println!("  {rule}: {count}");
    }
    println!("  misfit {:?}, unpriced {:?}", found.tally.misfit, found.tally.unpriced);
    for best in found.best.top.iter().take(8).chain(&found.best.frontier) {
        let layout = space.layout(&best.point);
        println!(
            "{:.4} ms {:.1} GiB {} {}",
            1e3 * best.per_sequence,
            best.headroom as f64 / 1.074e9,
            best.complexity,
            layout.all_flags()
        );
    }
}
