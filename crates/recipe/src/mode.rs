//! Runtime modes: which implementation of the recipe's blocks runs, and what that gives up. A
//! mode is part of a run's identity; two runs in different modes are not the same run.

use crate::kinds::mamba::Mamba;
use crate::kinds::mamba2::Mamba2;
use crate::pattern::Mixer;
use crate::recipe::Recipe;
use diag::{Blame, Finding};
use units::named;

named! {
    /// A runtime mode.
    pub enum Mode {
        /// Tensor parallel 2 with sequence parallel, the engine's built-in mixers.
        NemoNative = "nemo_native",
        /// Tensor parallel 1, the authors' custom mixers kept.
        AuthorDp = "author_dp",
    }
}

impl Mode {
    /// The tensor-parallel degree the mode is pinned to.
    pub fn tensor_parallel(self) -> u64 {
        match self {
            Mode::NemoNative => 2,
            Mode::AuthorDp => 1,
        }
    }

    /// What the mode is, in one line.
    pub fn describe(self) -> &'static str {
        match self {
            Mode::NemoNative => "tensor parallel 2 + sequence parallel, built-in mixers",
            Mode::AuthorDp => "tensor parallel 1, the custom mixers kept",
        }
    }
}

/// A place where the recipe and what runs differ, or where the engine needs a patch.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Seam {
    /// Stable name.
    pub name: &'static str,
    /// Layers it concerns, from zero; empty when it concerns all.
    pub layers: Vec<usize>,
    /// What the recipe asks for.
    pub wanted: String,
    /// What runs instead, or the patch that keeps what was wanted.
    pub runs: String,
    /// True where something is lost, false where a patch keeps it.
    pub gives_up: bool,
    /// Our module that keeps what was wanted, of those that a Megatron launch writes; `None` where the user brings one.
    pub filled_by: Option<&'static str>,
}

impl Seam {
    /// Whether a module of the user's has to keep what was wanted.
    pub fn is_unfilled(&self) -> bool {
        !self.gives_up && self.filled_by.is_none()
    }

    /// What becomes of it, in a cell.
    pub fn verdict(&self) -> String {
        match (self.gives_up, self.filled_by) {
            (true, _) => "given up".to_string(),
            (false, Some(module)) => format!("filled by {module}"),
            (false, None) => "needs a module you bring".to_string(),
        }
    }
}

/// Seams of blocks that no engine but our own programs has built in.
pub const CUSTOM_MIXERS: [&str; 2] = ["recurrent-mixer", "mamba3-mixer"];

impl Recipe {
    /// The recipe as `mode` runs it, and every seam. The name stays: a mode never changes which
    /// model it is, only how it runs.
    pub fn in_mode(&self, mode: Mode) -> Result<(Recipe, Vec<Seam>), Finding> {
        if !self.modes.contains(&mode) {
            let known: Vec<_> = self.modes.iter().map(|m| format!("`{m}`")).collect();
            let message = format!("recipe `{}` has no mode `{mode}`", self.name.terminal());
            let hint =
                if known.is_empty() { "leave --mode out".to_string() } else { format!("it has {}", known.join(", ")) };
            return Err(Finding::error("mode/unknown", Blame::Usage, "mode", message).hint(hint));
        }
        match mode {
            Mode::AuthorDp => Ok((self.clone(), self.custom_seams())),
            Mode::NemoNative => {
                let (native, seams) = self.native()?;
                match native.adapter_findings().into_iter().next().filter(|_| native.adapters().is_some()) {
                    Some(finding) => Err(finding),
                    None => Ok((native, seams)),
                }
            }
        }
    }

    /// What to do about something that an engine runs under a mode only.
    pub fn mode_hint(&self) -> String {
        let says = |mode: &Mode| match mode {
            Mode::NemoNative => "--mode nemo_native runs what the engine has built in",
            Mode::AuthorDp => "--mode author_dp keeps the custom block by a patch",
        };
        if self.modes.is_empty() {
            return "the recipe lists no modes: `modes = [\"author_dp\"]` in it keeps a custom block by a patch; or pick \
                    another engine (`shardwright lanes`)"
                .to_string();
        }
        self.modes.iter().map(says).collect::<Vec<_>>().join("; ")
    }

    /// Blocks no engine has built in: kept by a custom mixer.
    fn custom_seams(&self) -> Vec<Seam> {
        let mut seams = Vec::new();
        let recurrent = self.layers_with(Mixer::Recurrent);
        if !recurrent.is_empty() {
            seams.push(Seam {
                name: CUSTOM_MIXERS[0],
                layers: recurrent,
                wanted: "R: M2RNN".to_string(),
                runs: "a custom mixer, one rank a replica".to_string(),
                gives_up: false,
                filled_by: Some("shardwright_megatron/m2rnn.py"),
            });
        }
        if matches!(self.mamba, Some(Mamba::Three(_))) && self.has(Mixer::Mamba) {
            seams.push(Seam {
                name: CUSTOM_MIXERS[1],
                layers: self.layers_with(Mixer::Mamba),
                wanted: "M: Mamba-3".to_string(),
                runs: "a custom mixer, one rank a replica".to_string(),
                gives_up: false,
                filled_by: Some("shardwright_megatron/mamba3.py"),
            });
        }
        seams.extend(self.shared_activation_seam(false));
        seams.extend(self.side_seam());
        seams
    }

