//! A plan on one screen.

use super::besides;
use super::budget::{Run, text as budget};
use super::trust::{equals, proof, slower, spread, such_runs};
use super::ways::{self, Way};
use super::written::Written;
use super::{Solved, Wanted};
use crate::args::PlanArgs;
use crate::bars;
use crate::commands::fit::{fit_lines, host_text, overloaded_text, tokens_per_second, verdict_text};
use crate::commands::{calibrated_text, model_line_at, shorten, typed, widths};
use crate::table::{Table, heading, wrap};
use case::{Case, Part};
use diag::quote;
use hardware::{Cluster, Link};
use launch::header::{Header, choices};
use layout::LayoutRequest;
use memory::fit::{Fit, Margin, RankClass, levers};
use recipe::Mixer;
use search::{Batch, Choice, MemoryLine, ModeSpace, Nearest, Point, Refused, Simulated};
use units::{Bytes, change, count, exact, longer};
use work::Work;

/// Lines of the space's rejects and of neighbours that a screen has room for.
const SHOWN: usize = 3;

/// Stages in the picture; of more, the first, the worst and the last.
const PICTURED: usize = 8;

/// Everything.
pub fn screen(args: &PlanArgs, wanted: &Wanted, solved: &Solved, written: Option<&Written>, ways: &[Way]) -> String {
    let mut text = match solved.answer.best() {
        Some(best) => {
            head(args, wanted)
                + &chosen(wanted, solved, best, written)
                + &memory(solved, best)
                + &step(best)
                + &widths::text(&best.case, best.step.seconds)
                + &alternatives(solved, best)
                + &besides::text(solved, best)
                + &top(args, solved)
        }
        None => {
            let verdict = format!("\x1b[1;31m{}\x1b[0m\n\n", verdict(wanted, solved));
            let why = if solved.found.counts.legal == 0 { nothing_legal(solved) } else { nothing_fits(wanted, solved) };
            verdict + &head(args, wanted) + &why + &ways::text(ways)
        }
    };
    text += &space(solved);
    if args.search.stats {
        text += &stats(solved);
    }
    if let Some(best) = solved.answer.best() {
        text += &next_steps(solved, best, written.and_then(Written::flags));
    }
    text
}

/// A whole run on one page: the layout, the step, and what it comes to.
pub fn page(args: &PlanArgs, wanted: &Wanted, solved: &Solved, written: Option<&Written>, run: &Run) -> String {
    let Some(best) = solved.answer.best() else { return String::new() };
    let late = args.budget.days.filter(|days| run.budget.days > *days).map(|days| {
        format!("\x1b[1;31mIt takes {} days, and {days} are allowed\x1b[0m\n\n", budget::days(run.budget.days))
    });
    let mut text = late.unwrap_or_default() + &head(args, wanted);
    text += &title(wanted, solved, written);
    text += &wrap(&flags_of(&best.case), "  ", 100);
    text += &budget::step(solved, best);
    text += &budget::run(&args.budget, run);
    text += &budget::instead(&args.budget, solved, best, run);
    text + &wrap("the same without --tokens shows its memory, what stands beside it and why the rest lost", "  ", 100)
}

