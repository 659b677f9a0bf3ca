//! What DeepSpeed swaps to the drives of a node, and through which buffers (0.19.8, `runtime/zero/offload_config.py`,
//! `runtime/zero/stage3.py`, `runtime/swap_tensor`). Sizes are in elements, for one rank.

use crate::Case;

/// Pinned buffers that optimizer state is swapped through, each as large as the largest sub-group: `buffer_count` of
/// `offload_optimizer`, one for each of weight, gradient and both moments.
pub const STATE_BUFFERS: u64 = 4;

/// Pinned buffers that weights are swapped through: `buffer_count` of `offload_param`.
pub const WEIGHT_BUFFERS: u64 = 5;

/// Elements of each: `buffer_size` of `offload_param`. A larger part is refused at its first swap (`get_buffer`: "More
/// elements … than buffer size"), so that `launch` writes a larger size where a part asks for it.
pub const WEIGHT_BUFFER: u64 = 100_000_000;

/// Elements of weights that stay in host memory: `max_in_cpu` of `offload_param`.
pub const MAX_IN_CPU: u64 = 1_000_000_000;

const FP32: u64 = 4;
const BF16: u64 = 2;

/// What a rank swaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swapped {
    /// Its part of all weights.
    pub elements: u64,
    /// Bytes of an accumulated gradient.
    pub gradient: u64,
    /// The largest sub-group that is stepped at once.
    pub group: u64,
    /// The part of a weight that is largest.
    pub part: u64,
    /// Whether optimizer state is swapped.
    pub state: bool,
    /// Whether weights are.
    pub weights: bool,
    /// Elements of weights that lie on the drives.
    pub on_drive: u64,
}

/// Of a rank's weights, what does not stay in host memory: whole sub-groups stay as long as there is room.
pub fn on_drive(elements: u64, sub_group: u64) -> u64 {
    if elements <= MAX_IN_CPU {
        return 0;
    }
    // A sub-group is closed by the weight that fills it, and so is larger than its size.
    let stay = (MAX_IN_CPU - 1) / sub_group.max(1) * sub_group;
    elements.saturating_sub(stay)
}

impl Swapped {
    /// What a job swaps; none where nothing goes to a drive.
    pub fn of(case: &Case) -> Option<Swapped> {
        let options = &case.options;
        if !options.on_nvme {
            return None;
        }
        let shards = case.layout.dense_shards().max(1);
        let parts = case.table.rows.iter().map(|row| row.part_elements(&case.layout).div_ceil(shards));
        let (mut elements, mut group, mut part, mut held) = (0u64, 0u64, 0u64, 0u64);
        for size in parts {
            elements = elements.saturating_add(size);
            (part, held) = (part.max(size), held.saturating_add(size));
            group = group.max(held);
            if held >= options.zero.sub_group {
                held = 0;
            }
        }
        let weights = options.offload_params;
        let away = if weights { on_drive(elements, options.zero.sub_group) } else { 0 };
        let gradient = options.state.gradients.bits() / 8;
        Some(Swapped { elements, gradient, group, part, state: options.offload > 0.0, weights, on_drive: away })
    }

    /// Elements of a buffer that weights are swapped through.
    pub fn weight_buffer(&self) -> u64 {
        self.part.max(WEIGHT_BUFFER)
    }

    /// Bytes in host memory: buffers, gradients until the step, weights that stay, and a sub-group of weights on
    /// its way out.
    pub fn host_bytes(&self) -> u64 {
        let state = match self.state {
            true => STATE_BUFFERS * self.group * FP32 + self.elements * self.gradient,
            false => 0,
        };
        let weights = match self.weights {
            true => {
                let out = if self.on_drive > 0 { self.group } else { 0 };
                (WEIGHT_BUFFERS * self.weight_buffer() + self.elements.min(MAX_IN_CPU) + out) * BF16
            }
            false => 0,
        };
        state + weights
    }

    /// Bytes on the drives: weights, both moments and the gradient in fp32; weights in bf16.
    pub fn drive_bytes(&self) -> u64 {
        let state = if self.state { self.elements * 4 * FP32 } else { 0 };
        state + self.on_drive * BF16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Asked, Terms};
    use hardware::Cluster;

    fn swapped(words: &str) -> Swapped {
        let line = format!("{words} --engine deepspeed --zero 3 --offload-nvme /mnt/nvme");
        let asked = Asked::parse(&line.split_whitespace().map(str::to_string).collect::<Vec<_>>()).unwrap();
        let recipe = recipe::builtin::find(&asked.recipe.recipe).unwrap();
        let cluster = Cluster::parse(asked.on.as_deref().unwrap()).unwrap();
        Swapped::of(&Case::new(asked, recipe, Some(cluster), Terms::RUN).unwrap()).unwrap()
    }

    /// 8.03 B parameters on eight ranks: a part fits in one sub-group, and its weights in host memory.
    #[test]
    fn small_parts_stay_in_host_memory() {
        let found = swapped("llama3-8b --on 8xH200 --offload-optimizer 1 --offload-params");
        assert!((1.003e9..1.005e9).contains(&(found.elements as f64)), "{found:?}");
        let alone = swapped("llama3-8b --on 2x8xH200 --offload-optimizer 1 --offload-params");
        assert_eq!((alone.on_drive, alone.group), (0, alone.elements));
        assert_eq!(alone.drive_bytes(), 16 * alone.elements);
        let buffers = 4 * 4 * alone.group + 4 * alone.elements;
        assert_eq!(alone.host_bytes(), buffers + 2 * (5 * WEIGHT_BUFFER + alone.elements));
    }

    #[test]
    fn what_is_beyond_a_billion_goes_to_the_drives() {
        let found = swapped("llama3-70b --on 8xH200 --offload-optimizer 1 --offload-params");
        assert_eq!(found.on_drive, found.elements);
        assert!((1_000_000_000..1_200_000_000).contains(&found.group), "{found:?}");
        assert_eq!(found.drive_bytes(), 18 * found.elements);
        let state = swapped("llama3-70b --on 8xH200 --offload-optimizer 1");
        assert_eq!((state.on_drive, state.host_bytes()), (0, 16 * state.group + 4 * state.elements));
        assert_eq!(on_drive(5_000_000_000, 400_000_000), 5_000_000_000 - 800_000_000);
        assert_eq!(on_drive(1_000_000_000, 400_000_000), 0);
    }
}
