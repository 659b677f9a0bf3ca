//! A plan on one screen.

use super::written::Written;
use super::{Asked, Solved};
use crate::args::PlanArgs;
use crate::commands::fit::{fit_lines, verdict_text};
use crate::commands::{model_line, shorten};
use crate::picture;
use crate::table::{Table, heading, wrap};
use hardware::{Cluster, Link};
use launch::quote;
use layout::Layout;
use memory::fit::{Fit, FitRequest, OffloadRequest, RankClass, levers};
use search::{Batch, Choice, MemoryLine, Neighbour, TOKENS_PER_STEP};
use units::{Bytes, count, exact};

/// Lines of the space's rejects and of neighbours that a screen has room for.
const SHOWN: usize = 3;

/// Stages drawn; of more, the first, the worst and the last.
const DRAWN: usize = 8;

/// Everything.
pub fn screen(args: &PlanArgs, asked: &Asked, solved: &Solved, written: Option<&Written>) -> String {
    let mut text = head(args, asked);
    text += &match &solved.answer.best {
        Some(best) => {
            chosen(asked, solved, best)
                + &memory(solved, best)
                + &step(best)
                + &alternatives(solved, best)
                + &top(args, solved)
        }
        None if solved.found.counts.legal == 0 => nothing_legal(solved),
        None => nothing_fits(asked, solved),
    };
    text += &space(solved);
    if args.search.stats {
        text += &stats(solved);
    }
    if let Some(best) = &solved.answer.best {
        text += &next_steps(args, best, written.and_then(Written::flags));
    }
    text
}

fn head(args: &PlanArgs, asked: &Asked) -> String {
    let (counts, cluster) = (asked.recipe.counts().all, &asked.cluster);
    let mut text = model_line(&asked.recipe) + "\n";
    text += &format!("  {} parameters, {} active on a token\n", exact(counts.total), count(counts.active));
    text += &format!(
        "\x1b[1m{}\x1b[0m  {} × {} {}, {} visible on each; {}\n",
        args.on,
        cluster.nodes,
        cluster.devices_per_node,
        cluster.device.name,
        Bytes(cluster.device.visible_bytes()),
        islands(cluster)
    );
    text
}

/// Who is near whom: the islands of a cluster and what joins them.
fn islands(cluster: &Cluster) -> String {
    let link = |link: &Option<Link>| link.as_ref().map_or("an unstated link".to_string(), |link| link.name.clone());
    let (islands, size) = (cluster.islands(), cluster.island_devices());
    let inside = match cluster.nodes_per_island() {
        _ if size == 1 => "each device alone".to_string(),
        1 => format!("{size} over {}", link(&cluster.device.island_link)),
        nodes => format!("{size} over {} ({nodes} nodes)", link(&cluster.device.island_link)),
    };
    match islands {
        1 => format!("one island: {inside}"),
        _ => format!("{islands} islands: {inside}, between them {}", link(&cluster.device.network)),
    }
}

/// What was searched for, in a line.
fn terms(asked: &Asked, solved: &Solved) -> String {
    let engine = match (asked.pinned.engine, asked.engine_typed) {
        (Some(engine), true) => format!("for {engine}"),
        (Some(engine), false) => format!("for {engine} (--engine says otherwise)"),
        (None, _) => "for any engine".to_string(),
    };
    let batch = match (solved.space.batch, solved.space.is_batch_typed) {
        (Batch::Global(global), true) => format!("{global} sequences a step"),
        (Batch::Global(global), false) => {
            let million = TOKENS_PER_STEP >> 20;
            format!("{global} sequences a step (assumed: about {million} Mi tokens, one a device at least; --gbs)")
        }
        (Batch::Count(count), _) => format!("{count} microbatches a step"),
    };
    format!("{engine}, {batch}")
}

/// The flags of a layout, with what it keeps on the host.
pub fn flags_of(layout: &Layout, offload: f64) -> String {
    let host = if offload > 0.0 { format!(" --offload-optimizer {offload}") } else { String::new() };
    layout.all_flags() + &host
}

