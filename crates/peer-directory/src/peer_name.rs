//! The name of a server in logs and messages: its host name, followed by its identity.

use std::fmt;

use crate::identity::Identity;

/// The longest value of a label (Kubernetes, Labels and Selectors).
const MAX_LABEL_VALUE_BYTES: usize = 63;

/// `cp-2 (apiserver-…)`, or the identity alone if the host is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerName<'a> {
    identity: &'a Identity,
    host: Option<&'a str>,
}

impl<'a> PeerName<'a> {
    /// A host that is not a valid label value is left out: no kube-apiserver has validated it, and
    /// it may contain characters that forge a log line.
    pub fn new(identity: &'a Identity, host: Option<&'a str>) -> Self {
        Self {
            identity,
            host: host.filter(|host| is_label_value(host)),
        }
    }

    /// The host, if it is known.
    pub fn host(&self) -> Option<&'a str> {
        self.host
    }
}

impl fmt::Display for PeerName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Some(host) => write!(f, "{host} ({})", self.identity),
            None => write!(f, "{}", self.identity),
        }
    }
}

/// `[A-Za-z0-9]`, and between two of them also `-`, `_` and `.`; not empty.
fn is_label_value(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= MAX_LABEL_VALUE_BYTES
        && is_end(bytes.first())
        && is_end(bytes.last())
        && (bytes.iter()).all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_host_and_the_identity() {
        let identity = Identity::named("apiserver-a").unwrap();
        let long = "h".repeat(MAX_LABEL_VALUE_BYTES + 1);
        let table = [
            (Some("cp-2"), "cp-2 (apiserver-a)"),
            (Some("cp-2.example_Org"), "cp-2.example_Org (apiserver-a)"),
            (None, "apiserver-a"),
            (Some(""), "apiserver-a"),
            (Some("-cp"), "apiserver-a"),
            (Some("cp."), "apiserver-a"),
            (Some("cp 2"), "apiserver-a"),
            (Some("cp\n[+]peers ok"), "apiserver-a"),
            (Some("cp\u{202e}"), "apiserver-a"),
            (Some(&*long), "apiserver-a"),
        ];
        for (host, expected) in table {
            let name = PeerName::new(&identity, host);
            assert_eq!(name.to_string(), expected, "{host:?}");
            assert_eq!(name.host().is_some(), expected != "apiserver-a", "{host:?}");
        }
    }
}
