//! Listening sockets and their processes. All pods share the loopback interface of this machine
//! with other programs, so the port alone is not enough: the socket must belong to a process of
//! the pod.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::process::Pid;

/// A listening socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listener {
    address: SocketAddr,
    /// The inode, as in the descriptors of processes.
    inode: u64,
}

/// Linux's state number of a listening socket.
const LISTENING: &str = "0A";

/// All listening sockets of this machine.
pub(super) fn listeners() -> Vec<Listener> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].into_iter();
    // The second file does not exist without IPv6.
    let tables = tables.filter_map(|path| fs::read_to_string(path).ok());
    tables.flat_map(|table| parse(&table)).collect()
}

/// The sockets that processes have open.
pub(super) fn sockets(of: &[Pid]) -> BTreeSet<u64> {
    let folders = of.iter().map(|id| format!("/proc/{id}/fd"));
    // A process that has exited meanwhile has none.
    let open = folders.flat_map(|path| fs::read_dir(path).into_iter().flatten().flatten());
    let links = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.filter_map(|link| socket(link.to_str()?)).collect()
}

/// `socket:[12]`
fn socket(link: &str) -> Option<u64> {
    let inode = link.strip_prefix("socket:[")?.strip_suffix(']')?;
    inode.parse().ok()
}

/// The address of a pod's listener on a port: its own address, or `localhost`. Only if no other
/// program would accept the connection.
pub(super) fn reachable_address(
    port: u16,
    pod: IpAddr,
    own: &BTreeSet<u64>,
    all: &[Listener],
) -> Option<SocketAddr> {
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    let places = [pod, v4, v6].map(|address| SocketAddr::new(address, port));
    places.into_iter().find(|placement| {
        let answering = answering(*placement, all);
        !answering.is_empty() && answering.iter().all(|it| own.contains(&it.inode))
    })
}

/// The sockets that may accept a connection to an address: those bound to it, or else those
/// bound to any address.
fn answering(placement: SocketAddr, all: &[Listener]) -> Vec<Listener> {
    let at = |matches: &dyn Fn(IpAddr) -> bool| -> Vec<Listener> {
        let found = all
            .iter()
            .filter(|it| it.address.port() == placement.port());
        found
            .filter(|it| matches(it.address.ip()))
            .copied()
            .collect()
    };
    let at_own_address = at(&|ip| ip == placement.ip());
    if !at_own_address.is_empty() {
        return at_own_address;
    }
    // A socket bound to `::` may accept IPv4 too.
    at(&|ip| ip.is_unspecified() && (placement.is_ipv4() || ip.is_ipv6()))
}

/// Parses a table such as `/proc/net/tcp`.
fn parse(table: &str) -> Vec<Listener> {
    let rows = table.lines().map(|line| line.split_whitespace());
    let listening = rows.filter_map(|mut words| {
        let address = words.nth(1)?;
        let state = words.nth(1)?;
        let inode = words.nth(5)?;
        if state != LISTENING {
            return None;
        }
        Some(Listener {
            address: address_of(address)?,
            inode: inode.parse().ok()?,
        })
    });
    listening.collect()
}

/// `0100007F:1F90`: the 32-bit words of the address in memory order.
fn address_of(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    for at in (0..address.len()).step_by(8) {
        let word = u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?;
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    let ip = if let Ok(bytes) = <[u8; 4]>::try_from(&bytes[..]) {
        IpAddr::from(bytes)
    } else {
        IpAddr::from(<[u8; 16]>::try_from(&bytes[..]).ok()?).to_canonical()
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn listener(address: &str, inode: u64) -> Listener {
        Listener {
            address: address.parse().unwrap(),
            inode,
        }
    }

    #[test]
    fn only_sockets_of_the_pod_are_reached() {
        // 1 and 2 belong to the pod, the others do not.
        type All = &'static [(&'static str, u64)];
        let rows: [(All, Option<&str>); 11] = [
            (&[("127.0.0.2:80", 1)], Some("127.0.0.2:80")),
            (&[("127.0.0.2:80", 7)], None),
            (&[("127.0.0.1:80", 1)], Some("127.0.0.1:80")),
            (&[("127.0.0.1:80", 7)], None),
            (&[("0.0.0.0:80", 1)], Some("127.0.0.2:80")),
            (&[("0.0.0.0:80", 7)], None),
            // The socket of another program is more specific.
            (
                &[("0.0.0.0:80", 1), ("127.0.0.2:80", 7)],
                Some("127.0.0.1:80"),
            ),
            (
                &[("[::]:80", 1), ("127.0.0.2:80", 7), ("127.0.0.1:80", 8)],
                Some("[::1]:80"),
            ),
            // With SO_REUSEPORT either may accept.
            (&[("127.0.0.2:80", 1), ("127.0.0.2:80", 7)], None),
            (
                &[("127.0.0.2:80", 1), ("127.0.0.2:80", 2)],
                Some("127.0.0.2:80"),
            ),
            (&[("127.0.0.2:81", 1)], None),
        ];
        let own = [1, 2].into();
        for (all, expected) in rows {
            let listeners: Vec<_> = all.iter().map(|it| listener(it.0, it.1)).collect();
            let found = reachable_address(80, "127.0.0.2".parse().unwrap(), &own, &listeners);
            let expected = expected.map(|it| it.parse().unwrap());
            assert_eq!(found, expected, "{all:?}");
        }
    }

    #[test]
    fn linux_socket_tables_are_parsed() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 0200007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12345 1 0 100 0 0 10 0\n   \
             1: 0200007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000  1000        0 12346 1 0 20 4 30 10 -1\n   \
             2: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  0        0 12347 1 0 100 0 0 10 0\n   \
             3: 0000000000000000FFFF00000200007F:0051 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  0        0 12348 1 0 100 0 0 10 0\n   \
             4: nonsense\n";
        if cfg!(target_endian = "big") {
            return;
        }
        assert_eq!(
            parse(table),
            [
                listener("127.0.0.2:8080", 12345),
                listener("[::]:80", 12347),
                listener("127.0.0.2:81", 12348),
            ]
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_listener_of_the_test_process_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let loopback = "127.0.0.1".parse().unwrap();
        let own = sockets(&[rustix::process::getpid()]);
        let expected = SocketAddr::new(loopback, port);
        assert_eq!(
            reachable_address(port, loopback, &own, &listeners()),
            Some(expected)
        );
        assert_eq!(
            reachable_address(port, loopback, &BTreeSet::new(), &listeners()),
            None
        );
    }
}
