//! `/proc/net/tcp` and `tcp6`, and the links of `/proc/PID/fd`.

use super::super::machine::Listener;
use super::number;

/// The state of a socket that accepts connections (`TCP_LISTEN`, include/net/tcp_states.h).
const LISTEN: &[u8] = b"0A";

/// Sockets that accept connections; who holds them is not said here.
pub fn listeners(raw: &[u8]) -> Vec<Listener> {
    raw.split(|b| *b == b'\n').skip(1).filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Listener> {
    let fields: Vec<&[u8]> = line.split(|b| *b == b' ').filter(|field| !field.is_empty()).collect();
    if fields.get(3)? != &LISTEN {
        return None;
    }
    let port = fields[1].rsplit(|b| *b == b':').next()?;
    let port = u16::from_str_radix(std::str::from_utf8(port).ok()?, 16).ok()?;
    Some(Listener { port, inode: number(fields.get(9)?)?, owner: None })
}

/// The socket a descriptor's link names: `socket:[12345]`.
pub fn socket_inode(link: &[u8]) -> Option<u64> {
    number(link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listening_sockets_are_listed() {
        let text = b"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            \x20  0: 0100007F:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n\
            \x20  1: 0100007F:0016 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1\n";
        assert_eq!(listeners(text), [Listener { port: 29500, inode: 4711, owner: None }]);
        let six = b"head\n 0: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0:0 0:0 0 0 0 9 1";
        assert_eq!(listeners(six)[0].port, 8080);
        assert_eq!(socket_inode(b"socket:[4711]"), Some(4711));
        assert_eq!(socket_inode(b"/dev/null"), None);
    }
}
