//! From a body to the words of a command line. Every value stands in one word with its flag (`--tp=2`) or behind `--`,
//! so that none can become a flag of its own.

use crate::questions::{JOB, Key, Kind, Question};
use diag::{Blame, Finding, did_you_mean, quote};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Bytes of one word.
const WORD_BYTES: usize = 4096;

/// Words of one list.
const LIST: usize = 4096;

/// What is asked of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Words, the program's name first.
    pub words: Vec<OsString>,
    /// Recipes that came as texts, by the names that words call them.
    pub texts: BTreeMap<String, String>,
}

impl Words {
    /// The same words and texts give the same answer, and the same key.
    pub fn key(&self) -> String {
        let words = self.words.iter().map(|word| word.to_string_lossy());
        let texts = self.texts.iter().flat_map(|(name, text)| [name.as_str().into(), text.as_str().into()]);
        words.chain(texts).collect::<Vec<_>>().join("\u{0}")
    }
}

/// The words of a question, in the order of its table; all that is wrong with the body otherwise.
pub fn words(question: &Question, body: &Map<String, Value>, store: Option<&str>) -> Result<Words, Vec<Finding>> {
    let mut reading = Reading::default();
    let mut out = vec!["shardwright".to_string()];
    out.extend(question.command.iter().map(|word| word.to_string()));
    let (flags, behind) = reading.job(question.keys(), body, question.name);
    out.extend(flags);
    out.extend(store.map(|store| format!("--store={store}")));
    out.push("--json".to_string());
    if !behind.is_empty() {
        out.push("--".to_string());
        out.extend(behind);
    }
    if !reading.findings.is_empty() {
        return Err(reading.findings);
    }
    Ok(Words { words: out.into_iter().map(OsString::from).collect(), texts: reading.texts })
}

#[derive(Default)]
struct Reading {
    findings: Vec<Finding>,
    texts: BTreeMap<String, String>,
}

impl Reading {
    fn refuse(&mut self, key: &str, message: String) {
        let object = quote::terminal(key);
        self.findings.push(Finding::error("serve/body", Blame::Usage, object, message));
    }

    /// Words of flags, and those that stand behind them.
    fn job(
        &mut self,
        keys: impl Iterator<Item = &'static Key> + Clone,
        body: &Map<String, Value>,
        asked: &str,
    ) -> (Vec<String>, Vec<String>) {
        self.unknown(keys.clone(), body, asked);
        let (mut flags, mut behind) = (Vec::new(), Vec::new());
        for key in keys {
            match value_of(key, body) {
                Some(value) if key.is_positional => behind.extend(self.values(key, value)),
                Some(value) => flags.extend(self.flag(key, value)),
                None if key.is_required => {
                    self.refuse(key.flag, format!("`{asked}` needs `{}`", key.flag));
                }
                None => {}
            }
        }
        (flags, behind)
    }

    /// Keys that the question does not have, or has twice.
    fn unknown(&mut self, keys: impl Iterator<Item = &'static Key> + Clone, body: &Map<String, Value>, asked: &str) {
        let known: Vec<String> = keys.map(|key| key.flag.replace('-', "_")).collect();
        for name in body.keys() {
            let plain = name.replace('-', "_");
            if !known.contains(&plain) {
                let shown = quote::terminal(name);
                let message = format!("`{asked}` has no key `{shown}`");
                let close = did_you_mean(&plain, known.iter().map(String::as_str));
                let hint =
                    close.map_or(format!("keys are {}", known.join(", ")), |close| format!("did you mean `{close}`?"));
                self.findings.push(Finding::error("serve/body", Blame::Usage, shown, message).hint(hint));
            } else if plain != *name && body.contains_key(&plain) {
                self.refuse(name, format!("`{plain}` stands twice"));
            }
        }
    }

