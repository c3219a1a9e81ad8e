//! The source network of a client, the unit of limits per source.

use std::net::{IpAddr, Ipv6Addr};

/// An IPv4 address, or an IPv6 /64: a host with IPv6 can use every address of its /64,
/// so a limit per IPv6 address limits nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SourceNetwork(IpAddr);

/// The upper half of an IPv6 address: RFC 4291, 2.5.4, gives the lower half to the
/// interface.
const IPV6_NETWORK_MASK: u128 = !0 << 64;

impl SourceNetwork {
    /// The network of this address. An IPv4-mapped IPv6 address is its IPv4 address.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V4(address) => IpAddr::V4(address),
            IpAddr::V6(address) => {
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & IPV6_NETWORK_MASK))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_and_ipv6_networks_are_sources() {
        for (one, other, same) in [
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("::ffff:192.0.2.1", "192.0.2.1", true),
            ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::1", "127.0.0.1", false),
        ] {
            let of = |text: &str| SourceNetwork::of(text.parse().unwrap());
            assert_eq!(of(one) == of(other), same, "{one} {other}");
        }
    }
}
