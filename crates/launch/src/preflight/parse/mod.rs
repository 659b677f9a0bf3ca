//! What Linux and `nvidia-smi` print, as values. Foreign bytes go in: a line that cannot be read is
//! left out, and nothing panics.

mod gpus;
mod limits;
mod mounts;
mod processes;
mod sockets;

pub use gpus::gpus;
pub use limits::{limits, memory_total};
pub use mounts::mountinfo;
pub use processes::{command_line, parent};
pub use sockets::{listeners, socket_inode};

/// A number in text.
fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of the kind these files hold, and some they do not.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let word = prop_oneof![
            "[0-9]{1,22}",
            "[0-9a-fA-F]{0,8}:[0-9a-fA-F]{0,5}",
            "(/|\\\\[0-7]{1,4}|-|rw|0A|[ ,:)(\\n\\t])",
            "Max (open files|locked memory|processes)  +[a-z0-9]{1,9} +",
        ];
        let mixed = proptest::collection::vec(
            prop_oneof![word.prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..4)],
            0..60,
        );
        mixed.prop_map(|words| words.join(&b' '))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn no_parser_panics(raw in bytes()) {
            let mounts = mountinfo(&raw);
            super::super::volume_of(&mounts, &raw);
            listeners(&raw);
            socket_inode(&raw);
            limits(&raw);
            command_line(&raw);
            parent(&raw);
            gpus(&raw, &raw);
        }

        #[test]
        fn any_mount_point_survives_the_kernels_escapes(point in proptest::collection::vec(1_u8.., 1..40)) {
            // fs/proc_namespace.c escapes space, tab, newline, backslash and hash.
            let escaped: Vec<u8> = point.iter().flat_map(|&b| match b {
                b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{b:03o}").into_bytes(),
                b => vec![b],
            }).collect();
            let line = [b"1 0 8:1 / ".as_slice(), &escaped, b" rw - ext4 d rw\n"].concat();
            prop_assert_eq!(&mountinfo(&line)[0].point, &point);
        }
    }
}