fn head(args: &PlanArgs, wanted: &Wanted) -> String {
    let (counts, cluster) = (wanted.recipe.counts().all, &wanted.cluster);
    let mut text = model_line_at(&wanted.recipe, wanted.pinned.sequence) + "\n";
    text += &format!("  {} parameters, {} active on a token\n", exact(counts.total), count(counts.active));
    text += &format!(
        "\x1b[1m{}\x1b[0m  {} × {} {}, {} visible on each; {}\n",
        quote::terminal(&args.on),
        cluster.nodes,
        cluster.devices_per_node,
        cluster.device.name,
        Bytes(cluster.device.visible_bytes()),
        islands(cluster)
    );
    if let (Some(engine), Some(why)) = (wanted.pinned.engine, &wanted.why_engine) {
        text += &wrap(&format!("engine {engine}: {why}"), "  ", 100);
    }
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
fn terms(wanted: &Wanted, solved: &Solved) -> String {
    let engine = match (wanted.pinned.engine, &wanted.why_engine) {
        (Some(engine), None) => format!("for {engine}"),
        (Some(engine), Some(_)) => format!("for {engine} (--engine says otherwise)"),
        (None, _) => "for any engine".to_string(),
    };
    let batch = match (solved.space.batch, solved.space.is_batch_typed) {
        (Batch::Global(global), true) => format!("{global} sequences a step"),
        (Batch::Global(global), false) => {
            let tokens = units::count(global * solved.space.sequence);
            format!("{global} sequences a step ({tokens} tokens, assumed; --gbs)")
        }
        (Batch::Count(count), _) => format!("{count} microbatches a step"),
    };
    format!("{engine}, {batch}")
}

/// The flags of a job's layout, with what it keeps on the host and what its engine is given.
pub fn flags_of(case: &Case) -> String {
    let state = case.pinned().state;
    let mut words = case.layout.words(case.recipe.uses(Mixer::Moe));
    if let Some(share) = state.offload_optimizer {
        words.extend(["--offload-optimizer".to_string(), share.to_string()]);
    }
    words.extend(state.engine_args.into_iter().flat_map(|args| ["--engine-args".to_string(), args]));
    quote::typed_line(words)
}

/// What the layout below is: the best one only where it starts as it is written.
fn title(wanted: &Wanted, solved: &Solved, written: Option<&Written>) -> String {
    let word = written.map_or("Best".to_string(), Written::title);
    heading(&format!("{word} {}", terms(wanted, solved)))
}

fn chosen(wanted: &Wanted, solved: &Solved, best: &Choice, written: Option<&Written>) -> String {
    let mut text = title(wanted, solved, written);
    text += &wrap(&flags_of(&best.case), "  ", 100);
    let (step, beside) = (&best.step, best.case.beside_figures());
    text += &format!(
        "  step {}, {}{}\n  {} tokens/s a device, {:.0} TFLOP/s a device (MFU {:.1}%), bubble {:.1}%; bound by {}{beside}\n",
        seconds(step.seconds),
        spread(step),
        beside,
        count(step.tokens_per_second_per_device as u64),
        step.tflops_per_device,
        100.0 * step.mfu,
        100.0 * step.bubble,
        step.bound
    );
    text += &wrap(&Header::of(&best.case).to_string(), "  ", 100);
    for (key, choice) in choices(&best.case) {
        text += &wrap(&format!("{key} {choice}"), "  ", 100);
    }
    text += &caveats(solved, best);
    text += &calibrated_text(&solved.space.question.cluster.device, solved.space.question.recipe, "  ");
    text += &proof(solved, best);
    text += &equals(solved, best);
    text += &modes(solved, best);
    if let Some((_, first)) = refuted(solved).next() {
        let more = refuted(solved).count();
        text += &wrap(&format!("{more} faster by the quick sums fell to the replay, first: {}", first.why), "  ", 100);
    }
    text
}

/// Layouts of all modes that the sums let pass and the replay did not.
pub fn refuted<'s>(solved: &'s Solved) -> impl Iterator<Item = &'s (Simulated, Refused)> {
    solved.answer.modes.iter().flat_map(|mode| solved.found.verdicts.refuted(solved.space, mode.mode))
}

/// How far the time is to be trusted, and how much it hangs on a batch nobody typed.
fn caveats(solved: &Solved, best: &Choice) -> String {
    let mut text = such_runs(&best.step);
    if solved.space.is_batch_typed {
        return "  ".to_string() + &text + "\n";
    }
    let others: Vec<String> = solved
        .other_batches(best)
        .iter()
        .map(|(gbs, rate)| format!("{} with {gbs}", change(rate / best.step.tokens_per_second_per_device - 1.0)))
        .collect();
    if !others.is_empty() {
        text += &format!("; the batch is assumed: this layout's tokens/s change by {}", others.join(", "));
    }
    wrap(&text, "  ", 100)
}

