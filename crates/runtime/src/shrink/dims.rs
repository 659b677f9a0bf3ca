//! Sizes of a recipe by name: what `--dims` may set, and what a report lists as made smaller.

use diag::{Blame, Finding, did_you_mean};
use layout::{Checked, LayoutRequest};
use recipe::Recipe;
use recipe::kinds::attention::AttentionKind;
use recipe::kinds::mamba::Mamba;
use recipe::limits;
use units::named;

named! {
    /// A size of a recipe.
    pub enum Dim {
        /// Layers.
        Depth = "depth",
        /// Width of the residual stream.
        Hidden = "hidden",
        /// Rows of the token table.
        Vocab = "vocab",
        /// Tokens of a sequence.
        Sequence = "seq",
        /// Query heads.
        Heads = "heads",
        /// Key/value heads.
        KvHeads = "kv_heads",
        /// Width of an attention head.
        HeadDim = "head_dim",
        /// Width of the dense feed-forward block.
        Ffn = "ffn",
        /// Experts.
        Experts = "experts",
        /// Experts a token goes to.
        TopK = "top_k",
        /// Width of an expert.
        ExpertFfn = "expert_ffn",
        /// Width of the shared expert.
        SharedFfn = "shared_ffn",
        /// Mamba heads.
        MambaHeads = "mamba_heads",
        /// Mamba groups.
        MambaGroups = "mamba_groups",
        /// State of one element of a Mamba head.
        State = "state",
        /// Recurrent heads.
        RecurrentHeads = "recurrent_heads",
        /// Keys a query reads where a sparse indexer chooses.
        DsaTopK = "dsa_top_k",
        /// Rows of the n-gram hash tables.
        NgramRows = "ngram_rows",
        /// Rows of the structure tables.
        StructureRows = "structure_rows",
    }
}

/// Sizes that the user insists on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dims(pub Vec<(Dim, u64)>);

impl Dims {
    /// Reads `hidden=64,seq=32`.
    pub fn parse(text: &str) -> Result<Dims, String> {
        let one = |word: &str| {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is not NAME=SIZE"))?;
            let value = value.trim().parse::<u64>().ok().filter(|v| *v > 0);
            let value = value.ok_or_else(|| format!("`{word}` has no size of at least 1"))?;
            let dim = Dim::from_name(name.trim()).ok_or_else(|| unknown(name.trim()))?;
            Ok((dim, value))
        };
        let words = text.split(',').map(str::trim).filter(|w| !w.is_empty());
        let all = words.map(one).collect::<Result<Vec<(Dim, u64)>, String>>()?;
        match all.iter().enumerate().find(|(at, (dim, _))| all[..*at].iter().any(|(other, _)| other == dim)) {
            Some((_, (dim, _))) => Err(format!("`{dim}` is said twice")),
            None => Ok(Dims(all)),
        }
    }

    /// The size that is insisted on.
    pub fn get(&self, dim: Dim) -> Option<u64> {
        self.0.iter().find(|(d, _)| *d == dim).map(|(_, value)| *value)
    }
}

fn unknown(name: &str) -> String {
    let known = Dim::ALL.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    match did_you_mean(name, Dim::ALL.iter().map(|(word, _)| *word)) {
        Some(close) => format!("there is no size `{name}`; did you mean `{close}`? known are {known}"),
        None => format!("there is no size `{name}`; known are {known}"),
    }
}

impl Dim {
    /// Its value, unless the recipe does not use it.
    pub fn get(self, recipe: &Recipe, checked: &Checked) -> Option<u64> {
        use recipe::Mixer;
        let attention = recipe.attention().filter(|_| recipe.uses(Mixer::Attention));
        let gqa = attention.as_ref().and_then(|a| match a.kind {
            AttentionKind::Gqa { kv_heads, head_dim } => Some((kv_heads, head_dim)),
            AttentionKind::Mla(_) => None,
        });
        let moe = recipe.moe.as_ref().filter(|_| recipe.uses(Mixer::Moe));
        let mamba = recipe.mamba.as_ref().filter(|_| recipe.uses(Mixer::Mamba)).map(|m| match m {
            Mamba::One(m) => (m.inner, 1, m.state),
            Mamba::Two(m) => (m.heads, m.groups, m.state),
            Mamba::Three(m) => (m.heads, m.groups, m.state),
        });
        match self {
            Dim::Depth => Some(recipe.depth() as u64),
            Dim::Hidden => Some(recipe.hidden),
            Dim::Vocab => Some(recipe.vocab),
            Dim::Sequence => checked.layout.as_ref().map(|l| l.sequence),
            Dim::Heads => attention.map(|a| a.heads),
            Dim::KvHeads => gqa.map(|(heads, _)| heads),
            Dim::HeadDim => gqa.map(|(_, width)| width),
            Dim::Ffn => recipe.mlp.as_ref().filter(|_| recipe.uses(Mixer::Mlp)).map(|m| m.ffn),
            Dim::Experts => moe.map(|m| m.experts),
            Dim::TopK => moe.map(|m| m.top_k),
            Dim::ExpertFfn => moe.map(|m| m.ffn),
            Dim::SharedFfn => moe.and_then(|m| m.shared.as_ref()).map(|s| s.ffn),
            Dim::MambaHeads => mamba.map(|(heads, ..)| heads),
            Dim::MambaGroups => mamba.map(|(_, groups, _)| groups),
            Dim::State => mamba.map(|(.., state)| state),
            Dim::RecurrentHeads => recipe.recurrent.as_ref().filter(|_| recipe.uses(Mixer::Recurrent)).map(|r| r.heads),
            Dim::DsaTopK => recipe.features.dsa().map(|d| d.top_k),
            Dim::NgramRows => recipe.features.ngram_hash.as_ref().and_then(|s| s.active()).map(|s| s.rows),
            Dim::StructureRows => recipe.features.structure.as_ref().and_then(|s| s.active()).map(|s| s.rows),
        }
    }

