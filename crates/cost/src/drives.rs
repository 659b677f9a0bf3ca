//! State on the drives of a node, swapped by DeepSpeed (0.19.8, `runtime/swap_tensor`). Ranks of a node share its drives.

use crate::Unpriced;
use case::swap;
use hardware::Cluster;

/// What of a node's drives a rank has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DriveRates {
    read: f64,
    write: f64,
}

/// Bytes a step reads for an element it steps: weight, both moments and the gradient, in fp32.
const STEP_READS: f64 = 16.0;

/// Bytes it writes: the gradient at the end of backward, then weight and moments.
const STEP_WRITES: f64 = 4.0 + 12.0;

/// Bytes of a weight.
const WEIGHT: f64 = 2.0;

impl DriveRates {
    pub(crate) fn of(cluster: &Cluster) -> Result<DriveRates, Unpriced> {
        let drives = cluster.device.known_drives()?;
        let share = drives.count as f64 / cluster.devices_per_node as f64;
        Ok(DriveRates { read: share * drives.read_bytes_per_second, write: share * drives.write_bytes_per_second })
    }

    /// Seconds that a step of so many elements waits for the drives. Sub-groups are read, stepped and written one after
    /// the other and gradients are cast once backward is over, so that nothing of it hides (`PartitionedOptimizerSwapper`,
    /// which runs unless `pipeline_read` or `pipeline_write` is set; `launch` sets neither).
    pub(crate) fn stepped(&self, elements: f64) -> f64 {
        elements * (STEP_READS / self.read + STEP_WRITES / self.write)
    }

    /// Seconds to write weights back behind a step.
    pub(crate) fn written_back(&self, elements: f64, sub_group: u64) -> f64 {
        WEIGHT * away(elements, sub_group) / self.write
    }

    /// Seconds to read weights for one pass, of a rank's part of so many elements. Reads run ahead of the layers that ask
    /// for them (`partitioned_param_coordinator.py`, `__prefetch_nvme_param_partitions`).
    pub(crate) fn fetched(&self, elements: f64, sub_group: u64) -> f64 {
        WEIGHT * away(elements, sub_group) / self.read
    }
}

fn away(elements: f64, sub_group: u64) -> f64 {
    swap::on_drive(elements as u64, sub_group) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_the_drives_of_a_node() {
        let mut cluster = Cluster::parse("8xH200").unwrap();
        assert!(DriveRates::of(&cluster).unwrap_err().why.contains("how many drives"));
        cluster.device.drives = Some(hardware::Drives {
            count: 4,
            bytes: 4 << 40,
            read_bytes_per_second: 6e9,
            write_bytes_per_second: 3e9,
            source: "made up".to_string(),
        });
        let rates = DriveRates::of(&cluster).unwrap();
        assert_eq!(rates, DriveRates { read: 3e9, write: 1.5e9 });
        // 16 bytes at 3 GB/s and 16 at 1.5.
        assert!((rates.stepped(1e9) - 16.0).abs() < 1e-9);
        assert_eq!(rates.fetched(1e9, 1_000_000_000), 0.0, "a billion stay in host memory");
        assert!((rates.fetched(3e9, 1_000_000_000) - 2.0).abs() < 1e-9);
        assert!((rates.written_back(3e9, 1_000_000_000) - 4.0).abs() < 1e-9);
    }
}