/// Tokens a second and device of the same layout with half and twice the batch.
pub fn price_other_batches(best: &Choice) -> Vec<(u64, f64)> {
    let count = best.case.layout.microbatches;
    let counts = [count / 2, count * 2].into_iter().filter(|other| *other > 0 && *other != count);
    let priced = counts.filter_map(|other| {
        let case = best.case.with(|asked| asked.layout.microbatches = Some(other)).ok()?;
        Some((case.layout.global_batch, cost::step(&case).ok()?.tokens_per_second_per_device))
    });
    priced.collect()
}

/// The features and blocks that a mode does not run, by name.
pub fn given_up(mode: &ModeSpace) -> Vec<&'static str> {
    mode.given_up().map(|seam| seam.name).collect()
}

/// What the chosen mode gives up, and what the others would: modes are compared, never mixed.
fn modes(solved: &Solved, best: &Choice) -> String {
    let mut text = String::new();
    for answer in &solved.answer.modes {
        let mode = &solved.space.modes[answer.mode];
        let Some(name) = mode.mode else { return text };
        let gone = given_up(mode);
        let gone =
            if gone.is_empty() { "nothing is given up".to_string() } else { format!("gives up {}", gone.join(", ")) };
        let brought: Vec<&str> = mode.brought().map(|seam| seam.name).collect();
        let gone = match brought.as_slice() {
            [] => gone,
            names => format!("{gone}; needs a module you bring: {}", names.join(", ")),
        };
        text += &match &answer.best {
            Some(choice) if choice.point == best.point => format!("  mode {name}: {gone}\n"),
            Some(choice) => {
                let slower = 100.0 * slower(best, choice);
                let flags = flags_of(&choice.case);
                wrap(&format!("beside it mode {name} ({gone}): {slower:+.1}% time a sequence, {flags}"), "  ", 100)
            }
            None => format!("  beside it mode {name} ({gone}): nothing fits\n"),
        };
    }
    text
}

fn memory(solved: &Solved, best: &Choice) -> String {
    let device = &solved.space.question.cluster.device;
    let classes = pictured(&best.fit);
    let mut text = heading(&format!("Memory of one rank a stage (replayed){}", best.case.beside_figures()));
    text += &bars::bars(&classes, device.visible_bytes(), 60);
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
    text += &overload(solved, best);
    let host = host_text(&best.fit);
    if host.is_empty() { text } else { text + "  " + &host }
}

/// What the overload that was asked for leaves, and where the layout breaks.
pub fn overload(solved: &Solved, best: &Choice) -> String {
    let asked = overloaded_text(&best.fit, solved.space.question.cluster.device.visible_bytes());
    let asked = if asked.is_empty() { asked } else { format!("  {asked}") };
    asked + &solved.overload(best).map_or(String::new(), |overload| wrap(&overload.words(), "  ", 100))
}

/// All stages, or the first, the worst and the last of many.
fn pictured(fit: &Fit) -> Vec<RankClass> {
    if fit.classes.len() <= PICTURED {
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
    heading(&format!("Step, on the stage that bounds it{}", best.case.beside_figures()))
        + &wrap(&words.join(", "), "  ", 100)
}

fn alternatives(solved: &Solved, best: &Choice) -> String {
    if solved.answer.neighbours.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["instead", "step", "slower", "headroom"]).right(&[1, 2, 3]);
    for neighbour in solved.answer.neighbours.iter().take(SHOWN) {
        table.row([
            shorten(&difference(solved, best, &neighbour.point), 60),
            seconds(neighbour.seconds),
            change(neighbour.slower),
            Bytes(neighbour.headroom.max(0) as u64).to_string(),
        ]);
    }
    heading(&format!("One change away{}", best.case.beside_figures())) + &table.render()
}

