//! How a server is called in texts for people: by its host, with the identity
//! behind it.

use std::fmt;

use crate::identity::Identity;

/// The longest value of a label (Kubernetes, Labels and Selectors).
const MAX_LABEL_VALUE: usize = 63;

/// `cp-2 (apiserver-…)`, or the identity alone where the host is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerName<'a> {
    identity: &'a Identity,
    host: Option<&'a str>,
}

impl<'a> PeerName<'a> {
    /// A host that is no valid label value is left out: it did not pass a
    /// kube-apiserver, and may hold characters that disguise a log line.
    pub fn new(identity: &'a Identity, host: Option<&'a str>) -> Self {
        Self {
            identity,
            host: host.filter(|host| is_label_value(host)),
        }
    }

    /// The host, where it is known.
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
    bytes.len() <= MAX_LABEL_VALUE
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
        let long = "h".repeat(MAX_LABEL_VALUE + 1);
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
