//! Options in an engine's own words: `--engine-args "--moe-token-dispatcher-type allgather"`. A word
//! is read, written back and emitted from one entry, which also says what it changes. What an engine
//! knows and we have no entry for is passed on, and said to be not priced.

/// A switch that is one field of the options, with what it does to memory and to time.
macro_rules! switch_word {
    ($name:literal, $own:literal, $($field:ident).+, [$memory:expr, $time:expr], $what:literal) => {
        $crate::words::Word {
            name: $name,
            takes: $crate::words::Takes::Switch,
            place: $crate::words::Place::Argument,
            own: $own,
            get: |o| $crate::words::flag(o.$($field).+),
            set: |o, v| $crate::words::switch(v, &mut o.$($field).+),
            memory: $memory,
            time: $time,
            what: $what,
        }
    };
}

mod deepspeed;
mod fsdp2;
mod megatron;
mod nanotron;
mod torchtitan;

use crate::options::Options;
use diag::{Blame, Finding, did_you_mean};
use layout::Engine;
use recipe::Dtype;
use std::collections::BTreeMap;

/// What may follow a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Nothing: it is on; `--no-` in front, or `=false`, and it is off.
    Switch,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Some of these, joined by commas.
    Some(&'static [&'static str]),
    /// A whole number.
    Number,
}

impl Takes {
    /// Why a value is none of these.
    fn refusal(self, value: &str) -> Option<String> {
        let one_of = |known: &[&str], word: &str| {
            let listed = known.iter().filter(|word| !word.is_empty()).copied().collect::<Vec<_>>().join(", ");
            (!known.contains(&word)).then(|| match did_you_mean(word, known.iter().copied()) {
                Some(close) => format!("did you mean `{close}`? it takes {listed}"),
                None => format!("it takes {listed}"),
            })
        };
        match self {
            Takes::Switch => one_of(&["true", "false"], value),
            Takes::OneOf(known) => one_of(known, value),
            Takes::Some(known) => value.split(',').filter(|w| !w.is_empty()).find_map(|w| one_of(known, w)),
            Takes::Number => value.parse::<u64>().err().map(|_| format!("`{value}` is no whole number")),
        }
    }
}

/// What a word does to a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It is priced, or its price is refused by name.
    Changes,
    /// Nothing, and why.
    None(&'static str),
}

/// Where an engine is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On its command line or in its configuration.
    Argument,
    /// By a variable of the environment.
    Environment,
}

/// One option of an engine.
pub struct Word {
    /// As the engine spells it.
    pub name: &'static str,
    /// What follows it.
    pub takes: Takes,
    /// Where the engine is told.
    pub place: Place,
    /// The engine's own default, as [`Word::get`] writes values; what differs is emitted.
    pub own: &'static str,
    /// The value of some options.
    pub get: fn(&Options) -> String,
    /// Sets a value that [`Takes`] let pass; refused with a reason where it has no meaning here.
    pub set: fn(&mut Options, &str) -> Result<(), String>,
    /// What it does to what a rank holds.
    pub memory: Effect,
    /// What it does to the length of a step.
    pub time: Effect,
    /// What it is for.
    pub what: &'static str,
}

/// A word that changes neither memory nor time, and is passed on as it stands.
pub struct Passed {
    /// As the engine spells it.
    pub name: &'static str,
    /// Values that follow it.
    pub values: usize,
    /// Why nothing changes.
    pub why: &'static str,
}

/// Everything an engine may be told in its own words.
pub struct Vocabulary {
    /// Options that mean something here.
    pub words: &'static [Word],
    /// Words passed on as they stand.
    pub passed: &'static [Passed],
    /// Words that follow from others, and are emitted with them: they may be said along.
    pub implied: &'static [&'static str],
    /// What an engine of this kind may do and this one does not, by name, and why.
    pub refused: &'static [(&'static str, &'static str)],
    /// Words that a flag of ours says, and which.
    pub ours: &'static [(&'static str, &'static str)],
    /// Words whose best value belongs to a topology: sizes of buckets, and padding.
    pub tuned: &'static [&'static str],
    /// The word of the engine's own list that is most like one it does not have.
    pub close: fn(&str) -> Option<&'static str>,
    /// What the engine's own list says of a word, where the whole list is known.
    pub knows: fn(&str) -> Option<Known>,
}