/// Flags in which another layout differs; what follows from them is left out.
pub fn difference(solved: &Solved, best: &Choice, other: &Point) -> String {
    const FOLLOW: [&str; 5] = ["world", "dp", "edp", "microbatches", "gbs"];
    let Ok(case) = solved.space.case(other) else { return String::new() };
    let differences = best.case.differences(&case);
    let of_layout = differences.iter().filter(|d| matches!(d.part, Part::Layout | Part::Options));
    let shown = of_layout.filter(|d| !FOLLOW.contains(&d.key.as_str()));
    let of_engine = |key: &str| case::words::of(best.case.layout.engine).words.iter().any(|word| word.name == key);
    let words: Vec<String> = shown
        .map(|d| match (d.key.as_str(), d.new.as_str()) {
            (key, "true") if of_engine(key) && key.starts_with("--") => key.to_string(),
            (key, "false" | "") if of_engine(key) => format!("no {key}"),
            (key, value) if of_engine(key) && key.starts_with("--") => format!("{key} {value}"),
            (key, value) if of_engine(key) => format!("{key}={value}"),
            (key, "") => format!("no --{key}"),
            ("sp", "false") => "--no-sp".to_string(),
            ("sp", _) => "--sp".to_string(),
            ("boundaries", cuts) => format!("--boundaries {}", cuts.trim_matches(['[', ']'])),
            (key, value) => format!("--{key} {value}"),
        })
        .collect();
    words.join(" ")
}

fn top(args: &PlanArgs, solved: &Solved) -> String {
    if args.search.top == 0 {
        return String::new();
    }
    let mut table = Table::new(&["ms a sequence", "headroom", "complexity", "layout"]).right(&[0, 1, 2]);
    for simulated in solved.kept().top.iter().take(args.search.top) {
        table.row([
            format!("{:.3}", 1e3 * simulated.per_sequence),
            Bytes(simulated.headroom.max(0) as u64).to_string(),
            simulated.complexity.to_string(),
            quote::typed_line(solved.space.words(&simulated.point)),
        ]);
    }
    let beside = solved.answer.best().map_or(String::new(), |best| best.case.beside_figures());
    heading(&format!("The best by throughput (memory by the quick sums){beside}")) + &table.render()
}

