//! What may be asked over HTTP: the questions, and of each the keys that become words. A flag that is not here does
//! not pass; none that names a file to write, or one to read besides recipes and devices, is here.

/// How a key's value becomes words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// A number of tokens: 8192 or "8k".
    Tokens,
    /// A word.
    Text,
    /// `true` is the flag; `false` is leaving it out.
    Switch,
    /// `true` is the flag; `false` is this one.
    Either(&'static str),
    /// Several words, separated by commas in one value.
    List,
    /// Several whole numbers, in the same way.
    Integers,
    /// Several numbers, in the same way.
    Numbers,
    /// Several words, the flag again for each.
    Each,
    /// A recipe: a name, or an object with a name and a text.
    Recipe,
    /// A whole job as an object: a recipe with its layout and state.
    Job,
}

/// One key of a body.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As the flag is typed, without its dashes; a body may say `_` for `-`.
    pub flag: &'static str,
    /// What its values are.
    pub kind: Kind,
    /// Whether the question needs it.
    pub is_required: bool,
    /// Whether it is no flag: it stands behind all of them.
    pub is_positional: bool,
}

/// How much of the server an answer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Somebody waits for it.
    Quick,
    /// It waits for its turn, says how far it is, and can be stopped.
    Search,
}

/// One question.
#[derive(Clone, Copy, Debug)]
pub struct Question {
    /// As it stands in the address.
    pub name: &'static str,
    /// The command's words.
    pub command: &'static [&'static str],
    /// Groups of keys it takes.
    pub keys: &'static [&'static [Key]],
    /// How long it may take.
    pub effort: Effort,
    /// Whether it is asked of the store of receipts, which changes while the server runs.
    pub asks_store: bool,
}

impl Question {
    /// By its name.
    pub fn find(name: &str) -> Option<&'static Question> {
        QUESTIONS.iter().find(|question| question.name == name)
    }

    /// Every key it takes.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> + Clone + use<> {
        self.keys.iter().flat_map(|group| group.iter())
    }
}

const fn key(flag: &'static str, kind: Kind) -> Key {
    Key { flag, kind, is_required: false, is_positional: false }
}

const fn required(flag: &'static str, kind: Kind) -> Key {
    Key { is_required: true, ..key(flag, kind) }
}

const fn positional(flag: &'static str, kind: Kind) -> Key {
    Key { is_positional: true, ..key(flag, kind) }
}

const fn subject(flag: &'static str, kind: Kind) -> Key {
    Key { is_required: true, ..positional(flag, kind) }
}

/// The model.
const RECIPE: &[Key] = &[subject("recipe", Kind::Recipe), key("with", Kind::List), key("without", Kind::List)];

/// A cluster, where a question needs one.
const ON: &[Key] = &[required("on", Kind::Text)];

/// A cluster, where it may be left out.
const MAYBE_ON: &[Key] = &[key("on", Kind::Text)];

/// How it is split.
pub(crate) const LAYOUT: &[Key] = &[
    key("world", Kind::Integer),
    key("tp", Kind::Integer),
    key("sp", Kind::Either("no-sp")),
    key("no-sp", Kind::Switch),
    key("cp", Kind::Integer),
    key("pp", Kind::Integer),
    key("vpp", Kind::Integer),
    key("ep", Kind::Integer),
    key("etp", Kind::Integer),
    key("dp", Kind::Integer),
    key("zero", Kind::Integer),
    key("mbs", Kind::Integer),
    key("gbs", Kind::Integer),
    key("microbatches", Kind::Integer),
    key("seq", Kind::Tokens),
    key("schedule", Kind::Text),
    key("recompute", Kind::Text),
    key("mode", Kind::Text),
    key("boundaries", Kind::Integers),
    key("balance", Kind::Text),
    key("engine", Kind::Text),
    key("vocab-multiple", Kind::Integer),
];

/// What an engine is told besides.
pub(crate) const STATE: &[Key] = &[
    key("precision", Kind::Text),
    key("optimizer", Kind::Text),
    key("gradients", Kind::Text),
    key("ce-fusion", Kind::Switch),
    key("fp8-param-gather", Kind::Switch),
    key("offload-optimizer", Kind::Number),
    key("offload-params", Kind::Switch),
    key("offload-activations", Kind::Number),
    key("documents", Kind::Text),
    key("engine-args", Kind::Each),
];

/// A whole job.
pub const JOB: &[&[Key]] = &[RECIPE, MAYBE_ON, LAYOUT, STATE];

const RANK: &[Key] = &[key("rank", Kind::Integer)];

const SERVING: &[Key] = &[
    key("serve", Kind::Switch),
    key("batch", Kind::Integer),
    key("context", Kind::Tokens),
    key("block", Kind::Integer),
    key("contiguous", Kind::Switch),
    key("cache-dtype", Kind::Text),
];

