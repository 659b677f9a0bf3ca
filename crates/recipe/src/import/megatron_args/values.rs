//! Whether a flag's values are ones Megatron's parser would take: their number, their type and
//! their choices, all from the engine's own list.

use super::flags::shown;
use diag::{Blame, Finding, did_you_mean};
use serde_json::Value;

/// What is wrong with the values of a flag, if anything is.
pub fn complaint(option: &Value, flag: &str, values: &[String]) -> Option<Finding> {
    let refuse = |message| Finding::error("import/value", Blame::Recipe, flag, message);
    if let Some(message) = miscount(&option["nargs"], flag, values) {
        return Some(refuse(message));
    }
    values.iter().find_map(|value| {
        let given = format!("`{flag} {}`", shown(value));
        match option["type"].as_str() {
            Some("int") if value.parse::<i64>().is_err() => {
                return Some(refuse(format!("{given} is no whole number")));
            }
            Some("float") if !value.parse::<f64>().is_ok_and(f64::is_finite) => {
                return Some(refuse(format!("{given} is no number")));
            }
            _ => {}
        }
        let choices = choices(&option["choices"])?;
        if choices.contains(value) {
            return None;
        }
        let hint = match choices.iter().find(|c| c.eq_ignore_ascii_case(value)) {
            Some(close) => format!("did you mean `{close}`?"),
            None => match did_you_mean(value, choices.iter().map(String::as_str)) {
                Some(close) => format!("did you mean `{close}`?"),
                None => format!("it may be {}", choices.join(", ")),
            },
        };
        Some(refuse(format!("{given} is none of its choices")).hint(hint))
    })
}

/// The flag's choices as they are typed.
fn choices(choices: &Value) -> Option<Vec<String>> {
    let typed = |choice: &Value| choice.as_str().map_or_else(|| choice.to_string(), str::to_string);
    Some(choices.as_array()?.iter().map(typed).collect())
}

/// What is wrong with the number of values, by argparse's `nargs`.
fn miscount(nargs: &Value, flag: &str, values: &[String]) -> Option<String> {
    let wanted = match (nargs.as_u64(), nargs.as_str()) {
        (Some(count), _) => count as usize,
        (None, Some("*")) => return None,
        (None, Some("+")) => values.len().max(1),
        _ => 1,
    };
    if values.len() == wanted {
        return None;
    }
    Some(match (values.first(), wanted) {
        (None, _) => format!("`{flag}` has no value"),
        (Some(value), 0) => format!("`{flag}` takes no value, and `{}` follows it", shown(value)),
        (Some(_), _) => format!("`{flag}` takes {wanted} values and is followed by {}", values.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::flags::Flags;

    fn complaints(text: &str) -> Vec<String> {
        Flags::read(text).findings.into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn values_are_held_against_the_engines_list() {
        for (text, message) in [
            ("--rotary-base abc", "`--rotary-base abc` is no whole number"),
            ("--rotary-base 1e6", "`--rotary-base 1e6` is no whole number"),
            ("--lr fast", "`--lr fast` is no number"),
            ("--lr nan", "`--lr nan` is no number"),
            ("--normalization rmsnorm", "`--normalization rmsnorm` is none of its choices"),
            ("--timing-log-level 7", "`--timing-log-level 7` is none of its choices"),
            ("--moe-router-load-balancing-type aux_loss best", "is none of its choices"),
            ("--swiglu yes", "`--swiglu` takes no value, and `yes` follows it"),
            ("--hidden-size", "`--hidden-size` has no value"),
            ("--recompute-modules", "`--recompute-modules` has no value"),
            ("--hidden-size 8 16", "`--hidden-size` takes 1 values and is followed by 2"),
            ("--rampup-batch-size 1 2", "`--rampup-batch-size` takes 3 values and is followed by 2"),
        ] {
            let found = complaints(text);
            assert!(found.len() == 1 && found[0].contains(message), "{text}: {found:?}");
        }
        let fine = "--lr 1e-4 --rotary-base 10000 --swiglu --recompute-modules moe_act mlp --data-path --hidden-size=8";
        assert_eq!(complaints(fine), Vec::<String>::new());
    }

    #[test]
    fn a_choice_in_other_letters_is_named() {
        let findings = Flags::read("--normalization rmsnorm").findings;
        assert_eq!(findings[0].hint.as_deref(), Some("did you mean `RMSNorm`?"));
    }
}
