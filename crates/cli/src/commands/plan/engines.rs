//! Engines side by side: the best layout of each, what it cannot run of the model, then the page of the one to take.

use super::text::{flags_of, given_up, seconds};
use super::trust::range;
use super::written::Written;
use super::{Aim, Wanted, report, with_solution};
use crate::args::PlanArgs;
use crate::files::load_cluster;
use crate::outcome::{Outcome, Refusal};
use crate::table::{Table, heading, wrap};
use case::asked::EngineChoice;
use case::machines::{engines_on, usual_engines};
use cost::Interval;
use diag::{Blame, Finding, RuleId};
use launch::lanes::topology;
use layout::Engine;
use recipe::Mode;
use search::{Choice, ModeSpace};
use serde_json::{Value, json};
use units::{Bytes, count};

/// The engines that are typed as a list, or that suit machine and recipe where several do.
pub fn asked(args: &PlanArgs, on: &str) -> Result<Option<Asked>, Refusal> {
    if args.search.engines.is_empty() && args.layout.engine.is_some() {
        return Ok(None);
    }
    let cluster = load_cluster(on)?;
    let mut engines: Vec<Engine> = Vec::new();
    for word in &args.search.engines {
        let named = match word.as_str() {
            "all" => engines_on(cluster.device.vendor),
            name => match Engine::ALL.iter().find(|(known, _)| *known == name) {
                Some((_, engine)) => vec![*engine],
                None => return Err(unknown(name).into()),
            },
        };
        engines.extend(named.into_iter().filter(|engine| !engines.contains(engine)).collect::<Vec<_>>());
    }
    if !engines.is_empty() {
        return Ok(Some(Asked { engines, why: None }));
    }
    let recipe = crate::commands::recipe_of(&args.recipe)?;
    let (engines, why) = usual_engines(&recipe, Some(&cluster));
    Ok((engines.len() > 1).then_some(Asked { engines, why: Some(why) }))
}

/// Which engines are compared.
pub struct Asked {
    engines: Vec<Engine>,
    /// Why these, where nobody typed them.
    why: Option<String>,
}

fn unknown(name: &str) -> Finding {
    let names: Vec<&str> = Engine::ALL.iter().map(|(name, _)| *name).collect();
    let message = format!("`{name}` is no engine that `plan` compares");
    let hint = format!("one or more of {}, with commas between them, or all", names.join(", "));
    Finding::error("plan/engines", Blame::Usage, "engine", message).hint(hint)
}

/// What one engine comes to.
pub struct Row {
    pub engine: Engine,
    pub found: Result<Best, Refusal>,
}

/// The best layout of one engine.
pub struct Best {
    per_sequence: f64,
    pub seconds: f64,
    interval: Option<Interval>,
    tokens: f64,
    pub headroom: i64,
    pub flags: String,
    /// The mode it runs in, where the recipe has any.
    pub mode: Option<Mode>,
    /// What of the model it does not run.
    pub lacks: Vec<&'static str>,
    /// What the user must bring.
    needs: Vec<&'static str>,
    /// The job behind `shardwright launch`; none where `launch` refuses it.
    pub launch: Option<Vec<String>>,
    /// What a policy keeps tuned constants by.
    pub topology: String,
    /// What `launch` says of it.
    pub findings: Vec<Finding>,
}

impl Row {
    /// Why there is no layout, in a sentence.
    pub fn why(&self) -> Option<&str> {
        let refusal = self.found.as_ref().err()?;
        Some(refusal.findings.first().map_or("", |finding| finding.message.as_str()))
    }
}

/// Each engine with its best layout, as `plan` finds it.
pub fn compared(args: &PlanArgs, on: &str, engines: &[Engine]) -> Vec<Row> {
    engines.iter().map(|engine| row(args, on, *engine)).collect()
}

/// The engine to take: the fastest of those that fit and start as they are written.
pub fn to_take(rows: &[Row]) -> Option<(&Row, &Best)> {
    let order = |best: &Best| (best.launch.is_none(), !best.needs.is_empty());
    let fitting = rows.iter().filter_map(|row| Some((row, row.found.as_ref().ok()?)));
    fitting.min_by(|(_, a), (_, b)| order(a).cmp(&order(b)).then(a.per_sequence.total_cmp(&b.per_sequence)))
}

/// Compares engines, and answers with the page of the one to take.
pub fn run(args: &PlanArgs, on: &str, asked: &Asked) -> Outcome {
    let rows = compared(args, on, &asked.engines);
    let engine = to_take(&rows).map_or(asked.engines[0], |(row, _)| row.engine);
    let args = of_engine(args, engine);
    let mut wanted = Wanted::new(&args, on, args.search.sequences.first().copied())?;
    wanted.why_engine = asked.why.clone();
    let mut report = with_solution(&args, &wanted, Aim::of(&args), |solved| report(&args, &wanted, solved))?;
    report.text = text(&rows, asked, engine) + "\n" + &report.text;
    if let Some(json) = &mut report.json {
        json["engines"] = rows.iter().map(value).collect();
    }
    Ok(report)
}

