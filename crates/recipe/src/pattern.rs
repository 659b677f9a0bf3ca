//! The pattern language: which block stands at which depth.
//!
//! One letter is one mixer. A bare letter is a layer of one block; parentheses make a layer of
//! several blocks, each with its own norm, that no pipeline cut may separate; square brackets put
//! mixers side by side behind one norm; `xN` repeats what stands before it.
//!
//! ```text
//! AEMEAEMEAEMR        twelve layers, tiled to the recipe's depth
//! (AF)                a transformer layer: attention, then a dense MLP
//! (AF)x3 (AE)x58      three dense layers first, then mixture-of-experts layers
//! ([AM]F)             attention and Mamba in parallel, then an MLP
//! ```
//!
//! A pattern says nothing about pipeline cuts or ranks. Megatron's own symbols are another
//! dialect, read and written by [`crate::megatron`].

use crate::limits;
use diag::{Blame, Finding, Span};
use std::fmt;

/// What a pattern letter stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mixer {
    /// `A`: softmax attention (GQA, MLA, optionally sparse).
    Attention,
    /// `E`: routed experts, with or without a shared one.
    Moe,
    /// `M`: a Mamba state-space mixer.
    Mamba,
    /// `R`: a recurrent mixer (M2RNN).
    Recurrent,
    /// `G`: a gated delta net, the recurrent family's linear-attention kind.
    GatedDelta,
    /// `L`: a linear mixer of another kind: short convolutions, lightning attention, RG-LRU, mLSTM.
    Linear,
    /// `F`: a dense feed-forward block.
    Mlp,
    /// `S`: a transformer block whose weights several layers share.
    Shared,
}

/// The block families that reports count by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Attention-owned blocks.
    A,
    /// Expert blocks.
    E,
    /// Mamba / state-space blocks.
    M,
    /// Recurrent blocks.
    R,
    /// Dense feed-forward blocks.
    F,
    /// Embeddings, head, final norm, side channels, prediction heads: what is not a block.
    Edge,
}

impl Mixer {
    /// Every mixer, in the order reports list them.
    pub const ALL: [Mixer; 8] = [
        Mixer::Attention,
        Mixer::Moe,
        Mixer::Mamba,
        Mixer::Recurrent,
        Mixer::GatedDelta,
        Mixer::Linear,
        Mixer::Mlp,
        Mixer::Shared,
    ];

    /// The pattern letter.
    pub fn letter(self) -> char {
        match self {
            Mixer::Attention => 'A',
            Mixer::Moe => 'E',
            Mixer::Mamba => 'M',
            Mixer::Recurrent => 'R',
            Mixer::GatedDelta => 'G',
            Mixer::Linear => 'L',
            Mixer::Mlp => 'F',
            Mixer::Shared => 'S',
        }
    }

    /// The mixer a letter stands for.
    pub fn from_letter(letter: char) -> Option<Mixer> {
        Mixer::ALL.into_iter().find(|m| m.letter() == letter)
    }

    /// The recipe table that describes it, also its segment in tensor paths.
    pub fn table(self) -> &'static str {
        match self {
            Mixer::Attention => "attention",
            Mixer::Moe => "moe",
            Mixer::Mamba => "mamba",
            Mixer::Recurrent => "recurrent",
            Mixer::GatedDelta => "gated_delta",
            Mixer::Linear => "linear",
            Mixer::Mlp => "mlp",
            Mixer::Shared => "shared",
        }
    }

    /// The family it is counted under.
    pub fn family(self) -> Family {
        match self {
            Mixer::Attention | Mixer::Shared => Family::A,
            Mixer::Moe => Family::E,
            Mixer::Mamba => Family::M,
            Mixer::Recurrent | Mixer::GatedDelta | Mixer::Linear => Family::R,
            Mixer::Mlp => Family::F,
        }
    }

    /// Whether it carries state from one token to the next, so that cutting time needs a contract.
    pub fn carries_state(self) -> bool {
        matches!(self, Mixer::Mamba | Mixer::Recurrent | Mixer::GatedDelta | Mixer::Linear)
    }
}

impl Family {
    /// Every family, in the order reports list them.
    pub const ALL: [Family; 6] = [Family::A, Family::E, Family::M, Family::R, Family::F, Family::Edge];

    /// What it is called in a report.
    pub fn name(self) -> &'static str {
        match self {
            Family::A => "attention",
            Family::E => "experts",
            Family::M => "mamba",
            Family::R => "recurrent",
            Family::F => "dense mlp",
            Family::Edge => "edges",
        }
    }

    /// The stable key in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Family::A => "A",
            Family::E => "E",
            Family::M => "M",
            Family::R => "R",
            Family::F => "F",
            Family::Edge => "edge",
        }
    }
}

/// Mixers that share one norm and one residual addition. Nearly always exactly one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block {
    /// At least one.
    pub mixers: Vec<Mixer>,
}

impl Block {
    /// A block of one mixer.
    pub fn of(mixer: Mixer) -> Block {
        Block { mixers: vec![mixer] }
    }
}