/// The space in one line that counts everything, and what refused most.
fn space(solved: &Solved) -> String {
    let (counts, tally) = (&solved.found.counts, &solved.found.tally);
    let frontier = solved.kept().frontier.len() as u64;
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
    if tally.unseen > 0 {
        line += &format!(", {} not looked at: the search came to its limit (--work-limit)", exact(tally.unseen));
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

/// What else could be tried where nothing is to be run: only what there is less of.
pub fn ways_out(request: &LayoutRequest, margin: impl Into<Margin>) -> String {
    let margin = margin.into();
    let axes = [request.tp, request.pp, request.vpp, request.cp, request.ep, request.etp, request.dp];
    let is_pinned = axes.iter().any(Option::is_some) || request.zero.is_some() || request.schedule.is_some();
    let mut ways = vec!["more devices", "a smaller --gbs or --seq"];
    if margin.headroom.0 > 0 {
        ways.push("less --headroom");
    }
    if margin.overload > 1.0 {
        ways.push("less --overload");
    }
    if is_pinned {
        ways.push("fewer axes pinned");
    }
    let last = ways.pop().unwrap_or_default();
    format!("{} or {last}", ways.iter().map(|way| format!("{way},")).collect::<Vec<_>>().join(" "))
}

/// That there is nothing to run, in one sentence.
pub fn verdict(wanted: &Wanted, solved: &Solved) -> String {
    let counts = &solved.found.counts;
    let is_priced = solved.found.tally.priced > 0;
    match is_priced {
        _ if counts.legal == 0 && counts.refused.is_empty() => "No layout of these degrees fills the world".to_string(),
        _ if counts.legal == 0 => format!("No layout is legal {}", terms(wanted, solved)),
        false => format!("No layout has a price {}", terms(wanted, solved)),
        true if solved.found.tally.unseen > 0 => {
            format!("No layout that was looked at fits {}", terms(wanted, solved))
        }
        true => format!("No layout fits {}", terms(wanted, solved)),
    }
}

fn nothing_legal(solved: &Solved) -> String {
    let mut rules: Vec<_> = solved.found.counts.refused.iter().collect();
    if rules.is_empty() {
        return String::new();
    }
    rules.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    let mut table = Table::new(&["rule", "layouts it refuses"]).right(&[1]);
    for (rule, number) in rules {
        table.row([rule.to_string(), exact(*number)]);
    }
    heading("What refuses them") + &table.render() + "  `shardwright check` says what each rule asks for\n"
}

fn nothing_fits(wanted: &Wanted, solved: &Solved) -> String {
    let Some(nearest) = &solved.nearest else { return unpriced(solved) };
    let otherwise = format!("  or {}\n", ways_out(&wanted.pinned, solved.space.question.margin()));
    let mut text = heading("Nearest");
    text += &wrap(&quote::typed_line(solved.space.words(&nearest.point)), "  ", 100);
    let Some((case, fit)) = nearest.replayed.as_deref() else {
        return text + &unreplayed(solved, nearest) + &otherwise;
    };
    text += &format!("\n{}\n", verdict_text(case, fit));
    text += &bars::bars(&pictured(fit), case.on().device.visible_bytes(), 60);
    let found = levers(case, fit, solved.left.beside(solved.pricers), &tokens_per_second).found;
    let mut table = Table::new(&["what would help", "saves", "headroom then", "time of a token"]).right(&[1, 2, 3]);
    for lever in found.iter().take(SHOWN) {
        let headroom = match u64::try_from(lever.headroom_bytes) {
            Ok(left) => Bytes(left).to_string(),
            Err(_) => format!("-{}", Bytes(lever.headroom_bytes.unsigned_abs())),
        };
        table.row([lever.change.clone(), Bytes(lever.saves_bytes).to_string(), headroom, longer(lever.slows)]);
    }
    text + &if found.is_empty() { String::new() } else { table.render() } + &otherwise
}

/// A layout that does not fit by the sums, where the replay takes more than is left.
fn unreplayed(solved: &Solved, nearest: &Nearest) -> String {
    let case = solved.space.case(&nearest.point).ok();
    let takes = case.map_or(0, |case| solved.space.question.replay(&case));
    let seconds = Work { operations: takes, bytes: 0 }.core_seconds();
    let missing = Bytes(nearest.missing.unsigned_abs());
    let words = format!(
        "misses {missing} by the quick sums; its replay takes about {seconds:.0} s of one core, more than is left of \
         --work-limit"
    );
    "\n".to_string() + &wrap(&words, "", 100)
}

fn unpriced(solved: &Solved) -> String {
    let lines = solved.found.tally.unpriced.iter();
    heading("Why")
        + &lines.map(|(reason, number)| wrap(&format!("{}: {reason}", exact(*number)), "  ", 100)).collect::<String>()
}

fn stats(solved: &Solved) -> String {
    let (counts, tally) = (&solved.found.counts, &solved.found.tally);
    // Time that others held the core does not count where the system tells it apart.
    let rate = match solved.priced_per_second {
        Some(rate) => format!("; pricing alone: {} layouts a second of a core", exact(rate as u64)),
        None => String::new(),
    };
    heading("Stats")
        + &format!(
            "  enumerated {}, legal {}, priced {}, fit {}, simulated {}\n  {:.3} s on {} threads, {:.3} s of cores{rate}\n",
            exact(counts.enumerated),
            exact(counts.legal),
            exact(tally.priced),
            exact(tally.fit),
            exact(solved.found.simulated),
            solved.seconds,
            solved.threads,
            core_seconds(solved),
        )
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

/// The same job handed to the other commands.
fn next_steps(solved: &Solved, best: &Choice, allowed: Option<&str>) -> String {
    let job = typed(&best.case);
    let overload = solved.space.question.overload;
    let overload = if overload > 1.0 { format!(" --overload {overload}") } else { String::new() };
    // One node needs no scheduler: `launch.sh` starts it.
    let scheduler = if best.case.on().nodes > 1 { " --scheduler slurm" } else { "" };
    let look = heading("Look closer")
        + &format!("  shardwright fit {job}{overload}\n")
        + &format!("  shardwright stages {job}\n");
    let Some(allowed) = allowed else { return look };
    let title = match best.case.on().nodes {
        1 => "Launch it (a directory for this machine: `./launch.sh` in it starts the run)",
        _ => "Launch it (the directory to hand to your cluster)",
    };
    look + &heading(title) + &format!("  shardwright launch {job}{allowed}{scheduler} --out launch\n")
}
