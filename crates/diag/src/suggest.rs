//! "Did you mean": the closest of the names that would have been accepted.

/// The candidate closest to `typed`, if any is close enough to be what was meant.
pub fn did_you_mean<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A hostile name is not worth comparing: the table is quadratic in its length.
    if typed.len() > 64 {
        return None;
    }
    let typed = typed.to_lowercase();
    candidates
        .into_iter()
        // Names whose lengths differ by more than may be forgiven need no table.
        .filter(|candidate| candidate.len().abs_diff(typed.len()) <= tolerance(&typed, candidate))
        .map(|candidate| (distance(&typed, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= tolerance(&typed, candidate))
        .min_by_key(|(distance, candidate)| (*distance, *candidate))
        .map(|(_, candidate)| candidate)
}

/// As [`did_you_mean`], for names of models and other things whose numbers tell them apart: `llama4` is no
/// slip of `llama`, nor `7b` of `8b`. Who types no number at all may still mean a name that has one.
pub fn did_you_mean_name<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let digits = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    let wanted = digits(typed);
    did_you_mean(typed, candidates.into_iter().filter(|name| wanted.is_empty() || digits(name) == wanted))
}

/// A third of the shorter name may differ, and one slip is always forgiven.
fn tolerance(typed: &str, candidate: &str) -> usize {
    (typed.len().min(candidate.len()) / 3).max(1)
}

/// Edits (insert, delete, replace, swap of neighbours) between two words.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        let keys = ["hidden", "heads", "kv_heads", "head_dim"];
        assert_eq!(did_you_mean("hiden", keys), Some("hidden"));
        assert_eq!(did_you_mean("haeds", keys), Some("heads"));
        assert_eq!(did_you_mean("kv-heads", keys), Some("kv_heads"));
        assert_eq!(did_you_mean("colour", keys), None);
    }

    #[test]
    fn another_number_is_another_thing() {
        let names = ["llama", "llama3-8b", "fsdp2", "nam56r"];
        assert_eq!(did_you_mean_name("llama4", names), None);
        assert_eq!(did_you_mean_name("llama3-7b", names), None);
        assert_eq!(did_you_mean_name("nam56", names), Some("nam56r"));
        assert_eq!(did_you_mean_name("fsdp", names), Some("fsdp2"));
    }

    #[test]
    fn a_hostile_name_is_not_compared() {
        assert_eq!(did_you_mean(&"h".repeat(100_000), ["hidden"]), None);
    }
}
