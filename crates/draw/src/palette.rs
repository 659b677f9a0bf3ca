//! Colours that people with any colour vision tell apart: Okabe and Ito, "Color Universal Design" (2008).
//! Each is a custom property, so that a page may give it another value, with a value for light paper.

/// A colour: its value as an attribute, and what text on it is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// `var(--sw-…, #…)`.
    pub fill: &'static str,
    /// Text that stands on it.
    pub text: &'static str,
}

const DARK_TEXT: &str = "#111";
const LIGHT_TEXT: &str = "#fff";

/// Blue.
pub const BLUE: Colour = Colour { fill: "var(--sw-blue, #0072b2)", text: LIGHT_TEXT };
/// Orange.
pub const ORANGE: Colour = Colour { fill: "var(--sw-orange, #e69f00)", text: DARK_TEXT };
/// Sky blue.
pub const SKY: Colour = Colour { fill: "var(--sw-sky, #56b4e9)", text: DARK_TEXT };
/// Bluish green.
pub const GREEN: Colour = Colour { fill: "var(--sw-green, #009e73)", text: DARK_TEXT };
/// Yellow.
pub const YELLOW: Colour = Colour { fill: "var(--sw-yellow, #f0e442)", text: DARK_TEXT };
/// Vermilion.
pub const VERMILION: Colour = Colour { fill: "var(--sw-vermilion, #d55e00)", text: DARK_TEXT };
/// Reddish purple.
pub const PURPLE: Colour = Colour { fill: "var(--sw-purple, #cc79a7)", text: DARK_TEXT };
/// Grey, for what belongs to nothing else.
pub const GREY: Colour = Colour { fill: "var(--sw-grey, #b0b0b0)", text: DARK_TEXT };

/// Text.
pub const INK: &str = "var(--sw-ink, #1a1a1a)";
/// Text that may be overlooked.
pub const SOFT: &str = "var(--sw-soft, #595959)";
/// Lines behind everything.
pub const LINE: &str = "var(--sw-line, #d0d0d0)";
/// What everything stands on.
pub const PAPER: &str = "var(--sw-paper, #ffffff)";
/// What is left free, behind bars.
pub const FREE: &str = "var(--sw-free, #f0f0f0)";
/// The device's edge, and what is over it.
pub const EDGE: &str = "var(--sw-edge, #b00020)";

/// Values of the properties for dark paper; those that are not here stay.
pub const DARK: &[(&str, &str)] = &[
    ("--sw-blue", "#1a7fc1"),
    ("--sw-grey", "#8f8f8f"),
    ("--sw-ink", "#ececec"),
    ("--sw-soft", "#a8a8a8"),
    ("--sw-line", "#4a4a4a"),
    ("--sw-paper", "#16181c"),
    ("--sw-free", "#262a30"),
    ("--sw-edge", "#ff7b7b"),
];

/// The same picture with every custom property replaced by its value for light paper, for readers that know none.
pub fn resolved(svg: &str) -> String {
    let mut out = String::with_capacity(svg.len());
    let mut rest = svg;
    while let Some((before, inside)) = rest.split_once("\"var(--sw-") {
        out.push_str(before);
        out.push('"');
        match inside.split_once(", ").and_then(|(_, value)| value.split_once(")\"")) {
            Some((value, behind)) => {
                out.push_str(value);
                out.push('"');
                rest = behind;
            }
            None => {
                rest = inside;
            }
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_become_their_values() {
        let svg = format!("<a fill=\"{}\" stroke=\"{INK}\">var(--sw-x, y)</a>", BLUE.fill);
        assert_eq!(resolved(&svg), "<a fill=\"#0072b2\" stroke=\"#1a1a1a\">var(--sw-x, y)</a>");
    }
}