/// A word of the engine's own list.
pub enum Known {
    /// It takes so many values, at least and at most.
    Takes(usize, usize),
    /// It changes the model or who holds what, for this reason.
    Model(&'static str),
}

fn knows_nothing(_: &str) -> Option<Known> {
    None
}

const EMPTY: Vocabulary = Vocabulary {
    words: &[],
    passed: &[],
    implied: &[],
    refused: &[],
    ours: &[],
    tuned: &[],
    close: |_| None,
    knows: knows_nothing,
};

/// Engines that have words.
const WITH_WORDS: [Engine; 5] =
    [Engine::Megatron, Engine::Fsdp2, Engine::Torchtitan, Engine::Deepspeed, Engine::Nanotron];

/// The vocabulary of an engine; Megatron's when none is named.
pub fn of(engine: Option<Engine>) -> &'static Vocabulary {
    match engine {
        None | Some(Engine::Megatron) => &megatron::VOCABULARY,
        Some(Engine::Torchtitan) => &torchtitan::VOCABULARY,
        Some(Engine::Deepspeed) => &deepspeed::VOCABULARY,
        Some(Engine::Nanotron) => &nanotron::VOCABULARY,
        Some(Engine::Fsdp2) => &fsdp2::VOCABULARY,
        Some(Engine::Maxtext | Engine::XlaSpmd | Engine::Shardwright) => &EMPTY,
    }
}

impl Vocabulary {
    /// Whether options are said by this word: one that is read, passed on or implied.
    pub fn has(&self, name: &str) -> bool {
        self.words.iter().any(|word| word.name == name || word.negated() == name)
            || self.passed.iter().any(|passed| passed.name == name)
            || self.implied.contains(&name)
    }

    /// Whether a word that is passed on is known to change neither memory nor time.
    pub fn is_free(&self, name: &str) -> bool {
        self.passed.iter().any(|passed| passed.name == name)
    }
}

impl Word {
    /// The switch with `--no-` in front, where it has dashes.
    pub fn negated(&self) -> String {
        match self.name.strip_prefix("--") {
            Some(rest) => format!("--no-{rest}"),
            None => format!("{}=false", self.name),
        }
    }

    /// The words that say a value.
    pub fn written(&self, value: &str) -> Vec<String> {
        match (self.takes, value, self.name.starts_with("--")) {
            (Takes::Switch, "true", true) => vec![self.name.to_string()],
            (Takes::Switch, _, true) => vec![self.negated()],
            (Takes::Some(_), value, true) => {
                let values = value.split(',').filter(|word| !word.is_empty());
                std::iter::once(self.name).chain(values).map(str::to_string).collect()
            }
            (_, value, true) => vec![self.name.to_string(), value.to_string()],
            (_, value, false) => vec![format!("{}={value}", self.name)],
        }
    }
}

/// What was said in an engine's words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Words that are passed on as they stand, each with its values.
    pub passed: Vec<Vec<String>>,
}

impl Said {
    /// Words passed on whose price is not known.
    pub fn not_priced(&self, engine: Option<Engine>) -> Vec<&str> {
        not_priced(engine, &self.passed)
    }
}

/// The same where every word must have a price: a measured row that ran something else is no row of this case.
pub fn read_priced(engine: Option<Engine>, words: &[String], options: &mut Options) -> Result<(), String> {
    let said = read(engine, words, options).map_err(|findings| findings[0].message.clone())?;
    match said.not_priced(engine).first() {
        Some(name) => Err(format!("what `{name}` does to memory and time is not known here")),
        None => Ok(()),
    }
}

/// Of words passed on to an engine, those whose price is not known.
pub fn not_priced(engine: Option<Engine>, passed: &[Vec<String>]) -> Vec<&str> {
    let vocabulary = of(engine);
    passed.iter().map(|words| words[0].as_str()).filter(|name| !vocabulary.is_free(name)).collect()
}