/// What a pipeline cut may not separate: one or more blocks in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer {
    /// At least one.
    pub blocks: Vec<Block>,
    /// Whether it takes some tokens only, as a recipe's mixture of depths says; no pattern does.
    pub is_partial: bool,
    /// Whether an engram branch stands before it, as a recipe's feature says.
    pub has_engram: bool,
}

impl Layer {
    /// A layer of one-mixer blocks.
    pub fn of(mixers: &[Mixer]) -> Layer {
        Layer::of_blocks(mixers.iter().copied().map(Block::of).collect())
    }

    /// A layer of these blocks.
    pub fn of_blocks(blocks: Vec<Block>) -> Layer {
        Layer { blocks, is_partial: false, has_engram: false }
    }

    /// All mixers of the layer, in order.
    pub fn mixers(&self) -> impl Iterator<Item = Mixer> + '_ {
        self.blocks.iter().flat_map(|b| b.mixers.iter().copied())
    }

    /// Whether some block of the layer is of this mixer.
    pub fn has(&self, mixer: Mixer) -> bool {
        self.mixers().any(|m| m == mixer)
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let grouped = self.blocks.len() > 1;
        if grouped {
            f.write_str("(")?;
        }
        for block in &self.blocks {
            let letters: String = block.mixers.iter().map(|m| m.letter()).collect();
            if block.mixers.len() > 1 {
                write!(f, "[{letters}]")?;
            } else {
                f.write_str(&letters)?;
            }
        }
        if grouped {
            f.write_str(")")?;
        }
        Ok(())
    }
}

/// A pattern as written: one period of layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The layers of one period, repetitions expanded.
    pub period: Vec<Layer>,
}

impl Pattern {
    /// Reads a pattern. Findings point into `text`.
    pub fn parse(text: &str) -> Result<Pattern, Finding> {
        Parser { text, chars: text.char_indices().collect(), at: 0, symbols: 0 }.pattern()
    }

    /// The layers of a model `depth` layers deep: the period repeated and cut to length.
    pub fn tile(&self, depth: usize) -> Vec<Layer> {
        self.period.iter().cycle().take(depth).cloned().collect()
    }

    /// The shortest way to write these layers: a period when one tiles them, runs otherwise.
    pub fn describe(layers: &[Layer]) -> Pattern {
        let tiles = |p: usize| (p..layers.len()).all(|i| layers[i] == layers[i - p]);
        // A period longer than half the depth saves nothing over writing the layers out.
        let longest = layers.len() / 2;
        let period = (1..=longest).find(|&p| tiles(p)).unwrap_or(layers.len());
        Pattern { period: layers[..period].to_vec() }
    }
}

impl fmt::Display for Pattern {
    /// Writes runs of three or more equal layers, and of any grouped ones, as `xN`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.period.as_slice();
        let mut after_count = false;
        while let Some(first) = rest.first() {
            let run = rest.iter().take_while(|l| *l == first).count();
            if after_count {
                f.write_str(" ")?;
            }
            if run >= 3 || (run == 2 && first.blocks.len() > 1) {
                write!(f, "{first}x{run}")?;
                after_count = true;
                rest = &rest[run..];
            } else {
                write!(f, "{first}")?;
                after_count = false;
                rest = &rest[1..];
            }
        }
        Ok(())
    }
}

struct Parser<'a> {
    text: &'a str,
    chars: Vec<(usize, char)>,
    at: usize,
    symbols: usize,
}

