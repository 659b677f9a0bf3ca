//! A plan over pools of unlike devices: a pipeline over them in every order, and each pool alone beside it, since one
//! that slows the rest down is better left out.

mod json;

pub use json::stages_json;

use super::text::{flags_of, seconds, ways_out};
use super::{Aim, Wanted, with_solution};
use crate::args::PlanArgs;
use crate::commands::fit::overload_json;
use crate::commands::{model_line_at, typed};
use crate::files::load_pools;
use crate::outcome::{DOES_NOT_FIT, Outcome, Refusal, Report};
use crate::table::{Table, heading, wrap};
use case::{Pooled, machines, options_of};
use diag::{Blame, Finding};
use hardware::Cluster;
use layout::Engine;
use memory::fit::Overload;
use search::{Offered, OffloadChoice, PooledChoice, Question, Reach, over_pools, usual_batch_of};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use units::{Bytes, count};

/// One way to use the pools: some of them, in an order.
struct Way {
    /// As typed.
    on: String,
    devices: u64,
    /// Which of the pools, by their places.
    pools: Vec<usize>,
    found: Result<Found, String>,
}

/// Of a step's time, what another pool must gain to be worth it: what a pipeline over unlike devices takes besides,
/// nobody has measured.
const WORTH: f64 = 0.05;

/// What a way comes to.
struct Found {
    per_sequence: f64,
    seconds: f64,
    tokens_per_second: f64,
    mfu: f64,
    headroom: i64,
    flags: String,
    /// The job as it is typed.
    job: String,
    /// How much less something may take that was not looked at, of the step's time.
    unproved: f64,
    /// Absent where a pool is alone.
    pooled: Option<PooledChoice>,
}

pub fn run(args: &PlanArgs, on: &str) -> Outcome {
    refuse_others(args)?;
    let pools = load_pools(on)?;
    let parts = hardware::split_pools(on).unwrap_or_default();
    let mut args = args.clone();
    let recipe = crate::commands::recipe_of(&args.recipe)?;
    let world: u64 = pools.iter().map(Cluster::devices).sum();
    let sequence = args.search.sequences.first().copied().or(args.layout.seq);
    let is_batch_typed = args.layout.gbs.is_some() || args.layout.microbatches.is_some();
    // All ways of using the pools do the same step.
    if !is_batch_typed {
        args.layout.gbs = Some(usual_batch_of(&recipe, world, sequence.unwrap_or(recipe.sequence)));
    }
    let mut ways = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        ways.push(Way {
            on: part.to_string(),
            devices: pools[index].devices(),
            pools: vec![index],
            found: alone(&args, part, sequence)?,
        });
    }
    for order in orders(pools.len()) {
        let some: Vec<Cluster> = order.iter().map(|pool| pools[*pool].clone()).collect();
        let text = order.iter().map(|pool| parts[*pool]).collect::<Vec<_>>().join("+");
        let devices = some.iter().map(Cluster::devices).sum();
        ways.push(Way { found: together(&args, &text, &some, sequence)?, on: text, devices, pools: order });
    }
    let ways = fastest_orders(ways);
    let head = model_line_at(&recipe, sequence) + "\n";
    let mut json = json::of(&args, on, &pools, &ways, is_batch_typed);
    json["recipe"] = json!(recipe.name);
    let Some((best, found)) = chosen(&ways) else {
        let verdict = "Nothing fits on these pools, together or alone";
        let finding = Finding::error("plan/none", Blame::Layout, "layout", verdict.to_lowercase())
            .hint(ways_out(&args.layout.request(), args.search.headroom.bytes(u64::MAX)));
        let text = format!("\x1b[1;31m{verdict}\x1b[0m\n\n{head}{}", table(&ways, &parts));
        return Ok(Report::new(text, json).refused(DOES_NOT_FIT, [finding]));
    };
    let mut text = head;
    text += &verdict(&ways, best, found, &parts);
    let overload = found
        .pooled
        .as_ref()
        .and_then(|choice| Overload::of_pools(&choice.job, &choice.fit, args.work.of_an_answer().operations));
    if let Some(choice) = &found.pooled {
        text += &placement(choice);
        text += &overload.as_ref().map_or(String::new(), |overload| wrap(&overload.words(), "  ", 80));
        json["best"]["overload"] = overload.as_ref().map_or(Value::Null, |overload| overload_json(overload, &[]));
    }
    text += &table(&ways, &parts);
    text += &notes(&args, is_batch_typed, best, found);
    text += &heading("Look closer");
    text += &format!("  shardwright fit {}\n", found.job);
    if found.pooled.is_none() {
        text += &format!("  shardwright plan {} --on {}\n", args.recipe.recipe, best.on);
    }
    Ok(Report::new(text, json))
}