/// Reads words of an engine into its options. Options are set in the order of the vocabulary, each
/// to the last value said, as an engine's own parser has them: words may stand in any order.
pub fn read(engine: Option<Engine>, words: &[String], options: &mut Options) -> Result<Said, Vec<Finding>> {
    let vocabulary = of(engine);
    let (mut said, mut findings, mut values) = (Said::default(), Vec::new(), BTreeMap::new());
    let mut rest = words;
    while let Some((first, behind)) = rest.split_first() {
        let (name, mut given) = match first.split_once('=') {
            Some((name, value)) => (name, vec![value.to_string()]),
            None => (first.as_str(), Vec::new()),
        };
        rest = behind;
        if given.is_empty() {
            let known = || match (vocabulary.knows)(name) {
                Some(Known::Takes(_, most)) if !vocabulary.has(name) => most,
                _ => 0,
            };
            let free = vocabulary.passed.iter().find(|passed| passed.name == name);
            let wanted = free.map_or_else(known, |passed| passed.values);
            let is_value =
                |(at, word): &(usize, &String)| !word.starts_with("--") && (*at < wanted || !word.contains('='));
            given.extend(behind.iter().enumerate().take_while(is_value).map(|(_, word)| word.clone()));
            rest = &behind[given.len()..];
        }
        match one(vocabulary, engine, name, &given) {
            Ok(Meant::Option(at, value)) => {
                values.insert(at, (name.to_string(), value));
            }
            Ok(Meant::Passed(words)) => said.passed.push(words),
            Ok(Meant::Implied) => {}
            Err(finding) => findings.push(finding),
        }
    }
    for (at, (name, value)) in values {
        if let Err(why) = (vocabulary.words[at].set)(options, &value) {
            findings.push(refuse(&name, format!("`{name}`: {why}")));
        }
    }
    if findings.is_empty() { Ok(said) } else { Err(findings) }
}

/// What one word with its values comes to.
enum Meant {
    /// This option of the vocabulary gets this value.
    Option(usize, String),
    /// Passed on as it stands.
    Passed(Vec<String>),
    /// It follows from other words.
    Implied,
}

fn refuse(name: &str, message: String) -> Finding {
    Finding::error("engine-args/value", Blame::Usage, name, message)
}

fn one(vocabulary: &Vocabulary, engine: Option<Engine>, name: &str, values: &[String]) -> Result<Meant, Finding> {
    // torch 2.9 and newer read the shorter name too.
    let name = if name == "PYTORCH_ALLOC_CONF" { ALLOCATOR.name } else { name };
    let refuse = |message: String| refuse(name, message);
    if let Some((at, word)) = vocabulary.words.iter().enumerate().find(|(_, word)| word.name == name) {
        let value = match (word.takes, values) {
            (Takes::Switch, []) => "true".to_string(),
            (_, []) => return Err(refuse(format!("`{name}` takes a value"))),
            (Takes::Some(_), values) => values.join(","),
            (_, [value]) => value.clone(),
            (Takes::Switch, more) => return Err(refuse(format!("`{name}` takes no value, not {}", more.len()))),
            (_, more) => return Err(refuse(format!("`{name}` takes one value, not {}", more.len()))),
        };
        return match word.takes.refusal(&value) {
            None => Ok(Meant::Option(at, value)),
            Some(why) => Err(refuse(format!("`{name} {value}`: {why}"))),
        };
    }
    let is_negated = |word: &Word| word.takes == Takes::Switch && word.negated() == name;
    if let Some(at) = vocabulary.words.iter().position(is_negated) {
        return match values {
            [] => Ok(Meant::Option(at, "false".to_string())),
            _ => Err(refuse(format!("`{name}` takes no value"))),
        };
    }
    if vocabulary.implied.contains(&name) && values.is_empty() {
        return Ok(Meant::Implied);
    }
    if let Some(passed) = vocabulary.passed.iter().find(|passed| passed.name == name) {
        return match values.len() == passed.values {
            true => Ok(Meant::Passed(std::iter::once(name.to_string()).chain(values.iter().cloned()).collect())),
            false => Err(refuse(format!("`{name}` takes {}, not {}", count(passed.values), values.len()))),
        };
    }
    passed_on(vocabulary, name, values).unwrap_or_else(|| Err(unknown(vocabulary, engine, name)))
}

