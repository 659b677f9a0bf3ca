//! `/proc/self/limits`: soft limits, which are those in force.

use super::super::machine::Resource;
use super::number;
use crate::policy::Limit;

const ROWS: [(&[u8], Resource); 3] = [
    (b"Max open files", Resource::OpenFiles),
    (b"Max locked memory", Resource::LockedMemory),
    (b"Max processes", Resource::Processes),
];

/// The limits a policy may ask about.
pub fn limits(raw: &[u8]) -> Vec<(Resource, Limit)> {
    let lines = raw.split(|b| *b == b'\n');
    lines
        .filter_map(|line| ROWS.iter().find_map(|(name, resource)| row(line.strip_prefix(*name)?, *resource)))
        .collect()
}

fn row(rest: &[u8], resource: Resource) -> Option<(Resource, Limit)> {
    let soft = rest.split(|b| *b == b' ').find(|field| !field.is_empty())?;
    if soft == b"unlimited" {
        return Some((resource, Limit::Unlimited));
    }
    Some((resource, Limit::Of(number(soft)?)))
}

/// Bytes in all, from `/proc/meminfo`, which counts in kB of 1024.
pub fn memory_total(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limits_are_read() {
        let text = b"Limit                     Soft Limit           Hard Limit           Units     \n\
            Max processes             unlimited            96349                processes \n\
            Max open files            1024                 20000                files     \n";
        assert_eq!(limits(text), [(Resource::Processes, Limit::Unlimited), (Resource::OpenFiles, Limit::Of(1024))]);
    }
}