    /// The largest value a recipe may have of it.
    fn most(self, recipe: &Recipe) -> u64 {
        match self {
            Dim::Depth => limits::DEPTH,
            Dim::Hidden | Dim::HeadDim | Dim::Ffn | Dim::ExpertFfn | Dim::SharedFfn | Dim::State => limits::WIDTH,
            Dim::Vocab | Dim::NgramRows | Dim::StructureRows => limits::VOCAB,
            Dim::Sequence | Dim::DsaTopK => limits::SEQUENCE,
            // Mamba-1 has channels where the others have heads.
            Dim::MambaHeads if matches!(recipe.mamba, Some(Mamba::One(_))) => limits::WIDTH,
            Dim::Heads | Dim::KvHeads | Dim::MambaHeads | Dim::MambaGroups | Dim::RecurrentHeads => limits::HEADS,
            Dim::Experts | Dim::TopK => limits::EXPERTS,
        }
    }

    /// Refuses a value that no recipe may have; the rest is asked of the whole recipe.
    pub(super) fn check(self, recipe: &Recipe, value: u64) -> Result<(), Vec<Finding>> {
        let most = self.most(recipe);
        if value <= most {
            return Ok(());
        }
        let message = format!("`--dims {self}={value}` is outside 1 to {most}");
        Err(vec![Finding::error("recipe/limit", Blame::Usage, self.name(), message)])
    }

    /// Sets it, or says that the recipe has no such size. `full` is the recipe before anything was made
    /// smaller.
    pub(super) fn set(
        self,
        recipe: &mut Recipe,
        full: &Recipe,
        request: &mut LayoutRequest,
        value: u64,
    ) -> Result<(), Vec<Finding>> {
        if self.put(recipe, full, request, value) {
            return Ok(());
        }
        let mut scratch = (recipe.clone(), request.clone());
        let mut is_there = |dim: Dim| dim.put(&mut scratch.0, full, &mut scratch.1, 1);
        let has: Vec<_> = Dim::ALL.iter().filter(|(_, dim)| is_there(*dim)).map(|(name, _)| *name).collect();
        let message = format!("`--dims {self}={value}`: recipe `{}` has no such size", recipe.name.terminal());
        let finding = Finding::error("shrink/dims", Blame::Usage, self.name(), message);
        Err(vec![finding.hint(format!("it has {}", has.join(", ")))])
    }

    /// Sets it; whether the recipe has it.
    fn put(self, recipe: &mut Recipe, full: &Recipe, request: &mut LayoutRequest, value: u64) -> bool {
        match self {
            Dim::Depth => {
                recipe.layers = super::layers(full, value as usize);
                super::keep_ordinals(recipe);
                true
            }
            Dim::Hidden => put(Some(&mut recipe.hidden), value),
            Dim::Vocab => put(Some(&mut recipe.vocab), value),
            Dim::Sequence => {
                recipe.sequence = value;
                put(request.sequence.as_mut(), value)
            }
            Dim::Heads => put(recipe.attention.as_mut().map(|a| &mut a.heads), value),
            Dim::KvHeads => put(gqa(recipe).map(|(heads, _)| heads), value),
            Dim::HeadDim => put(gqa(recipe).map(|(_, width)| width), value),
            Dim::Ffn => put(recipe.mlp.as_mut().map(|m| &mut m.ffn), value),
            Dim::Experts => put(recipe.moe.as_mut().map(|m| &mut m.experts), value),
            Dim::TopK => put(recipe.moe.as_mut().map(|m| &mut m.top_k), value),
            Dim::ExpertFfn => put(recipe.moe.as_mut().map(|m| &mut m.ffn), value),
            Dim::SharedFfn => put(recipe.moe.as_mut().and_then(|m| m.shared.as_mut()).map(|s| &mut s.ffn), value),
            Dim::MambaHeads => put(mamba(recipe).map(|(heads, _, _)| heads), value),
            Dim::MambaGroups => put(mamba(recipe).and_then(|(_, groups, _)| groups), value),
            Dim::State => put(mamba(recipe).map(|(_, _, state)| state), value),
            Dim::RecurrentHeads => put(recipe.recurrent.as_mut().map(|r| &mut r.heads), value),
            Dim::DsaTopK => put(recipe.features.dsa.as_mut().map(|s| &mut s.value.top_k), value),
            Dim::NgramRows => put(recipe.features.ngram_hash.as_mut().map(|s| &mut s.value.rows), value),
            Dim::StructureRows => put(recipe.features.structure.as_mut().map(|s| &mut s.value.rows), value),
        }
    }
}

fn put(place: Option<&mut u64>, value: u64) -> bool {
    place.map(|p| *p = value).is_some()
}

pub(super) fn gqa(recipe: &mut Recipe) -> Option<(&mut u64, &mut u64)> {
    match &mut recipe.attention.as_mut()?.kind {
        AttentionKind::Gqa { kv_heads, head_dim } => Some((kv_heads, head_dim)),
        AttentionKind::Mla(_) => None,
    }
}

/// Heads (or channels), groups if there are any, and state size.
pub(super) fn mamba(recipe: &mut Recipe) -> Option<(&mut u64, Option<&mut u64>, &mut u64)> {
    Some(match recipe.mamba.as_mut()? {
        Mamba::One(m) => (&mut m.inner, None, &mut m.state),
        Mamba::Two(m) => (&mut m.heads, Some(&mut m.groups), &mut m.state),
        Mamba::Three(m) => (&mut m.heads, Some(&mut m.groups), &mut m.state),
    })
}
