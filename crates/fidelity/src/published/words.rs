//! Words of rows, read as words: `no EP overlap` does not say `EP overlap`, and `hybridep` says what `Hybrid-EP`
//! says. Texts are cut into clauses, clauses into tokens; a phrase is said, denied or not there.

/// Words that deny what stands behind them in their clause.
const DENY_BEFORE: [&str; 8] = ["no", "not", "without", "non", "disable", "disabled", "disabling", "never"];
/// Words that deny what stands right before them.
const DENY_BEHIND: [&str; 6] = ["off", "disabled", "false", "none", "no", "0"];
/// Words that end what a denial before them reaches: `no DeepEP but EP overlap`.
const TURN: [&str; 4] = ["but", "with", "plus", "instead"];

/// The tokens of a text: letters and digits, in lower case, apart from everything else.
pub(super) fn tokens(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect()
}

/// Letters and digits alone, in lower case: `Megatron-LM`, `megatron_lm` and `MegatronLM` are one name.
pub(super) fn plain(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Clauses of a text, as tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Clauses(Vec<Vec<String>>);

impl Clauses {
    pub fn of(text: &str) -> Clauses {
        let clauses = pieces(text).into_iter().map(|piece| tokens(&piece));
        Clauses(clauses.filter(|clause| !clause.is_empty()).collect())
    }

    /// Whether one of these phrases is said: none where no clause has any. What is denied anywhere is denied.
    pub fn say(&self, phrases: &[&str]) -> Option<bool> {
        let found = self.0.iter().flat_map(|clause| phrases.iter().filter_map(|phrase| says(clause, phrase)));
        found.reduce(|one, other| one && other)
    }
}

/// What a text lists: split at semicolons, commas and plus signs outside parentheses.
pub(super) fn pieces(text: &str) -> Vec<String> {
    let (mut out, mut depth) = (vec![String::new()], 0usize);
    for c in text.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        match c {
            ';' | ',' | '+' | '\n' if depth == 0 => out.push(String::new()),
            c => out.last_mut().unwrap_or(&mut String::new()).push(c),
        }
    }
    out.iter().map(|piece| piece.trim().to_string()).filter(|piece| !piece.is_empty()).collect()
}

/// Whether a clause says a phrase, or denies it.
pub(super) fn says(clause: &[String], phrase: &str) -> Option<bool> {
    let phrase: Vec<&str> = phrase.split(' ').collect();
    let at = clause.windows(phrase.len()).position(|window| window.iter().zip(&phrase).all(|(a, b)| a == b))?;
    let before = clause[..at].iter().rev().take_while(|word| !TURN.contains(&word.as_str()));
    let is_denied = before.into_iter().any(|word| DENY_BEFORE.contains(&word.as_str()));
    let behind = clause.get(at + phrase.len()).map(String::as_str);
    // `DeepEP is off`, `EP overlap was disabled`.
    let behind = match behind {
        Some("is" | "was" | "were" | "are" | "turned") => clause.get(at + phrase.len() + 1).map(String::as_str),
        other => other,
    };
    Some(!is_denied && !behind.is_some_and(|word| DENY_BEHIND.contains(&word)))
}

/// Whether a token only denies.
pub(super) fn denies(token: &str) -> bool {
    DENY_BEFORE.contains(&token) || DENY_BEHIND.contains(&token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_phrase_is_not_said() {
        let say = |text: &str, phrase: &str| Clauses::of(text).say(&[phrase]);
        for (text, phrase, said) in [
            ("EP overlap", "ep overlap", Some(true)),
            ("DeepEP, 1F1B EP overlap", "ep overlap", Some(true)),
            ("no EP overlap", "ep overlap", Some(false)),
            ("DeepEP without EP overlap", "ep overlap", Some(false)),
            ("DeepEP without EP overlap", "deepep", Some(true)),
            ("without DeepEP but EP overlap", "ep overlap", Some(true)),
            ("EP overlap off", "ep overlap", Some(false)),
            ("ep_overlap=false", "ep overlap", Some(false)),
            ("EP overlap is disabled", "ep overlap", Some(false)),
            ("no DeepEP; EP overlap", "ep overlap", Some(true)),
            ("hybridep", "hybridep", Some(true)),
            ("Hybrid-EP dispatcher", "hybrid ep", Some(true)),
            ("step overlapping", "ep overlap", None),
        ] {
            assert_eq!(say(text, phrase), said, "{text}: {phrase}");
        }
    }

    #[test]
    fn lists_are_cut_outside_parentheses() {
        assert_eq!(pieces("TE + DeepEP; cuda_graph (attn, mlp), "), ["TE", "DeepEP", "cuda_graph (attn, mlp)"]);
        assert_eq!(plain("Megatron_LM"), plain("megatron-lm"));
    }
}
