//! `/proc/PID/cmdline` and `/proc/PID/stat`.

use super::number;

/// Words of a command line. A process may have overwritten them with one text of its own.
pub fn command_line(raw: &[u8]) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = raw.split(|b| *b == 0).map(<[u8]>::to_vec).collect();
    while words.last().is_some_and(Vec::is_empty) {
        words.pop();
    }
    words
}

/// The parent of a process: the second field behind its name, which may itself hold brackets.
pub fn parent(stat: &[u8]) -> Option<u32> {
    let end = stat.iter().rposition(|b| *b == b')')?;
    let fields: Vec<&[u8]> = stat[end + 1..].split(|b| *b == b' ').filter(|field| !field.is_empty()).collect();
    number(fields.get(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_do_not_confuse() {
        assert_eq!(parent(b"12 (a) 7 (b)) S 41 12 12 0"), Some(41));
        assert_eq!(parent(b"12 no name"), None);
        assert_eq!(command_line(b"python3\0-u\0\0x\0"), [b"python3".to_vec(), b"-u".to_vec(), vec![], b"x".to_vec()]);
        assert!(command_line(b"").is_empty());
    }
}