/// Flags whose answer is about one cluster.
fn refuse_others(args: &PlanArgs) -> Result<(), Refusal> {
    let search = &args.search;
    let flags = [
        ("--tokens", args.budget.tokens.is_some()),
        ("--top", search.top > 0),
        ("--explain", search.explain.is_some()),
        ("--stats", search.stats),
        ("--csv", search.csv.is_some()),
        ("--sequences", search.sequences.len() > 1),
        ("--overload", search.overload > 1.0),
    ];
    let named = flags.iter().find(|(_, is_typed)| *is_typed).map(|(flag, _)| *flag);
    let drawn = args.pictures.given().next().map(|(flag, _)| flag);
    let Some(flag) = named.or(drawn).or(args.seen.first()) else { return Ok(()) };
    let message = format!("`{flag}` is about one kind of device, and pools are several");
    let hint = "ask for the pools first, then for the one to run on; `fit` takes pools as well";
    Err(Finding::error("pools/flag", Blame::Usage, flag, message).hint(hint).into())
}

/// Every order of two pools or more.
fn orders(pools: usize) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = (0..pools).map(|pool| vec![pool]).collect();
    let mut at = 0;
    while at < found.len() {
        let one = found[at].clone();
        found.extend((0..pools).filter(|pool| !one.contains(pool)).map(|pool| [one.clone(), vec![pool]].concat()));
        at += 1;
    }
    found.retain(|order| order.len() > 1);
    found
}

/// Why a search has no answer; what is no matter of the layout is passed on.
fn why(refusal: Refusal) -> Result<String, Refusal> {
    let is_of_layout = |finding: &Finding| matches!(finding.blame, Blame::Layout | Blame::Engine | Blame::Missing);
    match refusal.findings.iter().all(is_of_layout) {
        true => Ok(refusal.findings.first().map_or("refused".to_string(), |finding| finding.message.clone())),
        false => Err(refusal),
    }
}

/// One pool by itself.
fn alone(args: &PlanArgs, on: &str, sequence: Option<u64>) -> Result<Result<Found, String>, Refusal> {
    let wanted = Wanted::new(args, on, sequence)?;
    let found = with_solution(args, &wanted, Aim::alone(), |solved| {
        let unproved = solved.answer.modes.first().map_or(0.0, |mode| mode.unproved);
        Ok(solved.answer.best().map(|best| Found {
            per_sequence: best.per_sequence(),
            seconds: best.step.seconds,
            tokens_per_second: best.step.tokens_per_second_per_device * wanted.cluster.devices() as f64,
            mfu: best.step.mfu,
            headroom: best.fit.tightest().headroom,
            flags: flags_of(&best.case),
            job: typed(&best.case),
            unproved,
            pooled: None,
        }))
    });
    match found {
        Ok(found) => Ok(found.ok_or_else(|| "nothing fits".to_string())),
        Err(refusal) => why(refusal).map(Err),
    }
}

/// A pipeline over pools in this order.
fn together(
    args: &PlanArgs,
    on: &str,
    pools: &[Cluster],
    sequence: Option<u64>,
) -> Result<Result<Found, String>, Refusal> {
    let world: u64 = pools.iter().map(Cluster::devices).sum();
    if let Err(finding) = hardware::check_pools(on, pools) {
        return Ok(Err(finding.message));
    }
    let Some(cluster) = pools[0].of_world(world) else { return Ok(Err("no whole nodes".to_string())) };
    let wanted = Wanted::on(args, on, cluster, sequence)?;
    for pool in pools {
        let engine = wanted.pinned.engine.unwrap_or(Engine::Megatron);
        if let Some(finding) = machines::refusal(engine, pool, &wanted.asked) {
            return Err(finding.into());
        }
        options_of(&wanted.asked, wanted.pinned.engine, &wanted.recipe, Some(pool))?;
    }
    let headroom: Vec<Bytes> = pools.iter().map(|pool| args.search.headroom.on(&pool.device, &wanted.recipe)).collect();
    let limit = args.work.of_an_answer();
    let question = Question {
        asked: &wanted.asked,
        recipe: &wanted.recipe,
        cluster: &wanted.cluster,
        pinned: &wanted.pinned,
        options: wanted.options,
        offered: Offered::Off,
        headroom: headroom[0],
        overload: 1.0,
        offload: args.state.offload_optimizer.map_or(OffloadChoice::Free, OffloadChoice::Pinned),
        reach: if args.search.max_tp_in_node { Reach::Node } else { Reach::Anywhere },
        limit: &limit,
    };
    let answer = match over_pools(question, pools, &headroom) {
        Ok(answer) => answer,
        Err(findings) => return why(findings.into()).map(Err),
    };
    let Some(choice) = answer.best else {
        let why = match answer.legal {
            0 => "no legal layout has stages that lie whole on a pool",
            _ if answer.is_cut_short => "nothing that was looked at fits; the rest was left at --work-limit",
            _ => "nothing fits",
        };
        return Ok(Err(why.to_string()));
    };
    let case = choice.job.first();
    Ok(Ok(Found {
        per_sequence: choice.per_sequence(),
        seconds: choice.step.seconds,
        tokens_per_second: choice.step.tokens_per_second_per_device * world as f64,
        mfu: choice.step.mfu,
        headroom: choice.fit.worst().headroom,
        flags: flags_of(case),
        job: typed(case),
        unproved: answer.unproved,
        pooled: Some(choice),
    }))
}

