//! The PROXY protocol, versions 1 and 2: the header in which a load balancer writes the address of its
//! client at the start of a connection.
//!
//! ```
//! use skewbridge_gateway::proxy_protocol::{Parsed, Source, parse};
//!
//! let bytes = b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 6443\r\n\x16\x03\x01";
//! let source = Source::Client("192.0.2.7:40000".parse().unwrap());
//! assert_eq!(parse(bytes), Ok(Parsed::Complete { source, bytes: bytes.len() - 3 }));
//! assert_eq!(parse(&bytes[..20]), Ok(Parsed::Incomplete));
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest header of version 1, which the protocol defines.
const MAX_V1_BYTES: usize = 107;

/// The longest header of version 2 that is accepted. A load balancer adds a few hundred bytes of TLS
/// details at most.
pub const MAX_HEADER_BYTES: usize = 2048;

const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// The bytes of version 2 before the addresses.
const V2_PREFIX_BYTES: usize = 16;

/// The source of a connection behind a load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The client of the load balancer.
    Client(SocketAddr),
    /// The load balancer itself, which checks the health of its servers, or does not know the
    /// address of its client.
    LoadBalancer,
}

/// The start of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed {
    /// More bytes are needed, at most [`MAX_HEADER_BYTES`] in all.
    Incomplete,
    /// A header of this many bytes. TLS begins after it.
    Complete {
        /// The source.
        source: Source,
        /// The length of the header.
        bytes: usize,
    },
}

/// A connection does not begin with a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Neither version begins like this.
    #[error("the connection does not begin with a PROXY header")]
    NoHeader,
    /// The header is longer than the protocol, or the bridge, permits.
    #[error("the PROXY header is too long")]
    TooLong,
    /// The header is malformed.
    #[error("the PROXY header is malformed")]
    Malformed,
}

/// Parses the start of a connection.
pub fn parse(bytes: &[u8]) -> Result<Parsed, Invalid> {
    let may_begin = |start: &[u8]| {
        let shared = start.len().min(bytes.len());
        bytes[..shared] == start[..shared]
    };
    if may_begin(V2_START) {
        parse_v2(bytes)
    } else if may_begin(V1_START) {
        parse_v1(bytes)
    } else {
        Err(Invalid::NoHeader)
    }
}

fn parse_v1(bytes: &[u8]) -> Result<Parsed, Invalid> {
    let start = &bytes[..bytes.len().min(MAX_V1_BYTES)];
    let Some(end) = start.windows(2).position(|it| it == b"\r\n") else {
        return if bytes.len() < MAX_V1_BYTES {
            Ok(Parsed::Incomplete)
        } else {
            Err(Invalid::TooLong)
        };
    };
    let line = std::str::from_utf8(&start[V1_START.len()..end]).map_err(|_| Invalid::Malformed)?;
    let fields: Vec<_> = line.split(' ').collect();
    let source = match fields.as_slice() {
        // The rest of the line has no meaning.
        ["UNKNOWN", ..] => Source::LoadBalancer,
        ["TCP4", source, destination, source_port, destination_port] => {
            let _: Ipv4Addr = address(destination)?;
            port(destination_port)?;
            let source: Ipv4Addr = address(source)?;
            Source::Client((source, port(source_port)?).into())
        }
        ["TCP6", source, destination, source_port, destination_port] => {
            let _: Ipv6Addr = address(destination)?;
            port(destination_port)?;
            let source: Ipv6Addr = address(source)?;
            Source::Client((source, port(source_port)?).into())
        }
        _ => return Err(Invalid::Malformed),
    };
    Ok(Parsed::Complete {
        source: canonical(source),
        bytes: end + 2,
    })
}

fn address<T: std::str::FromStr>(text: &str) -> Result<T, Invalid> {
    text.parse().map_err(|_| Invalid::Malformed)
}

fn port(text: &str) -> Result<u16, Invalid> {
    let is_decimal = text.bytes().all(|it| it.is_ascii_digit());
    let port = text.parse().ok().filter(|_| is_decimal);
    port.ok_or(Invalid::Malformed)
}

