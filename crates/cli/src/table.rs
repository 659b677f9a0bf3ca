//! Columns for people: aligned, no borders, a rule under the head. Numbers stand right.

/// A table being built.
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RESET: &str = "\x1b[0m";

impl Table {
    /// A table with these column names.
    pub fn new(head: &[&str]) -> Table {
        Table { rows: vec![head.iter().map(|s| s.to_string()).collect()], right: Vec::new() }
    }

    /// Columns whose cells stand right.
    pub fn right(mut self, columns: &[usize]) -> Table {
        self.right = columns.to_vec();
        self
    }

    /// Adds a row.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The table as text.
    pub fn render(&self) -> String {
        let columns = self.rows[0].len();
        let width = |c: usize| self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut out = String::new();
        for (i, row) in self.rows.iter().enumerate() {
            let mut line = String::from(" ");
            for (c, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[c].saturating_sub(cell.chars().count()));
                let last = c + 1 == columns;
                line += " ";
                if self.right.contains(&c) {
                    line += &pad;
                    line += cell;
                } else {
                    line += cell;
                    line += if last { "" } else { &pad };
                }
                line += if last { "" } else { " " };
            }
            let line = line.trim_end();
            out += &if i == 0 { format!("{DIM}{line}{RESET}\n") } else { format!("{line}\n") };
        }
        out
    }
}

/// A heading above a table.
pub fn heading(text: &str) -> String {
    format!("\n{BOLD}{text}{RESET}\n")
}

/// A shape as `[a, b]`.
pub fn shape(dims: &[u64]) -> String {
    let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Breaks text into lines of at most `width` characters, each behind `indent`.
pub fn wrap(text: &str, indent: &str, width: usize) -> String {
    let mut out = String::new();
    let mut line = String::from(indent);
    for word in text.split_whitespace() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align() {
        let mut table = Table::new(&["a", "bb"]).right(&[1]);
        table.row(["x", "1"]);
        table.row(["yyy", "100"]);
        let plain: String = table.render().replace(DIM, "").replace(RESET, "");
        assert_eq!(plain, "  a     bb\n  x      1\n  yyy  100\n");
    }

    #[test]
    fn text_wraps_behind_its_indent() {
        assert_eq!(wrap("aa bb cc", "  ", 8), "  aa bb\n  cc\n");
    }
}