fn chosen(asked: &Asked, solved: &Solved, best: &Choice) -> String {
    let mut text = heading(&format!("Best {}", terms(asked, solved)));
    text += &wrap(&flags_of(&best.layout, best.offload), "  ", 100);
    let step = &best.step;
    text += &format!(
        "  step {}, {} tokens/s a device, {:.0} TFLOP/s a device (MFU {:.1}%), bubble {:.1}%; bound by {}\n",
        seconds(step.seconds),
        count(step.tokens_per_second_per_device as u64),
        step.tflops_per_device,
        100.0 * step.mfu,
        100.0 * step.bubble,
        step.bound
    );
    if let Some(mode) = best.layout.mode {
        let given_up: Vec<&str> = asked
            .recipe
            .in_mode(mode)
            .map(|(_, seams)| seams.iter().filter(|s| s.gives_up).map(|s| s.name).collect())
            .unwrap_or_default();
        let words = if given_up.is_empty() {
            "nothing is given up".to_string()
        } else {
            format!("gives up {}", given_up.join(", "))
        };
        text += &format!("  mode {mode}: {words}\n");
    }
    if let Some(first) = solved.answer.unseated.first() {
        let more = solved.answer.unseated.len();
        text += &wrap(&format!("{more} faster by the quick sums fell to the replay, first: {}", first.why), "  ", 100);
    }
    if solved.caution.0 > 0 {
        text += &format!("  the quick sums were asked to leave {} more, since the replay held more\n", solved.caution);
    }
    text
}

fn memory(solved: &Solved, best: &Choice) -> String {
    let device = &solved.space.question.cluster.device;
    let classes = drawn(&best.fit);
    let mut text = heading("Memory of one rank a stage (replayed)");
    text += &picture::bars(&classes, device.visible_bytes(), 60);
    if classes.len() < best.fit.classes.len() {
        text += &format!("  {} stages between them hold no more than these\n", best.fit.classes.len() - classes.len());
    }
    let worst = best.fit.worst();
    text += &format!(
        "  {} left on stage {} ({} asked for);{}",
        Bytes(worst.headroom.max(0) as u64),
        worst.stage,
        solved.space.question.headroom,
        fit_lines(&best.fit).trim_start_matches(' ').replacen("most", " most", 1)
    );
    text
}

/// All stages, or the first, the worst and the last of many.
fn drawn(fit: &Fit) -> Vec<RankClass> {
    if fit.classes.len() <= DRAWN {
        return fit.classes.clone();
    }
    let last = fit.classes.len() - 1;
    let mut indices = vec![0, fit.worst, last];
    indices.sort_unstable();
    indices.dedup();
    indices.into_iter().map(|i| fit.classes[i].clone()).collect()
}

/// Parts of a step that are less than this of it stand together.
const LEAST_SHARE: f64 = 0.01;

fn step(best: &Choice) -> String {
    let mut parts: Vec<_> = best.step.parts.iter().collect();
    parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let (large, small): (Vec<_>, Vec<_>) = parts.into_iter().partition(|part| part.share >= LEAST_SHARE);
    let mut words: Vec<String> = large
        .iter()
        .map(|part| format!("{} {} ({:.0}%)", part.name, seconds(part.seconds), 100.0 * part.share))
        .collect();
    let rest: f64 = small.iter().map(|part| part.seconds).sum();
    if rest > 0.0 {
        words.push(format!("the rest {}", seconds(rest)));
    }
    heading("Step, on the stage that bounds it") + &wrap(&words.join(", "), "  ", 100)
}

fn alternatives(solved: &Solved, best: &Choice) -> String {
    if solved.answer.neighbours.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["instead", "step", "slower", "headroom"]).right(&[1, 2, 3]);
    for neighbour in solved.answer.neighbours.iter().take(SHOWN) {
        table.row([
            shorten(&difference(best, neighbour), 60),
            seconds(neighbour.seconds),
            format!("{:+.1}%", 100.0 * neighbour.slower),
            Bytes(neighbour.headroom.max(0) as u64).to_string(),
        ]);
    }
    heading("One change away") + &table.render()
}

/// The flags in which a neighbour differs; what follows from them is left out.
pub fn difference(best: &Choice, neighbour: &Neighbour) -> String {
    const FOLLOW: [&str; 2] = ["dp", "microbatches"];
    let pairs = |flags: &str| -> Vec<(String, String)> {
        let split = flags.split("--").filter(|f| !f.trim().is_empty());
        split
            .map(|f| {
                f.trim()
                    .split_once(' ')
                    .map_or((f.trim().to_string(), String::new()), |(a, b)| (a.to_string(), b.to_string()))
            })
            .collect()
    };
    let offload = match neighbour.point.offload {
        search::Offload::Host => 1.0,
        search::Offload::Device if neighbour.axis == "offload" => 0.0,
        search::Offload::Device => best.offload,
    };
    let (old, new) = (pairs(&flags_of(&best.layout, best.offload)), pairs(&flags_of(&neighbour.layout, offload)));
    let is_new = |pair: &&(String, String)| !old.contains(*pair) && !FOLLOW.contains(&pair.0.as_str());
    let mut words: Vec<String> = new.iter().filter(is_new).map(|(flag, value)| format!("--{flag} {value}")).collect();
    let gone =
        old.iter().filter(|(flag, _)| !new.iter().any(|(other, _)| other == flag) && !FOLLOW.contains(&flag.as_str()));
    words.extend(gone.map(|(flag, _)| format!("no --{flag}")));
    words.join(" ")
}