impl Parser<'_> {
    fn pattern(mut self) -> Result<Pattern, Finding> {
        let mut period = Vec::new();
        loop {
            self.skip_space();
            let Some(c) = self.peek() else { break };
            let layer = match c {
                '(' => self.group()?,
                _ => Layer::of_blocks(vec![self.block()?]),
            };
            let repeats = self.repeats()?;
            self.symbols += layer.blocks.len() * repeats;
            if self.symbols > limits::PATTERN_SYMBOLS {
                return Err(self.fail("pattern is longer than a pattern may be", "tile it with `depth` instead"));
            }
            period.extend(std::iter::repeat_n(layer, repeats));
        }
        if period.is_empty() {
            return Err(self.fail("pattern is empty", "write one letter a block, such as `AEMEAEMEAEMR`"));
        }
        Ok(Pattern { period })
    }

    fn group(&mut self) -> Result<Layer, Finding> {
        self.at += 1;
        let mut blocks = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                Some(')') if !blocks.is_empty() => break,
                Some(')') => return Err(self.fail("empty layer `()`", "name at least one block, as in `(AF)`")),
                Some('(') => return Err(self.fail("a layer may not contain a layer", "close the first `(`")),
                Some(_) => blocks.push(self.block()?),
                None => return Err(self.fail("unclosed `(`", "close the layer with `)`")),
            }
        }
        self.at += 1;
        Ok(Layer::of_blocks(blocks))
    }

    fn block(&mut self) -> Result<Block, Finding> {
        if self.peek() != Some('[') {
            return Ok(Block::of(self.mixer()?));
        }
        self.at += 1;
        let mut mixers = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                Some(']') if mixers.len() > 1 => break,
                Some(']') => return Err(self.fail("`[…]` holds mixers in parallel", "name at least two, as in `[AM]`")),
                Some(_) => {
                    let mixer = self.mixer()?;
                    if mixers.contains(&mixer) {
                        return Err(self.fail_before("a mixer stands twice in one parallel block", "name it once"));
                    }
                    mixers.push(mixer);
                }
                None => return Err(self.fail("unclosed `[`", "close the parallel block with `]`")),
            }
        }
        self.at += 1;
        Ok(Block { mixers })
    }

    fn mixer(&mut self) -> Result<Mixer, Finding> {
        let c = self.peek().unwrap_or(' ');
        let Some(mixer) = Mixer::from_letter(c) else {
            return Err(match c {
                '*' | '+' | 'D' | '-' => self.fail(
                    &format!("`{c}` is a Megatron symbol, and this pattern has letters that Megatron has not"),
                    "write the whole pattern in one dialect",
                ),
                '|' => self.fail("`|` is a pipeline cut, and a pattern knows no mesh", "give cuts with --boundaries"),
                '/' => self.fail("`/` starts a prediction suffix", "give it as `[features.mtp]`"),
                'a'..='z' => self.fail(&format!("`{c}` is no block letter"), "block letters are uppercase"),
                _ => self.fail(
                    &format!("`{}` is no block letter", diag::quote::terminal(&c.to_string())),
                    "A attention, E experts, M Mamba, R recurrent, G gated delta net, L another linear mixer, F dense MLP, S shared block",
                ),
            });
        };
        self.at += 1;
        Ok(mixer)
    }

    fn repeats(&mut self) -> Result<usize, Finding> {
        if self.peek() != Some('x') {
            return Ok(1);
        }
        self.at += 1;
        let digits: String = self.chars[self.at..].iter().map(|c| c.1).take_while(char::is_ascii_digit).collect();
        self.at += digits.len();
        match digits.parse::<usize>() {
            Ok(n) if (1..=limits::PATTERN_SYMBOLS).contains(&n) => Ok(n),
            _ => Err(self.fail_before("`x` wants a count", "as in `(AF)x3`")),
        }
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).map(|c| c.1)
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
    }

    fn fail(&self, message: &str, hint: &str) -> Finding {
        let start = self.chars.get(self.at).map_or(self.text.len(), |c| c.0);
        let end = self.chars.get(self.at + 1).map_or(self.text.len(), |c| c.0);
        Finding::error("pattern/syntax", Blame::Recipe, "pattern", message).hint(hint).at(Some(Span { start, end }))
    }

    fn fail_before(&mut self, message: &str, hint: &str) -> Finding {
        self.at = self.at.saturating_sub(1);
        self.fail(message, hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match Pattern::parse(text) {
            Ok(pattern) => pattern.to_string(),
            Err(finding) => format!("{} at {}", finding.message, finding.span.unwrap().start),
        }
    }

    #[test]
    fn nam56r_tiles_to_its_family_counts() {
        let layers = Pattern::parse("AEMEAEMEAEMR").unwrap().tile(52);
        let count = |m| layers.iter().filter(|l| l.has(m)).count();
        assert_eq!(layers.len(), 52);
        assert_eq!([Mixer::Attention, Mixer::Moe, Mixer::Mamba, Mixer::Recurrent].map(count), [13, 22, 13, 4]);
    }

    #[test]
    fn writing_reads_back() {
        for text in ["AEMEAEMEAEMR", "(AF)x3 (AE)x58", "([AM]F)", "AAMx4", "(MF)(ME)x2 (AF)"] {
            let pattern = Pattern::parse(text).unwrap();
            assert_eq!(Pattern::parse(&pattern.to_string()).unwrap(), pattern, "{text}");
        }
        assert_eq!(shown("M M M M"), "Mx4");
    }

    #[test]
    fn mistakes_are_named_where_they_stand() {
        assert_eq!(shown(""), "pattern is empty at 0");
        assert_eq!(shown("AEa"), "`a` is no block letter at 2");
        assert_eq!(shown("(AF"), "unclosed `(` at 3");
        assert_eq!(shown("A|E"), "`|` is a pipeline cut, and a pattern knows no mesh at 1");
        assert_eq!(shown("[AA]"), "a mixer stands twice in one parallel block at 2");
        assert_eq!(shown("Ax"), "`x` wants a count at 1");
        assert_eq!(shown("Ax99999999999999999999"), "`x` wants a count at 21");
        assert_eq!(shown("Ax60000 Ax60000"), "pattern is longer than a pattern may be at 15");
    }

    #[test]
    fn describing_finds_the_period() {
        let layers = Pattern::parse("AEM").unwrap().tile(8);
        assert_eq!(Pattern::describe(&layers).to_string(), "AEM");
        let mixed = Pattern::parse("(AF)(AE)x5").unwrap().tile(6);
        assert_eq!(Pattern::describe(&mixed).to_string(), "(AF)(AE)x5");
    }
}