/// A word of the engine's own list that has no price here.
fn passed_on(vocabulary: &Vocabulary, name: &str, values: &[String]) -> Option<Result<Meant, Finding>> {
    let is_answered = vocabulary.ours.iter().chain(vocabulary.refused).any(|(word, _)| *word == name);
    let refuse = |rule, message: String| Finding::error(rule, Blame::Usage, name, message);
    match (vocabulary.knows)(name).filter(|_| !is_answered)? {
        Known::Model(why) => {
            let finding = refuse("engine-args/model", format!("`{name}` changes the model or its layout: {why}"));
            Some(Err(finding.hint("say it in the recipe (`shardwright recipes NAME > mine.toml`) or by a layout flag")))
        }
        Known::Takes(least, most) if (least..=most).contains(&values.len()) => {
            Some(Ok(Meant::Passed(std::iter::once(name.to_string()).chain(values.iter().cloned()).collect())))
        }
        Known::Takes(least, _) => {
            let message = format!("`{name}` takes {}, not {}", count(least), values.len());
            Some(Err(refuse("engine-args/value", message)))
        }
    }
}

/// How many values a word takes, in words.
fn count(values: usize) -> String {
    match values {
        0 => "no value".to_string(),
        1 => "one value".to_string(),
        more => format!("{more} values"),
    }
}

/// A word that means nothing here: ours to say, the engine's but not priced, or nobody's.
fn unknown(vocabulary: &Vocabulary, engine: Option<Engine>, name: &str) -> Finding {
    let engine = engine.map_or("megatron", Engine::name);
    if let Some((_, flag)) = vocabulary.ours.iter().find(|(word, _)| *word == name) {
        let message = format!("`{name}` is said by `{flag}`, so that it is priced and recorded once");
        return Finding::error("engine-args/ours", Blame::Usage, name, message).hint(format!("use {flag}"));
    }
    if let Some((_, why)) = vocabulary.refused.iter().find(|(word, _)| *word == name) {
        return Finding::error(
            "engine-args/unpriced",
            Blame::Engine,
            name,
            format!("`{name}` is not in {engine}: {why}"),
        )
        .hint(format!("`shardwright options {engine}` lists what may be said"));
    }
    let known = vocabulary.words.iter().map(|word| word.name).chain(vocabulary.passed.iter().map(|passed| passed.name));
    let others =
        || WITH_WORDS.into_iter().filter(|other| other.name() != engine).find(|other| of(Some(*other)).has(name));
    let close = did_you_mean(name, known).or_else(|| (vocabulary.close)(name));
    let hint = match close {
        Some(close) => format!("did you mean `{close}`?"),
        None => match others() {
            Some(other) => format!("`{name}` is a word of {other}: --engine {other}"),
            None => format!("`shardwright options {engine}` lists what may be said"),
        },
    };
    Finding::error("engine-args/unknown", Blame::Usage, name, format!("`{name}` is no option of {engine}")).hint(hint)
}

/// The words that turn one set of options into another.
pub fn between(engine: Option<Engine>, from: &Options, to: &Options) -> Vec<String> {
    let changed = of(engine).words.iter().filter(|word| (word.get)(from) != (word.get)(to));
    changed.flat_map(|word| word.written(&(word.get)(to))).collect()
}

/// What an engine has to be told: values that are not its own defaults.
pub fn emitted(engine: Option<Engine>, options: &Options) -> impl Iterator<Item = (&'static Word, String)> + '_ {
    let words = of(engine).words.iter();
    words.map(|word| (word, (word.get)(options))).filter(|(word, value)| word.own != value)
}

fn flag(on: bool) -> String {
    on.to_string()
}

fn switch(value: &str, on: &mut bool) -> Result<(), String> {
    *on = value == "true";
    Ok(())
}

fn dtype(value: &str, into: &mut Dtype) -> Result<(), String> {
    *into = Dtype::from_name(value).ok_or_else(|| format!("`{value}` is no format"))?;
    Ok(())
}

/// A number that [`Takes::Number`] let pass.
fn number(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("`{value}` is no whole number"))
}

/// torch's caching allocator, which every engine on NVIDIA devices sits on.
const ALLOCATOR: Word = Word {
    name: "PYTORCH_CUDA_ALLOC_CONF",
    takes: Takes::OneOf(&["", "expandable_segments:True"]),
    place: Place::Environment,
    own: "",
    get: allocator,
    set: set_allocator,
    memory: Effect::Changes,
    time: Effect::None("the allocator runs ahead of the device"),
    what: "how the allocator asks the device for memory",
};

fn allocator(options: &Options) -> String {
    if options.expandable_segments { "expandable_segments:True".to_string() } else { String::new() }
}

fn set_allocator(options: &mut Options, value: &str) -> Result<(), String> {
    options.expandable_segments = !value.is_empty();
    Ok(())
}

#[cfg(test)]
mod tests;
