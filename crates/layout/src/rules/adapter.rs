//! A factor of an adapter follows its weight: the side that the weight is cut on is cut the same way, and
//! the other factor is whole. Into heads and channels that is `lora_b`, out of them `lora_a`.

use super::{Cut, How, Quality, Rule};
use crate::axis::Axis;
use crate::layout::Layout;
use recipe::{Surface, Tensor, Unit};

pub const RULE: Rule = Rule {
    id: "adapter/with-its-weight",
    surfaces: &[Surface::AdapterDown, Surface::AdapterUp],
    quality: Quality::Partial,
    why: "one factor is cut with its weight; the other is whole, and each rank makes a part of its gradient",
    cannot_fix: "the sum of the whole factor's gradient over tp",
    decide,
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn decide(tensor: &Tensor, _: &Layout) -> Vec<Cut> {
    let inside = if tensor.acting.is_some() { Axis::Etp } else { Axis::Tp };
    let axis = |dim: usize| if tensor.dims[dim].0[0].unit == Unit::Expert { Axis::Ep } else { inside };
    let cut = (0..tensor.dims.len()).filter(|&dim| tensor.dims[dim].is_cuttable());
    cut.map(|dim| Cut { dim, axis: axis(dim), how: How::Units }).collect()
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::adapted;
    use crate::rules::example::{Example, held};

    pub const EXAMPLES: &[Example] = &[
        held("llama3-8b", "tp=4", "layers.0.attention.qkv.lora_a", "replicated: 16×4096").with(adapted),
        held("llama3-8b", "tp=4", "layers.0.attention.qkv.lora_b", "tp: packed q k v: 1536×16").with(adapted),
        held("llama3-8b", "tp=4", "layers.0.attention.out.lora_a", "tp: by head: 16×1024").with(adapted),
        held("llama3-8b", "tp=4", "layers.0.attention.out.lora_b", "replicated: 4096×16").with(adapted),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }

    #[test]
    fn replicas_hold_all_of_it() {
        let mut recipe = recipe::builtin::find("llama3-8b").unwrap();
        adapted(&mut recipe);
        let request = crate::legality::example::request("dp=8 zero=3");
        let layout = crate::check(&recipe, &request).layout.unwrap();
        let table = crate::OwnershipTable::new(&recipe, &layout).unwrap();
        let of = |path: &str| table.rows.iter().find(|row| row.tensor.path == path).unwrap().shards;
        let (base, factor) = (of("layers.0.attention.qkv.weight"), of("layers.0.attention.qkv.lora_b"));
        assert_eq!((base.weights, factor.weights, factor.gradients, factor.optimizer), (8, 1, 1, 1));
    }
}
