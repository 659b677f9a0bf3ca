//! Columns for people: aligned, no borders, a rule under the head. Numbers stand right. Where the screen is
//! narrower than the table, spare columns go first, then texts wrap inside their columns; nothing is cut.

use crate::width::{columns, pieces, visible};
use diag::quote;

/// A table being built.
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
    spare: Vec<Vec<usize>>,
}

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

/// A column of text is read with ease when it has this many columns of the screen.
const COMFORT: usize = 22;

impl Table {
    /// A table with these column names.
    pub fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|s| s.to_string()).collect()], right: Vec::new(), spare: Vec::new() }
    }

    /// Columns whose cells stand right.
    pub fn right(mut self, columns: &[usize]) -> Table {
        self.right = columns.to_vec();
        self
    }

    /// Columns that a narrow screen goes without, the first to go first; those of a group go together.
    pub fn spare(mut self, groups: &[&[usize]]) -> Table {
        self.spare = groups.iter().map(|group| group.to_vec()).collect();
        self
    }

    /// Adds a row. A cell is a name or a sentence, whoever wrote it: it has no line ends and no styles.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(|cell| quote::sentence(&cell.into())).collect());
    }

    /// The table as text, as wide as the screen at most.
    pub fn render(&self) -> String {
        self.within(columns())
    }

    fn within(&self, room: usize) -> String {
        let all: Vec<usize> = (0..self.rows[0].len()).filter(|c| self.natural(*c) > 0).collect();
        let mut shown = all.clone();
        for spare in self.spare.iter().map(Some).chain([None]) {
            if let Some(widths) = self.widths(&shown, room, COMFORT) {
                return self.text(&shown, &widths) + &self.left_out(&all, &shown);
            }
            if let Some(spare) = spare {
                shown.retain(|c| !spare.contains(c));
            }
        }
        match self.widths(&shown, room, 0) {
            Some(widths) => self.text(&shown, &widths) + &self.left_out(&all, &shown),
            None => self.stacked(&all, room),
        }
    }

    fn natural(&self, column: usize) -> usize {
        self.rows.iter().filter_map(|r| r.get(column)).map(|s| s.chars().count()).max().unwrap_or(0)
    }

    /// What a table of these columns takes: two before each but the first, which has them as an indent.
    fn taken(widths: &[usize]) -> usize {
        widths.iter().sum::<usize>() + 2 * widths.len()
    }

    /// Widths that fit the room: texts get `comfort` at least, and no word is broken.
    fn widths(&self, shown: &[usize], room: usize, comfort: usize) -> Option<Vec<usize>> {
        let natural: Vec<usize> = shown.iter().map(|c| self.natural(*c)).collect();
        let longest = |c: usize| {
            let cells = self.rows.iter().filter_map(|r| r.get(c));
            cells.flat_map(|cell| pieces(cell)).map(visible).max().unwrap_or(0)
        };
        let least = |(c, natural): (&usize, &usize)| match self.right.contains(c) {
            true => *natural,
            false => longest(*c).max(comfort).min(*natural),
        };
        let mut widths: Vec<usize> = shown.iter().zip(&natural).map(least).collect();
        let mut free = room.checked_sub(Table::taken(&widths))?;
        // What is left goes to the narrowest of those that lack some.
        while free > 0 {
            let lacking = (0..widths.len()).filter(|i| widths[*i] < natural[*i]).min_by_key(|i| widths[*i]);
            let Some(lacking) = lacking else { break };
            widths[lacking] += 1;
            free -= 1;
        }
        Some(widths)
    }

    fn text(&self, shown: &[usize], widths: &[usize]) -> String {
        let mut out = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let empty = String::new();
            let cells: Vec<Vec<String>> =
                shown.iter().zip(widths).map(|(c, width)| broken(row.get(*c).unwrap_or(&empty), *width)).collect();
            let lines = cells.iter().map(Vec::len).max().unwrap_or(1);
            for at in 0..lines {
                let mut line = String::new();
                for ((c, width), cell) in shown.iter().zip(widths).zip(&cells) {
                    let cell = cell.get(at).map_or("", String::as_str);
                    let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
                    line += "  ";
                    line += &if self.right.contains(c) { pad + cell } else { cell.to_string() + &pad };
                }
                let line = line.trim_end();
                out += &if i == 0 { format!("{DIM}{line}{RESET}\n") } else { format!("{line}\n") };
            }
        }
        out
    }

    /// Which columns a wider screen would show.
    fn left_out(&self, all: &[usize], shown: &[usize]) -> String {
        let names: Vec<&str> = all.iter().filter(|c| !shown.contains(c)).map(|c| self.rows[0][*c].as_str()).collect();
        if names.is_empty() {
            return String::new();
        }
        let room = Table::taken(&all.iter().map(|c| self.natural(*c)).collect::<Vec<_>>());
        format!("{DIM}  at {room} columns, or with --json, also: {}{RESET}\n", names.join(", "))
    }

    /// A row a paragraph, where columns would be too narrow for their words.
    fn stacked(&self, all: &[usize], room: usize) -> String {
        let mut out = String::new();
        for row in &self.rows[1..] {
            let mut cells = all.iter().filter_map(|c| {
                let cell = row.get(*c).filter(|cell| !cell.is_empty())?;
                Some((self.rows[0][*c].as_str(), cell.as_str()))
            });
            let first = cells.next().map_or("", |(_, cell)| cell);
            let named = |(name, cell): (&str, &str)| match name {
                "" => cell.to_string(),
                _ => format!("{name}: {cell}"),
            };
            let rest: Vec<String> = cells.map(named).collect();
            out += &wrapped(first, "  ", room);
            out += &if rest.is_empty() { String::new() } else { wrapped(&rest.join("; "), "    ", room) };
        }
        out
    }
}

