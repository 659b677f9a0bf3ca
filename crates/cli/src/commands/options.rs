//! `options`: what an engine may be told in its own words, what each word is worth, and which words
//! are ours to say.

use crate::args::OptionsArgs;
use crate::outcome::{Outcome, Report};
use crate::table::{Table, heading, wrap};
use case::options_of;
use case::words::{self, Effect, Passed, Place, Takes, Vocabulary, Word};
use case::{Asked, Options};
use layout::Engine;
use recipe::Recipe;
use recipe::builtin::{RECIPES, find};
use serde_json::{Value, json};

/// Columns that the text keeps to.
const WIDTH: usize = 80;

pub fn run(args: &OptionsArgs) -> Outcome {
    match args.engine {
        Some(engine) => Ok(Report::new(one(engine)?, of(engine)?)),
        None => {
            let engines = Engine::ALL.iter().map(|(_, engine)| of(*engine)).collect::<Result<Vec<_>, _>>()?;
            Ok(Report::new(overview(), json!({ "engines": engines })))
        }
    }
}

fn overview() -> String {
    let mut table = Table::new(&["engine", "options", "passed on", "by flags of ours"]).right(&[1, 2, 3]);
    for (name, engine) in Engine::ALL {
        let Vocabulary { words, passed, ours, .. } = words::of(Some(*engine));
        table.row([name.to_string(), words.len().to_string(), passed.len().to_string(), ours.len().to_string()]);
    }
    table.render()
        + "\n`shardwright options ENGINE` lists them; --engine-args \"WORDS\" tells them to\n\
           plan, fit, diff, stages, launch and preflight\n"
}

/// What a launch of ours has when nobody says otherwise; none where that depends on the recipe.
struct Usual(Vec<Options>);

impl Usual {
    fn of(engine: Engine) -> Result<Usual, Vec<diag::Finding>> {
        let recipes = RECIPES.iter().map(|(name, _)| find(name)).collect::<Result<Vec<Recipe>, _>>()?;
        let options = |recipe: &Recipe| options_of(&Asked::default(), Some(engine), recipe, None);
        let all = recipes.iter().map(options).collect::<Result<Vec<_>, _>>()?;
        Ok(Usual(all.into_iter().map(|(options, _)| options).collect()))
    }

    fn value(&self, word: &Word) -> Option<String> {
        let mut values: Vec<String> = self.0.iter().map(word.get).collect();
        values.dedup();
        if values.len() == 1 { values.pop() } else { None }
    }
}

fn one(engine: Engine) -> Result<String, Vec<diag::Finding>> {
    let (vocabulary, usual) = (words::of(Some(engine)), Usual::of(engine)?);
    if vocabulary.words.is_empty() {
        let none = format!("{engine} takes no words of its own: flags of layout and state are all that it is told");
        return Ok(wrap(&none, "", WIDTH));
    }
    let mut out = format!("\x1b[1m{engine}\x1b[0m  in its own words, as --engine-args \"WORDS\"\n");
    out += &heading("Options");
    for word in vocabulary.words {
        out += &option(engine, word, usual.value(word));
    }
    if !vocabulary.passed.is_empty() {
        out += &heading("Passed on as they stand, since they change neither memory nor time");
        out += &vocabulary.passed.iter().map(passed).collect::<String>();
    }
    if !vocabulary.implied.is_empty() {
        out += &heading("Written where other options need them");
        out += &wrap(&vocabulary.implied.join(", "), "  ", WIDTH);
    }
    if !vocabulary.tuned.is_empty() {
        out += &heading("Constants that belong to a topology: a policy keeps them in [tuned.\"TOPOLOGY\"]");
        out += &wrap(&vocabulary.tuned.join(", "), "  ", WIDTH);
    }
    if !vocabulary.refused.is_empty() {
        out += &heading("Refused");
        out += &vocabulary
            .refused
            .iter()
            .map(|(word, why)| wrap(&format!("{word}: {why}"), "  ", WIDTH))
            .collect::<String>();
    }
    if !vocabulary.ours.is_empty() {
        out += &heading("Said by flags of ours");
        let mut table = Table::new(&["word", "flag"]);
        vocabulary.ours.iter().for_each(|(word, flag)| table.row([*word, *flag]));
        out += &table.render();
    }
    Ok(out)
}