/// Of the orders of the same pools the fastest, and all ways from the fastest on.
fn fastest_orders(mut ways: Vec<Way>) -> Vec<Way> {
    let cost = |way: &Way| way.found.as_ref().map_or(f64::INFINITY, |found| found.per_sequence);
    // Of ways that take the same, the one of fewer devices.
    ways.sort_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.devices.cmp(&b.devices)));
    let mut seen: BTreeSet<Vec<usize>> = BTreeSet::new();
    ways.retain(|way| {
        let mut pools = way.pools.clone();
        pools.sort_unstable();
        seen.insert(pools)
    });
    ways
}

/// The way to take: the fastest, unless fewer of its pools come near.
fn chosen(ways: &[Way]) -> Option<(&Way, &Found)> {
    let found = || ways.iter().filter_map(|way| Some((way, way.found.as_ref().ok()?)));
    let (fastest, least) = found().next().map(|(way, found)| (way, found.per_sequence))?;
    let is_near = |(way, found): &(&Way, &Found)| {
        way.pools.iter().all(|pool| fastest.pools.contains(pool)) && found.per_sequence <= (1.0 + WORTH) * least
    };
    found().filter(is_near).min_by_key(|(way, _)| way.pools.len())
}

/// What to run on, and which pools to leave out.
fn verdict(ways: &[Way], best: &Way, found: &Found, parts: &[&str]) -> String {
    let others = ways.iter().filter(|way| way.pools != best.pools);
    let second = others.filter_map(|way| Some((way, way.found.as_ref().ok()?))).next();
    let title = match found.pooled {
        Some(_) => format!("Run a pipeline over {}", names(best, parts)),
        None => format!("Run on {} alone", names(best, parts)),
    };
    let mut text = format!("a step takes {}", seconds(found.seconds));
    if let Some((way, other)) = second.filter(|(_, other)| other.per_sequence >= found.per_sequence) {
        let times = other.per_sequence / found.per_sequence;
        text += &format!(", {times:.2} times as fast as on {}", names(way, parts));
    }
    let mut out = format!("\x1b[1;32m{title}\x1b[0m\n") + &wrap(&text, "", 80);
    for (index, part) in parts.iter().enumerate().filter(|(index, _)| !best.pools.contains(index)) {
        let with = ways.iter().filter(|way| way.pools.contains(&index) && way.pools.len() > 1);
        let with = with.filter_map(|way| way.found.as_ref().ok()).map(|other| other.per_sequence).next();
        let why = match with {
            Some(other) if other >= found.per_sequence => {
                format!("with it a step takes {:.0}% longer", 100.0 * (other / found.per_sequence - 1.0))
            }
            Some(other) => format!(
                "with it a step takes {:.1}% less, and {:.0}% at least are asked of a pool",
                100.0 * (1.0 - other / found.per_sequence),
                100.0 * WORTH
            ),
            None => "no pipeline over it fits or is legal".to_string(),
        };
        out += &wrap(&format!("leave {part} out: {why}"), "", 80);
    }
    out
}

fn names(way: &Way, parts: &[&str]) -> String {
    way.pools.iter().map(|pool| parts[*pool]).collect::<Vec<_>>().join(" and ")
}

/// Which pool holds which stages, and what bounds the step.
pub fn placement(choice: &PooledChoice) -> String {
    let (job, step, fit) = (&choice.job, &choice.step, &choice.fit);
    let mut text = heading("Which pool runs what");
    text += &stages_table(job, &fit.classes, Some(step)).render();
    let slow = (0..step.stages.len()).max_by(|a, b| step.stages[*a].busy.total_cmp(&step.stages[*b].busy)).unwrap_or(0);
    let pool = &job.pools[job.pool_of[slow]];
    text += &wrap(
        &format!("stage {slow} on {} is busiest and bounds the step: {}", pool.device.name, step.bound),
        "  ",
        80,
    );
    let link = |pool: usize| job.pools[pool].network.clone().unwrap_or_else(|| "its own network".to_string());
    for (pool, between) in choice.between.iter().enumerate() {
        text += &wrap(
            &format!(
                "from {} to {} an activation takes {}, over the slower of {} and {}: that the two networks are joined \
                 is assumed",
                job.pools[pool].device.name,
                job.pools[pool + 1].device.name,
                seconds(*between),
                link(pool),
                link(pool + 1)
            ),
            "  ",
            80,
        );
    }
    text
}