/// The same question of one engine.
fn of_engine(args: &PlanArgs, engine: Engine) -> PlanArgs {
    let mut args = args.clone();
    args.search.engines = Vec::new();
    args.layout.engine = Some(EngineChoice::One(engine));
    args
}

fn row(args: &PlanArgs, on: &str, engine: Engine) -> Row {
    let args = of_engine(args, engine);
    let found = Wanted::new(&args, on, args.search.sequences.first().copied()).and_then(|wanted| {
        with_solution(&args, &wanted, Aim::alone(), |solved| {
            let answer = solved.answer.modes.first();
            let mode = answer.map(|answer| &solved.space.modes[answer.mode]);
            match (solved.answer.best(), mode) {
                (Some(best), Some(mode)) => Ok(Best::of(best, mode)),
                _ => Err(nothing_fits(super::text::verdict(&wanted, solved)).into()),
            }
        })
    });
    Row { engine, found }
}

/// That an engine has no layout which fits.
pub const NOTHING_FITS: RuleId = "plan/none";

fn nothing_fits(verdict: String) -> Finding {
    Finding::error(NOTHING_FITS, Blame::Layout, "layout", verdict)
}

impl Best {
    fn of(best: &Choice, mode: &ModeSpace) -> Best {
        let written = Written::of(best);
        let launch = |besides: &str| {
            let besides = besides.split_whitespace().map(str::to_string);
            best.case.words().into_iter().chain(besides).collect()
        };
        Best {
            mode: mode.mode,
            launch: written.flags().map(launch),
            topology: topology(best.case.on(), &best.case.layout),
            findings: written.findings(),
            per_sequence: best.per_sequence(),
            seconds: best.step.seconds,
            interval: best.step.interval.clone(),
            tokens: best.step.tokens_per_second_per_device,
            headroom: best.fit.tightest().headroom,
            flags: flags_of(&best.case),
            lacks: given_up(mode),
            needs: mode.brought().map(|seam| seam.name).collect(),
        }
    }

    /// What it does not run of the model as it was typed.
    fn cannot(&self) -> String {
        let needs = (!self.needs.is_empty()).then(|| format!("needs a module you bring: {}", self.needs.join(", ")));
        let lacks = (!self.lacks.is_empty()).then(|| self.lacks.join(", "));
        let all: Vec<String> = lacks.into_iter().chain(needs).collect();
        if all.is_empty() { "-".to_string() } else { all.join("; ") }
    }
}

fn text(rows: &[Row], asked: &Asked, taken: Engine) -> String {
    let columns = ["engine", "step", "8 of 10 such runs", "tokens/s a device", "headroom", "does not run"];
    let mut table = Table::new(&columns).right(&[1, 3, 4]);
    let mut refused = String::new();
    for row in rows {
        match &row.found {
            Ok(best) => table.row([
                row.engine.to_string(),
                seconds(best.seconds),
                best.interval.as_ref().map_or_else(|| "-".to_string(), range),
                count(best.tokens as u64),
                Bytes(best.headroom.max(0) as u64).to_string(),
                best.cannot(),
            ]),
            Err(_) => refused += &wrap(&format!("{}: {}", row.engine, row.why().unwrap_or_default()), "  ", 100),
        }
    }
    let fitting = rows.iter().filter(|row| row.found.is_ok()).count();
    let mut text = heading("Engines side by side, each with its best layout");
    text += &if fitting > 0 { table.render() + &refused } else { refused };
    let why = asked.why.as_ref().map_or(String::new(), |why| format!("; compared are those for {why}"));
    let taken = match fitting {
        0 => format!("none fits: below is what is nearest under {taken}{why}"),
        1 => format!("{taken} is the only one that fits{why}"),
        _ => format!("{taken} is the fastest that fits and starts as it is written{why}"),
    };
    text + &wrap(&taken, "  ", 100)
}

fn value(row: &Row) -> Value {
    match &row.found {
        Ok(best) => json!({ "engine": row.engine.name(), "seconds": best.seconds, "interval": best.interval,
            "tokens_per_second_per_device": best.tokens, "headroom_bytes": best.headroom, "flags": best.flags,
            "gives_up": best.lacks, "needs": best.needs }),
        Err(_) => json!({ "engine": row.engine.name(), "why": row.why() }),
    }
}
