//! The TCP sockets that listen on this machine, as the kernel lists them in `/proc`.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The state of a listening socket.
const LISTEN: &str = "0A";

/// All listening sockets of this network namespace; none if `/proc` is not readable.
pub(super) fn all() -> Vec<SocketAddr> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let tables = [read("/proc/net/tcp"), read("/proc/net/tcp6")];
    let lines = tables.iter().flat_map(|table| table.lines());
    lines.filter_map(listening).collect()
}

/// A line of a table: a number, the local and the remote address, the state, and more.
fn listening(line: &str) -> Option<SocketAddr> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let [_, local, _, LISTEN, ..] = columns[..] else {
        return None;
    };
    let (ip, port) = local.split_once(':')?;
    // Four bytes each as a number of this machine.
    let words = ip.as_bytes().chunks(8).map(|digits| {
        let number = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16);
        number.ok().map(u32::to_ne_bytes)
    });
    let words: Vec<_> = words.collect::<Option<_>>()?;
    let ip = match words[..] {
        [bytes] => IpAddr::V4(Ipv4Addr::from(bytes)),
        [a, b, c, d] => {
            let bytes: [u8; 16] = [a, b, c, d].concat().try_into().ok()?;
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn listening_sockets_are_read_as_the_kernel_prints_them() {
        let rows = [
            (
                "   0: 0100007F:192B 00000000:0000 0A 0 0 0 0",
                Some("127.0.0.1:6443"),
            ),
            (
                "   1: 00000000:192B 00000000:0000 0A 0 0 0 0",
                Some("0.0.0.0:6443"),
            ),
            // Connected, not listening.
            ("   2: 0100007F:192B 0100007F:9C40 01 0 0 0 0", None),
            (
                "   3: 00000000000000000000000000000000:192B 00000000000000000000000000000000:0000 0A 0",
                Some("[::]:6443"),
            ),
            (
                "   4: 000000FD000000000000000001000000:192B 00000000000000000000000000000000:0000 0A 0",
                Some("[fd00::1]:6443"),
            ),
            ("  sl  local_address rem_address   st tx_queue", None),
        ];
        for (line, expected) in rows {
            let found = listening(line).map(|it| it.to_string());
            assert_eq!(found.as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_socket_of_this_test_is_listed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(all().contains(&listener.local_addr().unwrap()));
    }
}
