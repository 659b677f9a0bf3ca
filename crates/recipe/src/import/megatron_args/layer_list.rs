//! Lists of zeros and ones as Megatron writes them, one entry a layer: `[0,1,1]`,
//! `([0]*3+[1]*58)`, `([1]*3+[0])*12`. Python would evaluate them; here only this grammar is read.

use crate::limits;

/// Parentheses inside parentheses that are still followed.
const DEEPEST: usize = 16;

/// Reads a whole list, no longer than a model may be deep.
pub fn parse(text: &str) -> Option<Vec<bool>> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let (list, rest) = sum(&text, 0)?;
    rest.is_empty().then_some(list)
}

/// `product + product + …`
fn sum(text: &str, nesting: usize) -> Option<(Vec<bool>, &str)> {
    let (mut list, mut rest) = product(text, nesting)?;
    while let Some(next) = rest.strip_prefix('+') {
        let (more, after) = product(next, nesting)?;
        list.extend(more);
        rest = after;
        if list.len() as u64 > limits::DEPTH {
            return None;
        }
    }
    Some((list, rest))
}

/// `atom * times * …`
fn product(text: &str, nesting: usize) -> Option<(Vec<bool>, &str)> {
    let (mut list, mut rest) = atom(text, nesting)?;
    while let Some(next) = rest.strip_prefix('*') {
        let digits = next.find(|c: char| !c.is_ascii_digit()).unwrap_or(next.len());
        let times: usize = next[..digits].parse().ok()?;
        if list.len().checked_mul(times)? as u64 > limits::DEPTH {
            return None;
        }
        list = list.repeat(times);
        rest = &next[digits..];
    }
    Some((list, rest))
}

/// `[0,1,…]` or a sum in parentheses.
fn atom(text: &str, nesting: usize) -> Option<(Vec<bool>, &str)> {
    if let Some(inner) = text.strip_prefix('(') {
        let (list, rest) = if nesting < DEEPEST { sum(inner, nesting + 1)? } else { return None };
        return Some((list, rest.strip_prefix(')')?));
    }
    let (entries, rest) = text.strip_prefix('[')?.split_once(']')?;
    let entry = |e: &str| match e {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    };
    Some((entries.split(',').map(entry).collect::<Option<Vec<bool>>>()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_python_would() {
        assert_eq!(parse("([0]*1+[1]*2)").unwrap(), [false, true, true]);
        assert_eq!(parse("[0, 1]").unwrap(), [false, true]);
        assert_eq!(parse("([1]*2+[0])*2").unwrap(), [true, true, false, true, true, false]);
        assert_eq!(parse("[0]+([1])*2").unwrap(), [false, true, true]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["", "[1", "[2]", "[1]*99999999999", "[1]*9999*9999", "([1]", "[1]]", "[1]+", "[1]*", "x"] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"(".repeat(100_000)), None);
    }
}