fn top(args: &PlanArgs, solved: &Solved) -> String {
    if args.search.top == 0 {
        return String::new();
    }
    let mut table = Table::new(&["ms a sequence", "headroom", "complexity", "layout"]).right(&[0, 1, 2]);
    for simulated in solved.found.best.top.iter().take(args.search.top) {
        let layout = solved.space.layout(&simulated.point);
        table.row([
            format!("{:.3}", 1e3 * simulated.per_sequence),
            Bytes(simulated.headroom.max(0) as u64).to_string(),
            simulated.complexity.to_string(),
            flags_of(&layout, solved.space.question.offload.share(simulated.point.offload)),
        ]);
    }
    heading("The best by throughput (memory by the quick sums)") + &table.render()
}

/// The space in one line that counts everything, and what refused most.
fn space(solved: &Solved) -> String {
    let (counts, tally) = (&solved.found.counts, &solved.found.tally);
    let frontier = solved.found.best.frontier.len() as u64;
    let unpriced: u64 = tally.unpriced.values().sum();
    let mut line = format!(
        "{} layouts: {} illegal, {} slower by bound, {} priced ({} do not fit, {} dominated, {frontier} on the frontier), {} simulated",
        exact(counts.enumerated),
        exact(counts.enumerated - counts.legal),
        exact(tally.bounded),
        exact(tally.priced),
        exact(tally.priced - tally.fit),
        exact(tally.fit.saturating_sub(frontier)),
        exact(solved.found.simulated),
    );
    if unpriced > 0 {
        line += &format!(", {} without a price", exact(unpriced));
    }
    let mut rules: Vec<_> = counts.refused.iter().map(|(rule, number)| (rule.to_string(), *number)).collect();
    rules.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let mut lines: Vec<_> = misfits(solved);
    lines.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
    let most = |list: &[(String, u64)]| {
        list.iter()
            .take(SHOWN)
            .map(|(name, number)| format!("{name} {}", exact(*number)))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut text = heading("Space") + &wrap(&line, "  ", 100);
    if !rules.is_empty() {
        text += &format!("  illegal mostly by {}\n", most(&rules));
    }
    if !lines.is_empty() {
        text += &format!("  too large mostly by {}\n", most(&lines));
    }
    text
}

/// Layouts that do not fit, by the largest line.
pub fn misfits(solved: &Solved) -> Vec<(String, u64)> {
    let lines =
        MemoryLine::ALL.iter().map(|(name, line)| (name.to_string(), solved.found.tally.misfit[*line as usize]));
    lines.filter(|(_, number)| *number > 0).collect()
}

fn nothing_legal(solved: &Solved) -> String {
    let mut rules: Vec<_> = solved.found.counts.refused.iter().collect();
    if rules.is_empty() {
        return heading("No layout of these degrees fills the world");
    }
    rules.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let mut table = Table::new(&["rule", "layouts it refuses"]).right(&[1]);
    for (rule, number) in rules {
        table.row([rule.to_string(), exact(*number)]);
    }
    heading("No layout is legal") + &table.render() + "  `shardwright check` says what each rule asks for\n"
}

fn nothing_fits(asked: &Asked, solved: &Solved) -> String {
    let Some((_, point)) = solved.found.tally.nearest else {
        return heading("No layout has a price") + &unpriced(solved);
    };
    let layout = solved.space.layout(&point);
    let share = solved.space.question.offload.share(point.offload);
    let mut text = heading(&format!("No layout fits {}", terms(asked, solved)));
    text += &wrap(&format!("nearest: {}", flags_of(&layout, share)), "  ", 100);
    let recipe = &solved.space.realms[point.realm].recipe;
    let Ok(stages) = layout::StagePlan::new(recipe, &layout, None) else { return text };
    let Ok(ledger) = (solved.space.question.ledger)(recipe, &layout) else { return text };
    let request = FitRequest {
        recipe,
        layout: &layout,
        stages: &stages,
        device: &solved.space.question.cluster.device,
        ledger: &ledger,
        offload: OffloadRequest { optimizer: share, ..OffloadRequest::default() },
        headroom: solved.space.question.headroom,
    };
    let Ok(fit) = Fit::price(&request) else { return text };
    text += &verdict_text(&fit, &request);
    text += &picture::bars(&drawn(&fit), request.device.visible_bytes(), 60);
    let typed = layout::LayoutRequest { world: None, ..asked.pinned.clone() };
    let found = levers(&asked.recipe, &as_request(&layout, &typed), &request, &fit);
    let mut table = Table::new(&["what would help", "saves", "headroom then"]).right(&[1, 2]);
    for lever in found.iter().filter(|lever| lever.saves_bytes > 0).take(SHOWN) {
        let headroom = match u64::try_from(lever.headroom_bytes) {
            Ok(left) => Bytes(left).to_string(),
            Err(_) => format!("-{}", Bytes(lever.headroom_bytes.unsigned_abs())),
        };
        table.row([lever.change.clone(), Bytes(lever.saves_bytes as u64).to_string(), headroom]);
    }
    text + &table.render() + "  or more devices, a smaller --gbs or --seq, or less --keep-headroom\n"
}

/// What was typed, with every degree of a layout pinned.
fn as_request(layout: &Layout, typed: &layout::LayoutRequest) -> layout::LayoutRequest {
    layout::LayoutRequest {
        tp: Some(layout.tp.get()),
        cp: Some(layout.cp.get()),
        pp: Some(layout.pp.get()),
        vpp: Some(layout.vpp.get()),
        ep: Some(layout.ep.get()),
        etp: Some(layout.etp.get()),
        zero: Some(layout.zero),
        micro_batch: Some(layout.micro_batch),
        global_batch: Some(layout.global_batch),
        schedule: Some(layout.schedule),
        recompute: Some(layout.recompute.clone()),
        boundaries: layout.boundaries.clone(),
        mode: layout.mode,
        ..typed.clone()
    }
}

fn unpriced(solved: &Solved) -> String {
    let lines = solved.found.tally.unpriced.iter();
    lines.map(|(reason, number)| wrap(&format!("{}: {reason}", exact(*number)), "  ", 100)).collect()
}

fn stats(solved: &Solved) -> String {
    let (counts, tally) = (&solved.found.counts, &solved.found.tally);
    heading("Stats")
        + &format!(
            "  enumerated {}, legal {}, priced {}, fit {}, simulated {}\n  {:.3} s on {} threads, {:.3} s of cores: {} priced a second a core\n",
            exact(counts.enumerated),
            exact(counts.legal),
            exact(tally.priced),
            exact(tally.fit),
            exact(solved.found.simulated),
            solved.seconds,
            solved.threads,
            core_seconds(solved),
            exact(rate(solved) as u64)
        )
}

/// Layouts priced in a second of one core, probing included. Time that others held the core does
/// not count where the system tells it apart.
pub fn rate(solved: &Solved) -> f64 {
    solved.found.tally.priced as f64 / core_seconds(solved).max(1e-9)
}

fn core_seconds(solved: &Solved) -> f64 {
    solved.cpu_seconds.unwrap_or(solved.seconds * solved.threads.max(1) as f64)
}

/// Seconds as people read them.
pub fn seconds(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0} s"),
        v if v >= 1.0 => format!("{v:.2} s"),
        v if v >= 0.1 => format!("{:.0} ms", 1e3 * v),
        v => format!("{:.1} ms", 1e3 * v),
    }
}

/// The same question asked of the other commands, with everything that was typed.
fn next_steps(args: &PlanArgs, best: &Choice, besides: Option<&str>) -> String {
    let mut flags = best.layout.all_flags();
    for (flag, features) in [("with", &args.recipe.with), ("without", &args.recipe.without)] {
        if !features.is_empty() {
            let names: Vec<_> = features.iter().map(|f| f.name()).collect();
            flags += &format!(" --{flag} {}", names.join(","));
        }
    }
    let host = if best.offload > 0.0 && args.state.offload_optimizer.is_none() {
        format!(" --offload-optimizer {}", best.offload)
    } else {
        String::new()
    };
    let (name, world) = (quote::shell(&args.recipe.recipe), best.layout.world);
    let on = format!("{}{}{host}", quote::shell(&args.on), args.state.flags());
    let look = heading("Look closer")
        + &format!("  shardwright fit    {name} {flags} --on {on}\n")
        + &format!("  shardwright stages {name} {flags} --world {world}\n");
    let Some(besides) = besides else { return look };
    look + &heading("Launch it (the directory to hand to your cluster)")
        + &format!("  shardwright launch {name} {flags} --on {on}{besides} --scheduler slurm --out launch\n")
}