fn parse_v2(bytes: &[u8]) -> Result<Parsed, Invalid> {
    let Some((prefix, rest)) = bytes.split_at_checked(V2_PREFIX_BYTES) else {
        return Ok(Parsed::Incomplete);
    };
    let [command, family, length @ ..] = &prefix[V2_START.len()..] else {
        return Err(Invalid::Malformed);
    };
    let length = length.iter().fold(0, |all, it| all << 8 | usize::from(*it));
    let total = V2_PREFIX_BYTES + length;
    if total > MAX_HEADER_BYTES {
        return Err(Invalid::TooLong);
    }
    let Some(addresses) = rest.get(..length) else {
        return Ok(Parsed::Incomplete);
    };
    let source = match (command, family) {
        // LOCAL, and PROXY of an unspecified protocol.
        (0x20, _) | (0x21, 0x00) => Source::LoadBalancer,
        // TCP over IPv4: source, destination and their ports.
        (0x21, 0x11) => {
            let all: [u8; 12] = first(addresses)?;
            let [a, b, c, d, _, _, _, _, high, low, ..] = all;
            let port = u16::from_be_bytes([high, low]);
            Source::Client((Ipv4Addr::new(a, b, c, d), port).into())
        }
        // TCP over IPv6.
        (0x21, 0x21) => {
            let all: [u8; 36] = first(addresses)?;
            let source: [u8; 16] = first(&all)?;
            let port = u16::from_be_bytes([all[32], all[33]]);
            Source::Client((Ipv6Addr::from(source), port).into())
        }
        _ => return Err(Invalid::Malformed),
    };
    Ok(Parsed::Complete {
        source: canonical(source),
        bytes: total,
    })
}

fn first<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Invalid> {
    let first = bytes.first_chunk().copied();
    first.ok_or(Invalid::Malformed)
}