    fn flag(&mut self, key: &Key, value: &Value) -> Vec<String> {
        match key.kind {
            Kind::Switch | Kind::Either(_) => self.switch(key, value),
            Kind::List | Kind::Integers | Kind::Numbers => match self.values(key, value) {
                values if values.is_empty() => values,
                values => vec![format!("--{}={}", key.flag, values.join(","))],
            },
            _ => self.values(key, value).into_iter().map(|value| format!("--{}={value}", key.flag)).collect(),
        }
    }

    fn switch(&mut self, key: &Key, value: &Value) -> Vec<String> {
        let is_on = match value {
            Value::Bool(is_on) => *is_on,
            Value::String(word) if word == "true" || word.is_empty() => true,
            Value::String(word) if word == "false" => false,
            _ => {
                self.refuse(key.flag, format!("`{}` is true or false", key.flag));
                return Vec::new();
            }
        };
        match (is_on, key.kind) {
            (true, _) => vec![format!("--{}", key.flag)],
            (false, Kind::Either(other)) => vec![format!("--{other}")],
            (false, _) => Vec::new(),
        }
    }

    /// A value as the words it stands for.
    fn values(&mut self, key: &Key, value: &Value) -> Vec<String> {
        match key.kind {
            Kind::Recipe => self.recipe(key, value).into_iter().collect(),
            Kind::Job => self.side(key, value).into_iter().collect(),
            Kind::List | Kind::Integers | Kind::Numbers | Kind::Each => match value {
                Value::Array(values) if values.len() > LIST => {
                    self.refuse(key.flag, format!("`{}` has more than {LIST} values", key.flag));
                    Vec::new()
                }
                Value::Array(values) => values.iter().filter_map(|value| self.word(key, value)).collect(),
                value => self.word(key, value).into_iter().collect(),
            },
            _ => self.word(key, value).into_iter().collect(),
        }
    }

    /// One word: a number, or a text of visible characters.
    fn word(&mut self, key: &Key, value: &Value) -> Option<String> {
        let word = match value {
            Value::Number(number) => number.to_string(),
            Value::String(word) => word.clone(),
            _ => {
                self.refuse(key.flag, format!("`{}` is {}", key.flag, wanted(key.kind)));
                return None;
            }
        };
        if word.len() > WORD_BYTES {
            self.refuse(key.flag, format!("`{}` has more than {WORD_BYTES} bytes", key.flag));
            return None;
        }
        if word.chars().any(char::is_control) {
            self.refuse(key.flag, format!("`{}` holds a character that nobody can see", key.flag));
            return None;
        }
        Some(word)
    }

    /// A recipe's name; its text is kept under it.
    fn recipe(&mut self, key: &Key, value: &Value) -> Option<String> {
        let Value::Object(given) = value else { return self.word(key, value) };
        let text = match (given.get("text"), given.keys().all(|key| key == "name" || key == "text")) {
            (Some(Value::String(text)), true) => text.clone(),
            _ => {
                self.refuse(key.flag, format!("`{}` is a name, or an object with a `name` and a `text`", key.flag));
                return None;
            }
        };
        let name = match given.get("name").filter(|name| !name.is_null()) {
            Some(name) => self.word(key, name)?,
            None => "recipe".to_string(),
        };
        if name.is_empty() || name == "-" {
            self.refuse(key.flag, format!("`{}` has no name", key.flag));
            return None;
        }
        match self.texts.insert(name.clone(), text) {
            Some(other) if other != self.texts[&name] => {
                self.refuse(key.flag, format!("two texts are called `{}`", quote::terminal(&name)));
                None
            }
            _ => Some(name),
        }
    }

    /// A job, quoted as a shell reads it.
    fn side(&mut self, key: &Key, value: &Value) -> Option<String> {
        let Value::Object(body) = value else {
            self.refuse(key.flag, format!("`{}` is {}", key.flag, wanted(key.kind)));
            return None;
        };
        let (mut words, behind) = self.job(JOB.iter().flat_map(|group| group.iter()), body, key.flag);
        words.push("--".to_string());
        words.extend(behind);
        Some(quote::shell_line(words))
    }
}