/// A line a pool: stages, layers, ranks, memory, and how busy they are.
pub fn stages_table(job: &Pooled, classes: &[memory::fit::RankClass], step: Option<&cost::Step>) -> Table {
    let columns = ["pool", "stages", "layers", "ranks", "worst holds", "of", "busy"];
    let mut table = Table::new(&columns).right(&[4, 5, 6]);
    let layers = job.first().stages.layer_counts();
    for (index, pool) in job.pools.iter().enumerate() {
        let stages = job.stages(index);
        let own = &classes[stages.clone()];
        let worst = own.iter().map(|class| class.total()).max().unwrap_or(0);
        let last = own.last().map_or(0, |class| class.first_rank + class.num_ranks - 1);
        let busy = step.map_or(String::new(), |step| {
            let busy: f64 = step.stages[stages.clone()].iter().map(|stage| stage.busy).sum();
            format!("{:.0}%", 100.0 * busy / (stages.len() as f64 * step.seconds))
        });
        let counts: Vec<String> = layers[stages.clone()].iter().map(usize::to_string).collect();
        table.row([
            pool.typed(),
            range(stages.start, stages.end - 1),
            counts.join(" "),
            range(own.first().map_or(0, |class| class.first_rank) as usize, last as usize),
            Bytes(worst).to_string(),
            Bytes(pool.device.visible_bytes()).to_string(),
            busy,
        ]);
    }
    table
}

fn range(first: usize, last: usize) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn table(ways: &[Way], parts: &[&str]) -> String {
    let mut table = Table::new(&["on", "step", "tokens/s", "MFU", "headroom"]).right(&[1, 2, 3, 4]);
    let mut lines = String::new();
    for way in ways {
        let name = if way.pools.len() == 1 { format!("{} alone", way.on) } else { way.on.clone() };
        match &way.found {
            Ok(found) => table.row([
                name,
                seconds(found.seconds),
                count(found.tokens_per_second as u64),
                format!("{:.1}%", 100.0 * found.mfu),
                Bytes(found.headroom.max(0) as u64).to_string(),
            ]),
            Err(why) => {
                table.row([name, "-".into(), "-".into(), "-".into(), "-".to_string()]);
                lines += &wrap(&format!("{}: {why}", names(way, parts)), "  ", 80);
            }
        }
    }
    heading("Ways to use them, the fastest first") + &table.render() + &lines
}

fn notes(args: &PlanArgs, is_batch_typed: bool, best: &Way, found: &Found) -> String {
    let mut text = heading("The job");
    text += &wrap(&found.flags, "  ", 80);
    if !is_batch_typed {
        let batch = args.layout.gbs.unwrap_or(0);
        text += &wrap(&format!("{batch} sequences a step are assumed, on any of the pools; --gbs"), "  ", 80);
    }
    if found.unproved > 0.0 {
        let share = 100.0 * found.unproved;
        let line =
            format!("no proof that it is the fastest: what was left at --work-limit may take up to {share:.1}% less");
        text += &wrap(&line, "  ", 80);
    }
    if let Some(choice) = &found.pooled {
        text += &wrap(
            "no interval: nobody has published steps on unlike devices. Replicas over unlike pools are not looked at, \
             since every step would wait for the slowest; nor are stages of several chunks",
            "  ",
            80,
        );
        text += &start(choice, &best.on);
    }
    text
}

/// How such a job is started: a job file has one kind of node, the arguments are the same on all.
fn start(choice: &PooledChoice, on: &str) -> String {
    let job = &choice.job;
    let ranks: Vec<String> = (0..job.pools.len())
        .map(|pool| {
            let own = &choice.fit.classes[job.stages(pool)];
            let last = own.last().map_or(0, |class| class.first_rank + class.num_ranks - 1);
            format!("{}-{last} on {}", own.first().map_or(0, |class| class.first_rank), job.pools[pool].device.name)
        })
        .collect();
    let world = job.first().layout.world;
    let roomy = job.pools.iter().max_by_key(|pool| pool.device.visible_bytes());
    let whole = roomy.and_then(|pool| pool.of_world(world)).map_or(String::new(), |cluster| cluster.typed());
    wrap(
        &format!(
            "`launch` writes jobs of one kind of node: its arguments are the same on all nodes, so write them with \
             `--on {whole}` in place of `{on}`, and start ranks {}",
            ranks.join(", ")
        ),
        "  ",
        80,
    )
}

#[cfg(test)]
mod tests {
    use super::orders;

    #[test]
    fn every_order_of_two_or_more_is_looked_at() {
        assert_eq!(orders(2), [vec![0, 1], vec![1, 0]]);
        assert_eq!(orders(3).len(), 6 + 6);
    }
}
