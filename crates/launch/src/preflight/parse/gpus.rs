//! `nvidia-smi` in its comma-separated form without head and units, where memory is in MiB.

use super::super::machine::Gpu;
use super::number;

/// Devices from `index,uuid,name,driver_version,memory.total,memory.free`, with who computes on them
/// from `gpu_uuid,pid,used_memory`.
pub fn gpus(devices: &[u8], apps: &[u8]) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = rows(devices).filter_map(|fields| device(&fields)).collect();
    for fields in rows(apps) {
        let [uuid, pid, used, ..] = fields.as_slice() else { continue };
        let Some(pid) = number(pid.as_bytes()) else { continue };
        if let Some(gpu) = gpus.iter_mut().find(|gpu| gpu.uuid == *uuid) {
            gpu.users.push((pid, mebibytes(used)));
        }
    }
    gpus
}

fn rows(raw: &[u8]) -> impl Iterator<Item = Vec<String>> {
    raw.split(|b| *b == b'\n')
        .map(|line| String::from_utf8_lossy(line).split(',').map(|field| field.trim().to_string()).collect())
}

fn device(fields: &[String]) -> Option<Gpu> {
    let [index, uuid, name, driver, total, free] = fields else { return None };
    Some(Gpu {
        index: number(index.as_bytes())?,
        uuid: uuid.clone(),
        name: name.clone(),
        driver: driver.clone(),
        total: mebibytes(total),
        free: mebibytes(free),
        users: Vec::new(),
    })
}

/// A figure in MiB; none for `[N/A]`.
fn mebibytes(text: &str) -> Option<u64> {
    number::<u64>(text.as_bytes())?.checked_mul(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_their_users_are_read() {
        let devices = b"0, GPU-a, NVIDIA H200, 570.86.15, 143771, 142000\n1, GPU-b, NVIDIA H200, 570.86.15, 143771, 3\nNo devices\n";
        let gpus = gpus(devices, b"GPU-b, 4242, 140000\nGPU-b, 7, [N/A]\nGPU-z, 1, 1\n");
        assert_eq!(gpus.len(), 2);
        assert_eq!(gpus[0].users, []);
        assert_eq!(gpus[1].users, [(4242, Some(140_000 << 20)), (7, None)]);
        assert_eq!(gpus[0].total, Some(143_771 << 20));
    }
}
