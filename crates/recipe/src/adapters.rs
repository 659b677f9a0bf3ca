//! Low-rank adapters (LoRA, arXiv 2106.09685): the model's own weights are frozen, and beside each weight
//! that is named two factors are trained, `lora_a` into the rank and `lora_b` out of it. `lora_b` starts
//! at zero, so that the model starts as it is.

use crate::limits;
use crate::recipe::Recipe;
use crate::tensor::{Dim, Dtype, Optimizer, Place, Role, Surface, Tensor};
use crate::write::Toml;
use diag::{Blame, Finding, did_you_mean};
use reading::Section;
use std::collections::BTreeSet;

/// Adapters of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Adapters {
    /// Width between the two factors.
    pub rank: u64,
    /// What they add is multiplied with `alpha / rank`.
    pub alpha: f64,
    /// Weights that have one: a module (`attention.qkv`) or a surface (`attention-in`).
    pub targets: Vec<String>,
}

impl Adapters {
    /// Reads `[adapters]`.
    pub(crate) fn read(mut section: Section) -> Option<Adapters> {
        let rank = section.count("rank", limits::WIDTH);
        let alpha = section.positive("alpha");
        let targets: Vec<String> =
            section.words("targets").unwrap_or_default().into_iter().map(str::to_string).collect();
        if targets.is_empty() {
            let message = "adapters need `targets`, the weights they stand beside";
            let finding = Finding::error("recipe/missing-key", Blame::Recipe, "adapters.targets", message);
            section.report("targets", finding.hint("such as targets = [\"attention.qkv\", \"attention.out\"]"));
        }
        section.finish();
        let rank = rank?;
        Some(Adapters { rank, alpha: alpha.unwrap_or(rank as f64), targets })
    }

    /// Writes what `[adapters]` says, behind its `enabled`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("rank", self.rank);
        toml.float_unless("alpha", self.alpha, self.rank as f64);
        toml.words("targets", &self.targets.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Whether a weight has an adapter.
    pub fn cover(&self, tensor: &Tensor) -> bool {
        self.targets.iter().any(|target| is_meant(target, tensor))
    }

    /// The factors beside a weight. Each keeps the side of the weight it meets, with the units that side
    /// is made of, and a bank of experts has a pair an expert.
    pub(crate) fn factors(&self, base: &Tensor, main: Dtype) -> [Tensor; 2] {
        let stem = base.path.strip_suffix(".weight").unwrap_or(&base.path);
        let (banks, sides) = base.dims.split_at(base.dims.len() - 2);
        let rank = || Dim::whole(self.rank);
        let is_cut = sides.iter().any(Dim::is_cuttable);
        let factor = |name: &str, surface: Surface, side: [Dim; 2]| Tensor {
            path: format!("{stem}.{name}"),
            serves_heads: base.serves_heads || (is_cut && !side.iter().any(Dim::is_cuttable)),
            dims: banks.iter().cloned().chain(side).collect(),
            dtype: main,
            surface,
            optimizer: Optimizer::AdamW,
            is_frozen: false,
            ..base.clone()
        };
        [
            factor("lora_a", Surface::AdapterDown, [rank(), sides[1].clone()]),
            factor("lora_b", Surface::AdapterUp, [sides[0].clone(), rank()]),
        ]
    }
}

/// Whether a tensor may have an adapter: a projection of a block, or a bank of them.
fn takes_one(tensor: &Tensor) -> bool {
    let is_projection = matches!(tensor.role, Role::Matrix | Role::Expert) && tensor.path.ends_with(".weight");
    // Factors have none of their own, and what mixes residual streams is called by no block.
    let is_beside = matches!(
        tensor.surface,
        Surface::AdapterDown | Surface::AdapterUp | Surface::HyperConnection | Surface::Engram | Surface::SharedBlock
    );
    is_projection && !is_beside && matches!(tensor.place, Place::Layer(_))
}

/// Block and module of a projection, whichever layer it stands in: `attention.qkv`.
pub fn module(tensor: &Tensor) -> String {
    let inside = tensor.path.strip_suffix(".weight").unwrap_or(&tensor.path);
    let mut parts = inside.splitn(4, '.').skip(2);
    let block = parts.next().unwrap_or_default();
    // A second block of a kind in one layer ends in `_2`.
    let block = block.rsplit_once('_').filter(|(_, n)| n.parse::<u32>().is_ok()).map_or(block, |(kind, _)| kind);
    format!("{block}.{}", parts.next().unwrap_or_default())
}

fn is_meant(target: &str, tensor: &Tensor) -> bool {
    takes_one(tensor) && (target == tensor.surface.name() || target == module(tensor))
}

impl Recipe {
    /// The adapters, if they are on.
    pub fn adapters(&self) -> Option<&Adapters> {
        self.features.adapters.as_ref().and_then(|switch| switch.active())
    }