/// A job that stands in a body.
pub fn object_of(job: &Value) -> Result<&Map<String, Value>, Finding> {
    let refuse =
        || Finding::error("serve/body", Blame::Usage, "against", format!("`against` is {}", wanted(Kind::Job)));
    job.as_object().ok_or_else(refuse)
}

/// The value of a key, written either way; null is none.
fn value_of<'a>(key: &Key, body: &'a Map<String, Value>) -> Option<&'a Value> {
    body.get(key.flag).or_else(|| body.get(&key.flag.replace('-', "_"))).filter(|value| !value.is_null())
}

/// What a key's value is, in words.
fn wanted(kind: Kind) -> &'static str {
    match kind {
        Kind::Integer => "a whole number",
        Kind::Number => "a number",
        Kind::Tokens => "a number of tokens, as 8192 or \"8k\"",
        Kind::Text => "a text",
        Kind::Switch | Kind::Either(_) => "true or false",
        Kind::List | Kind::Each => "a list of texts",
        Kind::Integers => "a list of whole numbers",
        Kind::Numbers => "a list of numbers",
        Kind::Recipe => "a name, or an object with a `name` and a `text`",
        Kind::Job => "an object: a recipe with its layout",
    }
}

#[cfg(test)]
mod tests {
    use super::words;
    use crate::questions::Question;
    use serde_json::{Value, json};

    fn line(name: &str, body: Value) -> Result<String, String> {
        let question = Question::find(name).expect("a question");
        let words = words(question, body.as_object().expect("an object"), None);
        let words = words.map_err(|findings| findings.iter().map(|f| f.message.clone()).collect::<Vec<_>>().join("; "));
        Ok(words?.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn keys_become_words_in_the_order_of_the_table() {
        let body = json!({ "engine": "megatron", "sp": false, "tp": 2, "with": ["mtp", "mla"], "on": "8xH200",
            "ce_fusion": true, "fp8_param_gather": false, "seq": "8k", "recipe": "nam56r", "ep": null });
        let wanted = "shardwright fit --with=mtp,mla --on=8xH200 --tp=2 --no-sp --seq=8k --engine=megatron --ce-fusion --json -- nam56r";
        assert_eq!(line("fit", body).unwrap(), wanted);
        assert_eq!(line("recipes", json!({})).unwrap(), "shardwright recipes --json");
        let sides = json!({ "before": { "recipe": "a b", "tp": 2 }, "after": { "recipe": "it's" }, "on": "8xH200" });
        let wanted = r"shardwright diff --on=8xH200 --json -- --tp=2 -- 'a b' -- 'it'\''s'";
        assert_eq!(line("diff", sides).unwrap(), wanted);
    }

    #[test]
    fn no_value_becomes_a_flag() {
        let body = json!({ "recipe": "--svg=out", "on": "--trace=x" });
        assert_eq!(line("fit", body).unwrap(), "shardwright fit --on=--trace=x --json -- --svg=out");
    }

    #[test]
    fn all_that_is_wrong_with_a_body_is_said() {
        let body =
            json!({ "tpp": 2, "svg": "out.svg", "work_limit": "none", "on": ["8xH200"], "sp": 3, "mode": "a\u{1b}b" });
        let said = line("fit", body).unwrap_err();
        for words in ["no key `tpp`", "no key `svg`", "no key `work_limit`", "`on` is a text", "needs `recipe`"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert!(said.contains("true or false") && said.contains("nobody can see"), "{said}");
        let twice = json!({ "before": { "recipe": { "name": "a", "text": "x" } }, "after": { "recipe": { "name": "a", "text": "y" } }, "on": "8xH200" });
        assert!(line("diff", twice).unwrap_err().contains("two texts are called `a`"));
    }
}
