//! The IP addresses of this machine, as the kernel lists them in `/proc`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How the names of interfaces begin that connect containers, or hold addresses of Services.
const CONTAINER_INTERFACES: [&str; 14] = [
    "br-",
    "cali",
    "cilium",
    "cni",
    "docker",
    "flannel",
    "kube-",
    "lxc",
    "nodelocaldns",
    "podman",
    "tunl",
    "veth",
    "virbr",
    "weave",
];

/// An address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InterfaceAddress {
    pub(crate) interface: String,
    pub(crate) address: IpAddr,
}

impl InterfaceAddress {
    /// Whether other machines may connect to it as clients of this one.
    pub(crate) fn is_for_clients(&self) -> bool {
        let is_link_local = match self.address {
            IpAddr::V4(address) => address.is_link_local(),
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        let mut containers = CONTAINER_INTERFACES.iter();
        let is_of_containers = containers.any(|prefix| self.interface.starts_with(prefix));
        !self.address.is_loopback() && !is_link_local && !is_of_containers
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.interface)
    }
}

/// All addresses of the interfaces in this network namespace; none if `/proc` is not readable.
pub(crate) fn all() -> BTreeSet<IpAddr> {
    let mut all = ipv4(&read("/proc/net/fib_trie"));
    all.extend(ipv6(&read("/proc/net/if_inet6")).map(|it| it.address));
    all
}

/// The same with their interfaces, without addresses of IPv4 that have no network, such as those of
/// Services.
pub(crate) fn by_interface() -> Vec<InterfaceAddress> {
    let routes = read("/proc/net/route");
    let networks: Vec<_> = routes.lines().filter_map(Network::of).collect();
    let ipv4 = ipv4(&read("/proc/net/fib_trie")).into_iter();
    let mut all: Vec<_> = ipv4
        .filter_map(|address| {
            let network = networks.iter().find(|it| it.contains(address))?;
            Some(InterfaceAddress {
                interface: network.interface.clone(),
                address,
            })
        })
        .collect();
    all.extend(ipv6(&read("/proc/net/if_inet6")));
    all
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A network of IPv4 to which an interface connects.
struct Network {
    interface: String,
    address: u32,
    mask: u32,
}

impl Network {
    /// A line of the routing table: the interface, destination, gateway, four other columns, and the
    /// mask.
    fn of(line: &str) -> Option<Self> {
        let columns: Vec<_> = line.split_whitespace().collect();
        let number = |column: usize| u32::from_str_radix(columns.get(column)?, 16).ok();
        let (address, gateway, mask) = (number(1)?, number(2)?, number(7)?);
        (gateway == 0 && mask != 0).then(|| Self {
            interface: columns[0].to_owned(),
            address,
            mask,
        })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let IpAddr::V4(address) = address else {
            return false;
        };
        // The kernel prints the bytes of the network as a number of this machine.
        u32::from_ne_bytes(address.octets()) & self.mask == self.address
    }
}

/// The leaves of the routing table that are addresses of this machine.
fn ipv4(fib_trie: &str) -> BTreeSet<IpAddr> {
    let mut leaf = None;
    let mut found = BTreeSet::new();
    for line in fib_trie.lines() {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok().map(|it: Ipv4Addr| IpAddr::V4(it));
        } else if line == "/32 host LOCAL" {
            found.extend(leaf);
        }
    }
    found
}

/// Lines of an address in hexadecimal, four other columns, and the interface.
fn ipv6(if_inet6: &str) -> impl Iterator<Item = InterfaceAddress> {
    if_inet6.lines().filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let [digits, _, _, _, _, interface] = columns[..] else {
            return None;
        };
        let bits = u128::from_str_radix(digits, 16).ok()?;
        Some(InterfaceAddress {
            interface: interface.to_owned(),
            address: IpAddr::V6(Ipv6Addr::from_bits(bits)),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_kernel_prints_them() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
            |-- 127.0.0.0\n           /8 host LOCAL\n     |-- 127.0.0.1\n           /32 host LOCAL\n     \
            |-- 10.0.0.0\n           /24 link UNICAST\n     |-- 10.0.0.11\n           /32 host LOCAL\n     \
            |-- 10.0.0.255\n           /32 link BROADCAST\n";
        let found = ipv4(trie).into_iter().map(|it| it.to_string());
        assert_eq!(found.collect::<Vec<_>>(), ["10.0.0.11", "127.0.0.1"]);
        let table = "00000000000000000000000000000001 01 80 10 80       lo\n\
            fd000000000000000000000000000002 04 40 00 82     eth0\nnot a line\n";
        let found = ipv6(table).map(|it| it.to_string());
        assert_eq!(found.collect::<Vec<_>>(), ["::1 (lo)", "fd00::2 (eth0)"]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_address_has_the_interface_of_its_network() {
        let routes = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
            eth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\n\
            eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n";
        let networks: Vec<_> = routes.lines().filter_map(Network::of).collect();
        assert_eq!(networks.len(), 1);
        for (address, expected) in [
            ("10.0.0.11", true),
            ("10.0.1.11", false),
            ("fd00::1", false),
        ] {
            assert_eq!(networks[0].contains(address.parse().unwrap()), expected);
        }
    }

    #[test]
    fn addresses_of_containers_and_links_are_not_for_clients() {
        for (interface, address, expected) in [
            ("eth0", "10.0.0.11", true),
            ("eth0", "fd00::11", true),
            ("eth0", "fe80::11", false),
            ("lo", "127.0.0.1", false),
            ("kube-ipvs0", "10.96.0.1", false),
            ("cni0", "10.244.0.1", false),
        ] {
            let found = InterfaceAddress {
                interface: interface.to_owned(),
                address: address.parse().unwrap(),
            };
            assert_eq!(found.is_for_clients(), expected, "{found}");
        }
    }

    #[test]
    fn the_loopback_address_is_one_of_this_machine() {
        assert!(all().contains(&IpAddr::from([127, 0, 0, 1])));
    }
}