    /// The built-in mixers take the place of the custom ones.
    fn native(&self) -> Result<(Recipe, Vec<Seam>), Finding> {
        let mut native = self.clone();
        let mut seams = Vec::new();
        let built_in = self.built_in_mamba();
        let custom = |mixer| self.uses(mixer) || self.suffix_has(mixer);
        if built_in.is_none() && custom(Mixer::Recurrent) {
            let message =
                "mode nemo_native puts the built-in Mamba-2 mixer where R stands, and no `[mamba]` describes it";
            let finding = Finding::error("mode/no-built-in", Blame::Recipe, "mamba", message);
            return Err(finding.hint("give `[mamba]` with heads, head_dim, state and groups, or use author_dp"));
        }
        if let (Some(Mamba::Three(_)), Some(mixer)) = (&self.mamba, &built_in)
            && custom(Mixer::Mamba)
        {
            seams.push(Seam {
                name: CUSTOM_MIXERS[1],
                layers: self.layers_with(Mixer::Mamba),
                wanted: self.also_in_suffix("M: Mamba-3 (angle projection, trapezoidal step)", Mixer::Mamba),
                runs: format!("built-in Mamba-2, {} heads × {}, state {}", mixer.heads, mixer.head_dim, mixer.state),
                gives_up: true,
                filled_by: None,
            });
        }
        if let (Some(_), Some(mixer)) = (&self.recurrent, &built_in)
            && custom(Mixer::Recurrent)
        {
            seams.push(Seam {
                name: CUSTOM_MIXERS[0],
                layers: self.layers_with(Mixer::Recurrent),
                wanted: self.also_in_suffix("R: M2RNN (non-linear recurrence, matrix state)", Mixer::Recurrent),
                runs: format!("built-in Mamba-2, {} heads × {}, state {}", mixer.heads, mixer.head_dim, mixer.state),
                gives_up: true,
                filled_by: None,
            });
            replace(&mut native, Mixer::Recurrent, Mixer::Mamba);
            native.recurrent = None;
        }
        if let Some(mixer) = built_in {
            native.mamba = Some(Mamba::Two(mixer));
        }
        if let Some(seam) = self.shared_activation_seam(true) {
            seams.push(seam);
            if let Some(moe) = &mut native.moe
                && let Some(shared) = &mut moe.shared
            {
                shared.activation = moe.activation;
            }
        }
        seams.extend(self.side_seam());
        Ok((native, seams))
    }

    /// Whether the prediction suffix, on or off, has a mixer.
    fn suffix_has(&self, mixer: Mixer) -> bool {
        self.features.mtp.as_ref().is_some_and(|mtp| mtp.value.layer.has(mixer))
    }

    fn also_in_suffix(&self, wanted: &str, mixer: Mixer) -> String {
        if self.suffix_has(mixer) { format!("{wanted}, in the prediction suffix too") } else { wanted.to_string() }
    }

    /// No engine builds side embeddings in: a model builder of ours keeps them.
    fn side_seam(&self) -> Option<Seam> {
        let names: Vec<&str> = self.features.sides().map(|(name, _)| name).collect();
        (!names.is_empty()).then(|| Seam {
            name: "side-embeddings",
            layers: Vec::new(),
            wanted: format!("side channels: {}", names.join(", ")),
            runs: "our model builder, beside the token table of the first stage".to_string(),
            gives_up: false,
            filled_by: Some("shardwright_megatron/side_embeddings.py"),
        })
    }

    /// Megatron's MLPs take one activation for the whole model
    /// (`TransformerConfig.activation_func`), so a shared expert cannot have one of its own.
    fn shared_activation_seam(&self, gives_up: bool) -> Option<Seam> {
        let moe = self.moe.as_ref()?;
        let shared = moe.shared.as_ref()?;
        (shared.activation != moe.activation).then(|| Seam {
            name: "shared-expert-activation",
            layers: self.layers_with(Mixer::Moe),
            wanted: format!("shared expert: {}", shared.activation),
            runs: if gives_up {
                format!("{}, as the routed experts", moe.activation)
            } else {
                "custom shared expert".to_string()
            },
            gives_up,
            filled_by: (!gives_up).then_some("shardwright_megatron/shared_expert.py"),
        })
    }

    /// The engine's Mamba-2 with the recipe's heads, state and groups.
    fn built_in_mamba(&self) -> Option<Mamba2> {
        match self.mamba.as_ref()? {
            Mamba::One(_) => None,
            Mamba::Two(mixer) => Some(mixer.clone()),
            Mamba::Three(m) => Some(Mamba2::new(m.heads, m.head_dim, m.state, m.groups)),
        }
    }
}

/// Replaces one mixer by another in every layer and the prediction suffix. The pattern stays: it is the model's identity.
pub(crate) fn replace(recipe: &mut Recipe, from: Mixer, to: Mixer) {
    let suffix = recipe.features.mtp.as_mut().map(|mtp| &mut mtp.value.layer);
    for layer in recipe.layers.iter_mut().chain(suffix) {
        for mixer in layer.blocks.iter_mut().flat_map(|b| &mut b.mixers) {
            if *mixer == from {
                *mixer = to;
            }
        }
    }
}