/// Limits count an IPv4 address that is written as IPv6 as that IPv4 address.
fn canonical(source: Source) -> Source {
    match source {
        Source::Client(client) => {
            let ip: IpAddr = client.ip().to_canonical();
            Source::Client((ip, client.port()).into())
        }
        Source::LoadBalancer => source,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Outcome = Result<Parsed, Invalid>;

    #[expect(clippy::unnecessary_wraps, reason = "a column of tables of outcomes")]
    fn complete(source: &str, bytes: usize) -> Outcome {
        let source = match source {
            "" => Source::LoadBalancer,
            source => Source::Client(source.parse().unwrap()),
        };
        Ok(Parsed::Complete { source, bytes })
    }

    #[test]
    fn version_1_is_parsed_strictly() {
        use Invalid::{Malformed, NoHeader, TooLong};
        let long = format!("PROXY UNKNOWN {}", "f".repeat(120));
        let rows: [(&str, Outcome); 20] = [
            ("", Ok(Parsed::Incomplete)),
            ("PROX", Ok(Parsed::Incomplete)),
            (
                "PROXY TCP4 192.0.2.7 192.0.2.1 4 6443\r",
                Ok(Parsed::Incomplete),
            ),
            (
                "PROXY TCP4 192.0.2.7 192.0.2.1 4 6443\r\n",
                complete("192.0.2.7:4", 39),
            ),
            (
                "PROXY TCP6 2001:db8::7 2001:db8::1 4 6443\r\nx",
                complete("[2001:db8::7]:4", 43),
            ),
            (
                "PROXY TCP6 ::ffff:192.0.2.7 ::1 4 6443\r\n",
                complete("192.0.2.7:4", 40),
            ),
            ("PROXY UNKNOWN\r\n", complete("", 15)),
            ("PROXY UNKNOWN ffff:: ::1 1 2 3\r\n", complete("", 32)),
            (&long, Err(TooLong)),
            ("GET / HTTP/1.1\r\n", Err(NoHeader)),
            ("\x16\x03\x01\x02\x00", Err(NoHeader)),
            ("PROXY TCP4 ::1 ::1 4 5\r\n", Err(Malformed)),
            ("PROXY TCP6 192.0.2.7 192.0.2.1 4 5\r\n", Err(Malformed)),
            ("PROXY TCP4 192.0.2.7 192.0.2.1 4\r\n", Err(Malformed)),
            ("PROXY TCP4 192.0.2.7 192.0.2.1 4 5 6\r\n", Err(Malformed)),
            ("PROXY TCP4  192.0.2.7 192.0.2.1 4 5\r\n", Err(Malformed)),
            ("PROXY TCP4 192.0.2.7 192.0.2.1 +4 5\r\n", Err(Malformed)),
            ("PROXY TCP4 192.0.2.7 192.0.2.1 4 65536\r\n", Err(Malformed)),
            ("PROXY UDP4 192.0.2.7 192.0.2.1 4 5\r\n", Err(Malformed)),
            ("PROXY \r\n", Err(Malformed)),
        ];
        for (text, expected) in rows {
            assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
        }
    }

    /// A header of version 2.
    fn v2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [V2_START, &[command, family], &length, addresses].concat()
    }

    #[test]
    fn version_2_is_parsed_strictly() {
        use Invalid::{Malformed, TooLong};
        let v4 = [192, 0, 2, 7, 192, 0, 2, 1, 0, 4, 25, 43];
        let with_details = [&v4[..], &[4, 0, 1, 9]].concat();
        let mut v6 = [0; 36];
        v6[15] = 7;
        v6[33] = 4;
        let rows = [
            (v2(0x21, 0x11, &v4), complete("192.0.2.7:4", 28)),
            (v2(0x21, 0x11, &with_details), complete("192.0.2.7:4", 32)),
            (v2(0x21, 0x21, &v6), complete("[::7]:4", 52)),
            (v2(0x20, 0x00, &[]), complete("", 16)),
            (v2(0x20, 0x11, &v4), complete("", 28)),
            (v2(0x21, 0x00, &[1, 2]), complete("", 18)),
            (v2(0x21, 0x11, &v4[..11]), Err(Malformed)),
            (v2(0x21, 0x21, &v4), Err(Malformed)),
            // UDP, and Unix sockets.
            (v2(0x21, 0x12, &v4), Err(Malformed)),
            (v2(0x21, 0x31, &v6), Err(Malformed)),
            (v2(0x11, 0x11, &v4), Err(Malformed)),
            (v2(0x22, 0x11, &v4), Err(Malformed)),
            (v2(0x21, 0x11, &[0; 2033]), Err(TooLong)),
        ];
        for (bytes, expected) in rows {
            assert_eq!(parse(&bytes), expected, "{bytes:?}");
            let with_rest = [&bytes, &b"\x16\x03\x01"[..]].concat();
            assert_eq!(parse(&with_rest), expected, "{bytes:?} and more");
        }
    }

    proptest! {
        #[test]
        fn any_prefix_of_a_header_is_incomplete(
            client: SocketAddr, server: std::net::Ipv6Addr, is_v2: bool,
        ) {
            let client = SocketAddr::new(client.ip().to_canonical(), client.port());
            let bytes = match (client.ip(), is_v2) {
                (IpAddr::V4(ip), true) => {
                    let port = client.port().to_be_bytes();
                    v2(0x21, 0x11, &[&ip.octets()[..], &[9; 4], &port, &[1, 2]].concat())
                }
                (IpAddr::V6(ip), true) => {
                    let port = client.port().to_be_bytes();
                    v2(0x21, 0x21, &[&ip.octets()[..], &server.octets(), &port, &[1, 2]].concat())
                }
                (IpAddr::V4(ip), false) => {
                    format!("PROXY TCP4 {ip} 192.0.2.1 {} 6443\r\n", client.port()).into_bytes()
                }
                (IpAddr::V6(ip), false) => {
                    format!("PROXY TCP6 {ip} {server} {} 6443\r\n", client.port()).into_bytes()
                }
            };
            prop_assert!(bytes.len() <= MAX_HEADER_BYTES);
            for end in 0..bytes.len() {
                prop_assert_eq!(parse(&bytes[..end]), Ok(Parsed::Incomplete));
            }
            let source = Source::Client((client.ip(), client.port()).into());
            prop_assert_eq!(parse(&bytes), Ok(Parsed::Complete { source, bytes: bytes.len() }));
        }

        #[test]
        fn a_result_does_not_change_with_more_bytes(bytes: Vec<u8>, more: Vec<u8>, version: u8) {
            let start = [V1_START, V2_START, b""][usize::from(version % 3)];
            let bytes = [start, &bytes].concat();
            let parsed = parse(&bytes);
            if parsed == Ok(Parsed::Incomplete) {
                prop_assert!(bytes.len() < MAX_HEADER_BYTES);
            } else {
                prop_assert_eq!(parse(&[bytes, more].concat()), parsed);
            }
        }
    }
}
