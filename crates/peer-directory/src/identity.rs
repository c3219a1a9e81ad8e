//! The identity of a kube-apiserver in the cluster.

use std::borrow::Borrow;
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};

use crate::Error;

/// The name of an identity Lease, which is the name of its kube-apiserver; or the address of a
/// kube-apiserver whose Lease is not known. The two cannot be confused: an address with its port
/// is never the name of a Lease. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

/// kube-apiserver hashes this beside its host name, so that another API server on the same host
/// has another identity.
const COMPONENT: &str = "kube-apiserver";

/// The number of hash bytes in the name.
const HASH_BYTES_IN_NAME: usize = 16;

/// The longest DNS subdomain (RFC 1123).
const MAX_IDENTITY_BYTES: usize = 253;

impl Identity {
    /// The identity that a kube-apiserver generates on this host: a hash of the host name and the
    /// component name, each preceded by its length.
    pub fn of_hostname(hostname: &str) -> Self {
        let mut hashed = Vec::with_capacity(4 + hostname.len() + COMPONENT.len());
        for part in [hostname, COMPONENT] {
            // Host names have at most 64 bytes on Linux.
            let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
            hashed.extend_from_slice(&length.to_be_bytes());
            hashed.extend_from_slice(part.as_bytes());
        }
        let hash = digest(&SHA256, &hashed);
        let mut name = String::from("apiserver-");
        base32(&hash.as_ref()[..HASH_BYTES_IN_NAME], &mut name);
        Self(name.into())
    }

    /// An identity from its name, which must be a DNS subdomain because it becomes part of paths and
    /// etcd keys.
    pub fn named(name: &str) -> Result<Self, Error> {
        if is_subdomain(name) {
            Ok(Self(name.into()))
        } else {
            Err(Error::Identity(name.to_owned()))
        }
    }

    /// The identity of a kube-apiserver of which only the address is known.
    pub fn of_address(address: SocketAddr) -> Self {
        Self(address.to_string().into())
    }

    /// The identity with this name: that of a Lease, or of an address.
    pub(crate) fn stored(name: &str) -> Result<Self, Error> {
        match name.parse() {
            Ok(address) => Ok(Self::of_address(address)),
            Err(_) => Self::named(name),
        }
    }

    /// The address, if the identity is that of an address and not of a Lease.
    pub fn address(&self) -> Option<SocketAddr> {
        // The name of a Lease has no colon.
        self.0.contains(':').then(|| self.0.parse().ok())?
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for Identity {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::named(name)
    }
}

impl AsRef<str> for Identity {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Allows lookups by name in maps keyed by identity.
impl Borrow<str> for Identity {
    fn borrow(&self) -> &str {
        &self.0
    }
}

fn is_subdomain(name: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.len() <= MAX_IDENTITY_BYTES
        && name.split('.').map(str::as_bytes).all(|label| {
            alphanumeric(label.first())
                && alphanumeric(label.last())
                && label
                    .iter()
                    .all(|byte| *byte == b'-' || alphanumeric(Some(byte)))
        })
}

/// RFC 4648, 6: five bits a letter, in lower case and without padding.
fn base32(bytes: &[u8], out: &mut String) {
    const LETTERS: [u8; 32] = *b"abcdefghijklmnopqrstuvwxyz234567";
    let letter = |bits: u32| char::from(LETTERS[(bits & 31) as usize]);
    let (mut buffer, mut count) = (0_u32, 0);
    for byte in bytes {
        buffer = (buffer << 8 | u32::from(*byte)) & 0xfff;
        count += 8;
        while count >= 5 {
            count -= 5;
            out.push(letter(buffer >> count));
        }
    }
    if count > 0 {
        out.push(letter(buffer << (5 - count)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_of_an_address_is_not_the_name_of_a_lease() {
        for text in ["10.0.0.1:6443", "[fd00::1]:6443"] {
            let identity = Identity::of_address(text.parse().unwrap());
            assert_eq!(identity.as_str(), text);
            assert_eq!(identity.address(), text.parse().ok());
            assert_eq!(Identity::stored(text).unwrap(), identity);
            assert!(Identity::named(text).is_err(), "{text}");
        }
        let named = Identity::stored("apiserver-a").unwrap();
        assert_eq!(named.address(), None);
        assert_eq!(named, Identity::named("apiserver-a").unwrap());
        assert!(Identity::stored("10.0.0.1:").is_err());
        assert!(Identity::stored("../a").is_err());
    }

    #[test]
    fn the_identity_of_a_host_is_the_one_that_kube_apiserver_generates() {
        // Observed with kube-apiserver 1.36.4 and 1.34.4 under this host name.
        assert_eq!(
            Identity::of_hostname("kube-apiserver-0-1-36-4").to_string(),
            "apiserver-ihqvzrdal7px3zqf5s6ecqs5ei"
        );
    }

    #[test]
    fn base32_is_that_of_rfc_4648() {
        for (bytes, expected) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("fooba", "mzxw6ytb"),
            ("foobar", "mzxw6ytboi"),
        ] {
            let mut out = String::new();
            base32(bytes.as_bytes(), &mut out);
            assert_eq!(out, expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_name_is_a_dns_subdomain() {
        let longest = "a".repeat(253);
        for name in ["a", "0", "apiserver-x2", "a.b-c.d", longest.as_str()] {
            assert_eq!(Identity::named(name).unwrap().as_str(), name);
        }
        let too_long = "a".repeat(254);
        for name in [
            "", ".", "a.", ".a", "a..b", "-a", "a-", "A", "a_b", "a/b", "../a", "a b", "ä", "a\0",
            &too_long,
        ] {
            assert!(Identity::named(name).is_err(), "{name:?}");
        }
    }
}