/// A cell as lines of at most this width.
fn broken(cell: &str, width: usize) -> Vec<String> {
    if cell.chars().count() <= width {
        return vec![cell.to_string()];
    }
    let mut lines = vec![String::new()];
    for piece in pieces(cell) {
        let Some(line) = lines.last_mut() else { break };
        if line.is_empty() {
            *line = piece.to_string();
        } else if line.chars().count() + 1 + piece.chars().count() <= width {
            *line += " ";
            *line += piece;
        } else {
            lines.push(piece.to_string());
        }
    }
    lines
}

/// A heading above a table.
pub fn heading(text: &str) -> String {
    format!("\n{BOLD}{}{RESET}\n", quote::sentence(text))
}

/// A shape as `[a, b]`.
pub fn shape(dims: &[u64]) -> String {
    let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Breaks text into lines of at most `width` characters, or the screen's, each behind `indent`.
pub fn wrap(text: &str, indent: &str, width: usize) -> String {
    wrapped(text, indent, width.min(columns()))
}

fn wrapped(text: &str, indent: &str, width: usize) -> String {
    let text = &quote::sentence(text);
    let mut out = String::new();
    let mut line = String::from(indent);
    for word in pieces(text).into_iter().filter(|word| !word.is_empty()) {
        if line.chars().count() + 1 + word.chars().count() > width && line.trim() != "" {
            out += line.trim_end();
            out.push('\n');
            line = String::from(indent);
        }
        line += word;
        line.push(' ');
    }
    out += line.trim_end();
    out.push('\n');
    out
}

/// An item of a list: its mark, and its text beside it to the end.
pub fn item(mark: &str, text: &str, width: usize) -> String {
    let indent = " ".repeat(mark.chars().count());
    mark.to_string() + wrap(text, &indent, width).trim_start_matches(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        text.replace(DIM, "").replace(RESET, "")
    }

    fn people() -> Table {
        let mut table = Table::new(&["who", "n", "what", "more"]).right(&[1]).spare(&[&[3]]);
        table.row(["ada", "1", "writes programs for an engine that nobody has built", "analyst"]);
        table
    }

    #[test]
    fn columns_align() {
        let mut table = Table::new(&["a", "bb"]).right(&[1]);
        table.row(["x", "1"]);
        table.row(["yyy", "100"]);
        assert_eq!(plain(&table.within(80)), "  a     bb\n  x      1\n  yyy  100\n");
    }

    #[test]
    fn a_narrow_screen_goes_without_spare_columns_then_wraps() {
        let wide = plain(&people().within(80));
        assert_eq!(
            wide.lines().nth(1).unwrap(),
            "  ada  1  writes programs for an engine that nobody has built  analyst"
        );
        assert!(plain(&people().within(44)).lines().nth(1).unwrap().ends_with("writes programs for an     analyst"));
        let narrow = plain(&people().within(36));
        assert_eq!(
            narrow,
            "  who  n  what\n  ada  1  writes programs for an\n          engine that nobody has\n          built\n  \
             at 70 columns, or with --json, also: more\n"
        );
    }

    #[test]
    fn a_row_is_a_paragraph_where_no_column_has_room() {
        let mut table = Table::new(&["tensor", "×", "rule"]).right(&[0, 1, 2]);
        table.row(["embedding.tokens.weight", "1", "embedding/vocabulary"]);
        assert_eq!(table.within(40), "  embedding.tokens.weight\n    ×: 1; rule: embedding/vocabulary\n");
    }

    #[test]
    fn text_wraps_behind_its_indent() {
        assert_eq!(wrapped("aa bb cc", "  ", 8), "  aa bb\n  cc\n");
        assert_eq!(item("  1. ", "aa", 40), "  1. aa\n");
    }
}
