//! Port-forward in its three forms: pairs of SPDY streams ([`pair`]), the same inside a
//! WebSocket ([`tunnel`]), and the older WebSocket framing with two channels per port
//! ([`legacy`]).

pub mod legacy;
pub mod pair;
pub mod tunnel;

use std::num::NonZeroU16;
use std::str::FromStr;

use crate::query;

/// A port of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port(NonZeroU16);

/// The text is not a number from 1 to 65535.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a port is a number from 1 to 65535")]
pub struct PortError;

impl Port {
    /// `None` for 0.
    pub fn new(number: u16) -> Option<Self> {
        NonZeroU16::new(number).map(Self)
    }

    /// From 1 to 65535.
    pub fn number(self) -> u16 {
        self.0.get()
    }
}

impl FromStr for Port {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        // Go accepts no sign.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| is_number);
        number.and_then(Self::new).ok_or(PortError)
    }
}

/// The two streams of each connection to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// To and from the port.
    Data,
    /// From the server: why the connection failed, as plain text.
    Error,
}

/// The ports in the query of a request: `ports` for kube-apiserver, `port` for kubelets. Only
/// the older framing needs them there.
pub fn ports(key: &str, query: Option<&str>) -> Result<Vec<Port>, PortError> {
    let query = query.unwrap_or_default();
    let mut ports = Vec::new();
    for value in query::values(query, key) {
        for port in value.split(',') {
            ports.push(port.parse()?);
        }
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed_from_lists_and_repeated_keys() {
        let read = |query| {
            let ports = ports("ports", Some(query)).ok()?;
            Some(ports.into_iter().map(Port::number).collect::<Vec<_>>())
        };
        assert_eq!(
            read("ports=80,443&x=1&ports=65535"),
            Some(vec![80, 443, 65535])
        );
        assert_eq!(read("ports=80%2C443"), Some(vec![80, 443]));
        assert_eq!(read(""), Some(vec![]));
        for query in [
            "ports",
            "ports=",
            "ports=0",
            "ports=80,",
            "ports=65536",
            "ports=%2B1",
            "ports=-1",
            "ports=a",
        ] {
            assert_eq!(read(query), None, "{query}");
        }
    }
}
