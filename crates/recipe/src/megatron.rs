//! Megatron's hybrid pattern: one symbol a block, `|` between pipeline segments, `/` before each
//! prediction depth. Read and written here, failing closed: what has no symbol is refused or
//! listed as a seam, never approximated.
//!
//! Rules as Megatron-Core 0.19.2 states them in `models/hybrid/hybrid_layer_allocation.py`.

use crate::kinds::mamba::Mamba;
use crate::limits;
use crate::mode::{Mode, Seam};
use crate::pattern::{Layer, Mixer, Pattern};
use crate::recipe::Recipe;
use diag::{Blame, Finding, Span};

/// A block symbol of Megatron's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// `*`: grouped-query attention.
    Attention,
    /// `+`: latent attention.
    Mla,
    /// `D`: sparse latent attention.
    Dsa,
    /// `M`: Mamba.
    Mamba,
    /// `G`: gated delta net.
    GatedDelta,
    /// `E`: experts.
    Moe,
    /// `-`: dense MLP.
    Mlp,
}

const SYMBOLS: [(char, Symbol); 7] = [
    ('*', Symbol::Attention),
    ('+', Symbol::Mla),
    ('D', Symbol::Dsa),
    ('M', Symbol::Mamba),
    ('G', Symbol::GatedDelta),
    ('E', Symbol::Moe),
    ('-', Symbol::Mlp),
];

impl Symbol {
    /// The character it is written as.
    pub fn letter(self) -> char {
        SYMBOLS.iter().find(|(_, s)| *s == self).map_or('?', |(c, _)| *c)
    }

    fn from_letter(letter: char) -> Option<Symbol> {
        SYMBOLS.iter().find(|(c, _)| *c == letter).map(|(_, s)| *s)
    }

    /// The mixer it stands for.
    pub fn mixer(self) -> Mixer {
        match self {
            Symbol::Attention | Symbol::Mla | Symbol::Dsa => Mixer::Attention,
            Symbol::Mamba => Mixer::Mamba,
            Symbol::GatedDelta => Mixer::GatedDelta,
            Symbol::Moe => Mixer::Moe,
            Symbol::Mlp => Mixer::Mlp,
        }
    }
}

/// A parsed hybrid pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HybridPattern {
    /// Pipeline segments in order; one when no `|` was written.
    pub segments: Vec<Vec<Symbol>>,
    /// The stack of one prediction depth, empty when there is none.
    pub suffix: Vec<Symbol>,
    /// Number of prediction depths.
    pub mtp_depth: usize,
}

/// Whether a pattern is written in Megatron's symbols: it has one that only Megatron has, and no
/// letter that only ours has.
pub fn is_dialect(text: &str) -> bool {
    text.chars().any(|c| "*+D-|/".contains(c)) && !text.chars().any(|c| "ARF([])x".contains(c))
}

fn fail(message: String, at: usize, text: &str) -> Finding {
    let end = text[at..].chars().next().map_or(at, |c| at + c.len_utf8());
    Finding::error("pattern/megatron", Blame::Recipe, "pattern", message).at(Some(Span { start: at, end }))
}

/// Reads a hybrid pattern whole.
pub fn read(text: &str) -> Result<HybridPattern, Finding> {
    if text.chars().count() > limits::PATTERN_SYMBOLS {
        return Err(fail("pattern is longer than a pattern may be".to_string(), 0, text));
    }
    let mut parts = text.split('/');
    let main = parts.next().unwrap_or_default();
    let segments = main.split('|').map(|part| symbols(part, text)).collect::<Result<Vec<_>, _>>()?;
    if segments.iter().any(Vec::is_empty) {
        let message = if text.is_empty() { "pattern is empty" } else { "a pipeline segment has no layers" };
        return Err(fail(message.to_string(), 0, text).hint("each `|` stands between blocks"));
    }
    let suffixes: Vec<&str> = parts.collect();
    let mut suffix = Vec::new();
    if let Some(first) = suffixes.first() {
        if let Some(other) = suffixes.iter().find(|s| s != &first) {
            let at = offset(other, text);
            let message = format!("prediction suffixes differ: `{first}` and `{other}`");
            return Err(fail(message, at, text).quote("All MTP patterns must be identical."));
        }
        suffix = symbols(first, text)?;
        if suffix.is_empty() {
            return Err(fail("a prediction suffix has no layers".to_string(), text.len() - 1, text));
        }
    }
    refuse_mixed(segments.iter().flatten().chain(&suffix), text)?;
    Ok(HybridPattern { segments, suffix, mtp_depth: suffixes.len() })
}

fn offset(part: &str, text: &str) -> usize {
    part.as_ptr() as usize - text.as_ptr() as usize
}