const FIT: &[Key] = &[
    key("headroom", Kind::Text),
    key("overload", Kind::Numbers),
    key("levers", Kind::Text),
    key("checklist", Kind::Switch),
    key("routing", Kind::Switch),
    key("price-per-device-hour", Kind::Text),
];

const SEARCH: &[Key] = &[
    key("headroom", Kind::Text),
    key("overload", Kind::Number),
    key("max-tp-in-node", Kind::Switch),
    key("top", Kind::Integer),
    key("explain", Kind::Text),
    key("stats", Kind::Switch),
    key("sequences", Kind::List),
];

/// What a whole run comes to.
const BUDGET: &[Key] = &[
    key("tokens", Kind::Text),
    key("days", Kind::Number),
    key("price-per-device-hour", Kind::Text),
    key("pue", Kind::Number),
    key("ramp", Kind::Text),
    key("node-mtbf", Kind::Number),
    key("restart", Kind::Number),
    key("storage-rate", Kind::Number),
    key("async-save", Kind::Switch),
];

const LAUNCH: &[Key] = &[
    key("lane", Kind::Text),
    key("frontend", Kind::Text),
    key("scheduler", Kind::Text),
    key("explain", Kind::Switch),
    key("allow-seams", Kind::Switch),
    key("override-memory", Kind::Switch),
    key("attempt", Kind::Text),
    key("tokens", Kind::Text),
    key("node-mtbf", Kind::Number),
    key("restart", Kind::Number),
    key("storage-rate", Kind::Number),
];

const fn quick(name: &'static str, command: &'static [&'static str], keys: &'static [&'static [Key]]) -> Question {
    Question { name, command, keys, effort: Effort::Quick, asks_store: false }
}

const fn kept(name: &'static str, command: &'static [&'static str], keys: &'static [&'static [Key]]) -> Question {
    Question { asks_store: true, ..quick(name, command, keys) }
}

/// Every question.
pub const QUESTIONS: &[Question] = &[
    quick("recipes", &["recipes"], &[&[positional("name", Kind::Text)]]),
    quick("hardware", &["hardware"], &[&[positional("name", Kind::Text), key("toml", Kind::Switch)]]),
    Question {
        effort: Effort::Search,
        ..quick("lanes", &["lanes"], &[&[key("for", Kind::Recipe), key("goal", Kind::Text)], MAYBE_ON])
    },
    quick("options", &["options"], &[&[positional("engine", Kind::Text)]]),
    quick("axes", &["axes"], &[&[positional("axis", Kind::Text)]]),
    quick("glossary", &["glossary"], &[&[positional("word", Kind::Text)]]),
    quick(
        "import",
        &["import"],
        &[&[subject("file", Kind::Recipe), key("name", Kind::Text), key("seq", Kind::Tokens)]],
    ),
    quick("params", &["params"], &[RECIPE, &[key("mode", Kind::Text)]]),
    quick("check", &["check"], &[RECIPE, MAYBE_ON, LAYOUT]),
    quick("choices", &["choices"], &[RECIPE, ON, LAYOUT, STATE]),
    quick("splits", &["splits"], &[RECIPE, LAYOUT, RANK, &[key("tensor", Kind::Text)]]),
    quick("stages", &["stages"], &[RECIPE, MAYBE_ON, LAYOUT, STATE, &[key("weights", Kind::Integers)]]),
    quick("mesh", &["mesh"], &[MAYBE_ON, LAYOUT, RANK, &[key("order", Kind::Text)]]),
    quick("fit", &["fit"], &[RECIPE, ON, LAYOUT, STATE, FIT, SERVING]),
    Question { effort: Effort::Search, ..quick("plan", &["plan"], &[RECIPE, ON, LAYOUT, STATE, SEARCH, BUDGET]) },
    quick("schedule", &["schedule"], &[RECIPE, ON, LAYOUT, STATE]),
    quick("diff", &["diff"], &[&[subject("before", Kind::Job), subject("after", Kind::Job)], ON]),
    quick("launch", &["launch"], &[RECIPE, ON, LAYOUT, STATE, LAUNCH]),
    kept("receipts", &["receipt", "list"], &[&[key("recipe", Kind::Text), key("all", Kind::Switch)]]),
    kept("receipt", &["receipt", "show"], &[&[subject("receipt", Kind::Text)]]),
    kept("compare", &["receipt", "compare"], &[&[subject("receipts", Kind::Each), key("against", Kind::Each)]]),
    kept("drift", &["receipt", "drift"], &[&[subject("receipts", Kind::Each)]]),
];

/// What a picture takes besides the keys of the question whose answer it is drawn from.
pub const DRAWN: &[Key] = &[
    key("narrow", Kind::Switch),
    key("titles", Kind::Switch),
    key("stage", Kind::Integer),
    key("zoom", Kind::Integer),
];

/// What a picture of memory takes as well: the job it is compared with.
pub const AGAINST: &[Key] = &[key("against", Kind::Job)];