    /// Targets of adapters that the model has no weight for: in this recipe, or once a mode or a switch
    /// changed its blocks.
    pub(crate) fn adapter_findings(&self) -> Vec<Finding> {
        let Some(switch) = &self.features.adapters else { return Vec::new() };
        let tensors: Vec<Tensor> = self.tensors().into_iter().filter(takes_one).collect();
        let lost = switch.value.targets.iter().filter(|target| !tensors.iter().any(|t| is_meant(target, t)));
        let known: BTreeSet<String> = tensors.iter().map(module).collect();
        let refuse = |target: &String| {
            let shown: String = target.chars().take(60).collect();
            let message = format!("no block has a projection `{shown}` for an adapter to stand beside");
            let hint = match did_you_mean(target, known.iter().map(String::as_str)) {
                Some(close) => format!("did you mean `{close}`?"),
                None => format!("it has {}", known.iter().cloned().collect::<Vec<_>>().join(", ")),
            };
            Finding::error("adapters/target", Blame::Recipe, "adapters.targets", message).hint(hint)
        };
        lost.map(refuse).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Recipe, Surface, Unit};

    fn with(table: &str) -> Result<Recipe, Vec<diag::Finding>> {
        let text = include_str!("../../../data/engines/parity/tiny-mamba2.toml");
        Recipe::parse(&format!("{text}\n[adapters]\n{table}"))
    }

    #[test]
    fn everything_else_is_frozen() {
        let recipe = with("rank = 4\nalpha = 8.0\ntargets = [\"attention.qkv\", \"mixer-out\"]\n").unwrap();
        let tensors = recipe.tensors();
        let trained: Vec<_> = tensors.iter().filter(|t| !t.is_frozen).map(|t| t.path.as_str()).collect();
        let expected = ["attention.qkv", "mamba.out_proj", "recurrent.out_proj"];
        let layer = |name: &str| ["attention", "moe", "mamba", "recurrent"].iter().position(|m| name.starts_with(m));
        let factors =
            expected.iter().flat_map(|m| ["a", "b"].map(|f| format!("layers.{}.{m}.lora_{f}", layer(m).unwrap())));
        assert_eq!(trained, factors.collect::<Vec<_>>());
        let counts = recipe.counts();
        assert_eq!(counts.trained, tensors.iter().filter(|t| !t.is_frozen).map(|t| t.elements()).sum::<u64>());
    }

    #[test]
    fn factors_keep_the_units_of_the_side_they_meet() {
        let recipe = with("rank = 4\ntargets = [\"attention.qkv\", \"attention.out\"]\n").unwrap();
        let find = |path: &str| recipe.tensors().into_iter().find(|t| t.path == path).unwrap();
        let up = find("layers.0.attention.qkv.lora_b");
        assert_eq!((up.surface, up.dims[0].0[0].unit, up.shape()), (Surface::AdapterUp, Unit::Head, vec![64, 4]));
        let down = find("layers.0.attention.qkv.lora_a");
        // Whole on every rank, and used for its own heads alone.
        assert!(down.serves_heads && !down.dims[1].is_cuttable());
        assert!(find("layers.0.attention.out.lora_a").dims[1].is_cuttable());
    }

    #[test]
    fn a_target_that_is_nowhere_is_named() {
        let refused = with("rank = 4\ntargets = [\"attention.qvk\"]\n").unwrap_err();
        assert_eq!(refused[0].rule, "adapters/target");
        assert_eq!(refused[0].hint.as_deref(), Some("did you mean `attention.qkv`?"));
        assert!(with("rank = 4\ntargets = [\"moe.router\"]\n").is_err());
        assert!(with("rank = 4\n").is_err());
        assert!(with("rank = 4\ntargets = [\"attention.qkv\"]\ndropout = 0.1\n").is_err());
    }

    #[test]
    fn what_is_written_reads_back() {
        for table in [
            "rank = 4\ntargets = [\"attention.qkv\"]\n",
            "enabled = false\nrank = 8\nalpha = 16.0\ntargets = [\"mixer-in\"]\n",
        ] {
            let recipe = with(table).unwrap();
            assert_eq!(Recipe::parse(&recipe.to_toml()).unwrap(), recipe);
        }
    }

    #[test]
    fn a_switch_that_takes_the_targets_blocks_away_is_refused() {
        let recipe = with("rank = 4\ntargets = [\"moe.shared.fc1\"]\n").unwrap();
        assert_eq!(recipe.with_features(&[], &[crate::Feature::Moe]).unwrap_err().rule, "adapters/target");
    }
}