/// One option: its word and what follows it, what it is for, its defaults, what it changes.
fn option(engine: Engine, word: &Word, usual: Option<String>) -> String {
    let own = shown(word.own);
    let default = match usual.as_deref().map(shown) {
        None => format!("{own} in {engine}; in a launch of ours it depends on the recipe"),
        Some(ours) if ours == own => format!("{own}, in {engine} and in a launch of ours"),
        Some(ours) => format!("{own} in {engine}, {ours} in a launch of ours"),
    };
    let told = match word.place {
        Place::Argument => "",
        Place::Environment => " (environment)",
    };
    let mut out = wrap(&format!("{} {}{told}", word.name, takes(word)), "  ", WIDTH);
    out += &wrap(word.what, "    ", WIDTH);
    out += &wrap(&format!("default: {default}"), "    ", WIDTH);
    out + &wrap(&effects(word), "    ", WIDTH)
}

/// What follows a word, in words.
fn takes(word: &Word) -> String {
    match word.takes {
        Takes::Switch if word.name.starts_with("--") => format!("or {}", word.negated()),
        Takes::Switch => "= true or false".to_string(),
        Takes::OneOf(known) => format!("= {}", listed(known, "or")),
        Takes::Some(known) => format!("= some of {}", listed(known, "and")),
        Takes::Number => "= a whole number".to_string(),
    }
}

/// `a, b or c`; an empty one is what it is unset to.
fn listed(known: &[&str], last: &str) -> String {
    let known: Vec<&str> = known.iter().filter(|word| !word.is_empty()).copied().collect();
    match known.split_last() {
        Some((end, [])) => end.to_string(),
        Some((end, rest)) => format!("{} {last} {end}", rest.join(", ")),
        None => String::new(),
    }
}

fn shown(value: &str) -> &str {
    if value.is_empty() { "unset" } else { value }
}

fn effects(word: &Word) -> String {
    match (word.memory, word.time) {
        (Effect::Changes, Effect::Changes) => "changes: memory and time (priced, or refused by name)".to_string(),
        (Effect::Changes, Effect::None(why)) => {
            format!("changes: memory (priced, or refused by name); not time: {why}")
        }
        (Effect::None(why), Effect::Changes) => {
            format!("changes: time (priced, or refused by name); not memory: {why}")
        }
        (Effect::None(memory), Effect::None(time)) => format!("changes: not memory: {memory}; not time: {time}"),
    }
}

fn passed(passed: &Passed) -> String {
    let values = " VALUE".repeat(passed.values);
    wrap(&format!("{}{values}: {}", passed.name, passed.why), "  ", WIDTH)
}

/// Everything of one engine, for machines.
fn of(engine: Engine) -> Result<Value, Vec<diag::Finding>> {
    let (vocabulary, usual) = (words::of(Some(engine)), Usual::of(engine)?);
    let some = |value: &str| (!value.is_empty()).then(|| value.to_string());
    let option = |word: &Word| {
        let (kind, values) = match word.takes {
            Takes::Switch => ("switch", ["true", "false"].as_slice()),
            Takes::OneOf(known) => ("one", known),
            Takes::Some(known) => ("some", known),
            Takes::Number => ("number", [].as_slice()),
        };
        let values: Vec<&&str> = values.iter().filter(|value| !value.is_empty()).collect();
        let usual = usual.value(word);
        json!({
            "word": word.name, "takes": kind, "values": values,
            "told": match word.place { Place::Argument => "argument", Place::Environment => "environment" },
            "engine_default": some(word.own), "launch_default": usual.as_deref().and_then(some),
            "launch_default_by_recipe": usual.is_none(),
            "memory": effect(word.memory), "time": effect(word.time), "what": word.what,
        })
    };
    let passed = |one: &Passed| json!({ "word": one.name, "values": one.values, "why": one.why });
    let ours = |(word, flag): &(&str, &str)| json!({ "word": word, "flag": flag });
    Ok(json!({
        "engine": engine.name(), "options": vocabulary.words.iter().map(option).collect::<Vec<_>>(),
        "passed": vocabulary.passed.iter().map(passed).collect::<Vec<_>>(), "implied": vocabulary.implied,
        "tuned": vocabulary.tuned,
        "refused": vocabulary.refused.iter().map(|(word, why)| json!({ "word": word, "why": why })).collect::<Vec<_>>(),
        "ours": vocabulary.ours.iter().map(ours).collect::<Vec<_>>(),
    }))
}

fn effect(effect: Effect) -> Value {
    match effect {
        Effect::Changes => json!({ "priced": true, "why_not": null }),
        Effect::None(why) => json!({ "priced": false, "why_not": why }),
    }
}