fn symbols(part: &str, text: &str) -> Result<Vec<Symbol>, Finding> {
    let start = offset(part, text);
    part.char_indices()
        .map(|(i, c)| {
            Symbol::from_letter(c).ok_or_else(|| {
                let message = format!("`{}` is no Megatron symbol", diag::quote::terminal(&c.to_string()));
                let hint = match c {
                    'R' => "Megatron has no recurrent symbol: write `M` and name the layers as a seam",
                    'A' => "attention is `*`, latent attention `+`",
                    'F' => "a dense MLP is `-`",
                    '|' => "a prediction suffix has no pipeline cuts",
                    _ => "symbols are * + D M G E - and | /",
                };
                fail(message, start + i, text).hint(hint)
            })
        })
        .collect()
}

fn refuse_mixed<'a>(symbols: impl Iterator<Item = &'a Symbol>, text: &str) -> Result<(), Finding> {
    let (mut plain, mut latent) = (false, None);
    for symbol in symbols {
        match symbol {
            Symbol::Attention => plain = true,
            Symbol::Mla | Symbol::Dsa => latent = Some(symbol.letter()),
            _ => {}
        }
    }
    match (plain, latent) {
        (true, Some(letter)) => {
            let message = format!("`*` may not stand with `{letter}` in one pattern");
            Err(fail(message, 0, text)
                .quote("Not supported to have both Attention and MLA/DSA in one model")
                .hint("make every attention layer latent (`+` or `D`), or none"))
        }
        _ => Ok(()),
    }
}

/// Reads a hybrid pattern as a recipe's pattern: layers only. Cuts belong to a layout, the suffix
/// to `[features.mtp]`, and the kind of attention to `[attention]`.
pub fn read_layers(text: &str) -> Result<Pattern, Finding> {
    let parsed = read(text)?;
    let refuse = |what: char, hint: &str| {
        let at = text.find(what).unwrap_or(0);
        Err(fail(format!("a recipe's pattern has no `{what}`"), at, text).hint(hint))
    };
    if parsed.segments.len() > 1 {
        return refuse('|', "pipeline cuts belong to a layout: give --boundaries");
    }
    if parsed.mtp_depth > 0 {
        return refuse('/', "give the prediction suffix as `[features.mtp]`");
    }
    for symbol in [Symbol::Mla, Symbol::Dsa] {
        if parsed.segments[0].contains(&symbol) {
            return refuse(symbol.letter(), "write `A`, and say `kind = \"mla\"` in `[attention]`");
        }
    }
    Ok(Pattern { period: parsed.segments[0].iter().map(|s| Layer::of(&[s.mixer()])).collect() })
}

/// A pattern written for Megatron.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// The text of `--hybrid-layer-pattern`.
    pub text: String,
    /// What it cannot express.
    pub seams: Vec<Seam>,
}

/// Writes the recipe as `mode` runs it, cut into segments of `segment_layers` layers each (all
/// layers in one when empty). Fails closed with every reason.
pub fn write(recipe: &Recipe, mode: Option<Mode>, segment_layers: &[usize]) -> Result<Written, Vec<Finding>> {
    let (recipe, seams) = match mode {
        Some(mode) => recipe.in_mode(mode).map_err(|finding| vec![finding])?,
        None => (recipe.clone(), Vec::new()),
    };
    let mut findings = Vec::new();
    refuse_untranslatable(&recipe, mode, &mut findings);
    let mut ordinal = Some(0);
    let layers: Vec<String> = recipe.layers.iter().map(|layer| spell(&recipe, layer, &mut ordinal)).collect();
    let whole = [layers.len()];
    let segment_layers = if segment_layers.is_empty() { &whole } else { segment_layers };
    if segment_layers.iter().sum::<usize>() != layers.len() {
        let message = format!("segments of {segment_layers:?} layers do not make {}", layers.len());
        findings.push(Finding::error("pattern/segments", Blame::Layout, "boundaries", message));
    }
    if !findings.is_empty() {
        return Err(findings);
    }
    let mut rest = layers.as_slice();
    let segments: Vec<String> = segment_layers
        .iter()
        .map(|&n| {
            let (segment, tail) = rest.split_at(n);
            rest = tail;
            segment.concat()
        })
        .collect();
    let mut text = segments.join("|");
    if let Some(mtp) = recipe.features.mtp() {
        let suffix = spell(&recipe, &mtp.layer, &mut None);
        for _ in 0..mtp.depth {
            text += "/";
            text += &suffix;
        }
    }
    // What we write must be what the engine reads.
    read(&text).map_err(|finding| vec![finding])?;
    Ok(Written { text, seams })
}

