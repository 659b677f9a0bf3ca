//! `/proc/self/mountinfo`, as proc(5) describes it.

use super::super::machine::{Access, Mount};
use super::number;

/// Every mount, in the kernel's order.
pub fn mountinfo(raw: &[u8]) -> Vec<Mount> {
    raw.split(|b| *b == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`; optional fields end at ` - `.
fn line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
    let [id, parent, device, root, point, options, rest @ ..] = fields.as_slice() else { return None };
    let dash = rest.iter().position(|field| *field == b"-")?;
    let [kind, source, of_all, ..] = &rest[dash + 1..] else { return None };
    let colon = device.iter().position(|b| *b == b':')?;
    let is_read_only = |options: &[u8]| options.split(|b| *b == b',').any(|option| option == b"ro");
    Some(Mount {
        id: number(id)?,
        parent: number(parent)?,
        device: (number(&device[..colon])?, number(&device[colon + 1..])?),
        root: unescape(root),
        point: unescape(point),
        kind: unescape(kind),
        source: unescape(source),
        access: if is_read_only(options) || is_read_only(of_all) { Access::ReadOnly } else { Access::ReadWrite },
    })
}

/// Three octal digits behind a backslash are one byte.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        match field[i..] {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                out.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                i += 4;
            }
            _ => {
                out.push(field[i]);
                i += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_escapes_decoded() {
        let text =
            b"36 35 98:0 /mnt1 /mnt\\0402\\134\\012 rw,noatime master:1 shared:2 - ext3 /dev/root ro,x\nnonsense\n";
        let mounts = mountinfo(text);
        assert_eq!(mounts.len(), 1);
        assert_eq!(mounts[0].point, b"/mnt 2\\\n");
        assert_eq!((mounts[0].device, mounts[0].access), ((98, 0), Access::ReadOnly));
        assert_eq!(mounts[0].kind, b"ext3");
        // A source may be empty, which leaves two spaces.
        assert_eq!(mountinfo(b"1 0 0:5 / /x rw - fuse  rw")[0].source, b"");
        assert_eq!(unescape(b"\\777\\04"), b"\\777\\04");
    }
}