fn refuse_untranslatable(recipe: &Recipe, mode: Option<Mode>, findings: &mut Vec<Finding>) {
    let refuse = |object: &str, message: String| Finding::error("pattern/no-symbol", Blame::Engine, object, message);
    if recipe.uses(Mixer::Recurrent) && mode.is_none() {
        let layers = numbers(&recipe.layers_with(Mixer::Recurrent));
        let message = format!("R has no Megatron symbol (layers {layers})");
        findings.push(refuse("recurrent", message).hint(recipe.mode_hint()));
    }
    if matches!(recipe.mamba, Some(Mamba::One(_))) && recipe.uses(Mixer::Mamba) {
        let finding = refuse("mamba", "Mamba-1 has no Megatron symbol: `M` is Mamba-2".to_string());
        findings.push(finding.hint("another engine has the block: `shardwright lanes` lists them"));
    }
    if matches!(recipe.mamba, Some(Mamba::Three(_))) && recipe.uses(Mixer::Mamba) && mode.is_none() {
        let message = "Mamba-3 has no Megatron symbol: `M` is Mamba-2".to_string();
        findings.push(refuse("mamba", message).hint(recipe.mode_hint()));
    }
    if let Some((layer, _)) = recipe.blocks().find(|(_, block)| block.mixers.len() > 1) {
        let message = format!("parallel mixers (layer {layer}) have no Megatron symbol");
        findings.push(
            refuse("pattern", message).hint("write the mixers as blocks one after another, or pick another engine"),
        );
    }
    if recipe.features.dsa().is_some() && !recipe.is_latent() {
        let message =
            "sparse attention (`D`) is latent attention in Megatron, and the recipe's is grouped-query".to_string();
        findings.push(
            refuse("features.dsa", message)
                .quote("Not supported to have both Attention and MLA/DSA in one model")
                .hint("switch `mla` on, or `dsa` off"),
        );
    }
}

/// Layer indices, counted from zero as in tensor paths.
pub fn numbers(layers: &[usize]) -> String {
    layers.iter().map(|l| l.to_string()).collect::<Vec<_>>().join(", ")
}

/// The symbols of a layer. `ordinal` counts attention layers; a prediction suffix has none, since
/// sparse attention never stands there.
fn spell(recipe: &Recipe, layer: &Layer, ordinal: &mut Option<u64>) -> String {
    let is_mla = recipe.is_latent();
    layer
        .mixers()
        .map(|mixer| match mixer {
            Mixer::Attention => {
                let sparse = recipe.features.dsa().is_some_and(|dsa| ordinal.is_some_and(|o| dsa.covers(o)));
                *ordinal = ordinal.map(|o| o + 1);
                match (is_mla, sparse) {
                    (_, true) => Symbol::Dsa,
                    (true, false) => Symbol::Mla,
                    (false, false) => Symbol::Attention,
                }
            }
            Mixer::Moe => Symbol::Moe,
            // Megatron has no such blocks; whoever writes a pattern has refused linear and shared ones.
            Mixer::Mamba | Mixer::Recurrent | Mixer::Linear | Mixer::Shared => Symbol::Mamba,
            Mixer::GatedDelta => Symbol::GatedDelta,
            Mixer::Mlp => Symbol::Mlp,
        })
        .map(Symbol::letter)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        read(text).unwrap_err().message
    }

    #[test]
    fn cuts_and_suffixes_are_read() {
        let parsed = read("M-M-|M-M*-/MM/MM").unwrap();
        assert_eq!(parsed.segments.iter().map(Vec::len).collect::<Vec<_>>(), [4, 5]);
        assert_eq!((parsed.suffix.len(), parsed.mtp_depth), (2, 2));
    }

    #[test]
    fn what_the_engine_rejects_is_refused() {
        assert_eq!(refusal("M*+"), "`*` may not stand with `+` in one pattern");
        assert_eq!(refusal("M*|MD"), "`*` may not stand with `D` in one pattern");
        assert_eq!(refusal("MM/M*/MM"), "prediction suffixes differ: `M*` and `MM`");
        assert_eq!(refusal("MMR"), "`R` is no Megatron symbol");
        assert_eq!(refusal("MM/M|M"), "`|` is no Megatron symbol");
        assert_eq!(refusal("M||M"), "a pipeline segment has no layers");
        assert_eq!(refusal(""), "pattern is empty");
        assert_eq!(refusal("M/"), "a prediction suffix has no layers");
        assert!(read("+ED").is_ok());
    }

    /// As many cuts as a pattern may have are read as fast as one: a reader that goes over all segments once
    /// for each takes a minute.
    #[test]
    fn many_cuts_are_read_once() {
        let since = std::time::Instant::now();
        let parsed = read(&vec!["M"; limits::PATTERN_SYMBOLS / 2].join("|")).unwrap();
        assert_eq!(parsed.segments.len(), limits::PATTERN_SYMBOLS / 2);
        assert!(since.elapsed().as_secs() < 5, "{:?}", since.elapsed());
    }

    #[test]
    fn a_recipe_pattern_has_no_cuts() {
        assert!(read_layers("M|M").is_err());
        assert!(read_layers("M+").is_err());
        assert_eq!(read_layers("M-*E").unwrap().to_string(), "MFAE");
    }

    #[test]
    fn dialects_are_told_apart() {
        assert!(is_dialect("M-M*"));
        assert!(!is_dialect("AEMEAEMEAEMR"));
        assert!(!is_dialect("MEM"));
        assert!(!is_dialect("A*"));
    }
}
