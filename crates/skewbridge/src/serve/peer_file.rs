//! The file of `--peer-registry=file:PATH`: peers that never change.
//!
//! ```yaml
//! peers:
//! - identity: apiserver-0
//!   address: 10.0.0.10:6443
//! ```

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;

use ipnet::IpNet;
use serde::Deserialize;

use super::files;
use super::parse;

/// A server of the cluster and where it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The name of its identity Lease.
    pub(crate) identity: String,
    pub(crate) address: SocketAddr,
}

/// Reads the file. Addresses must be in one of the networks, if there are any.
pub(crate) fn read(path: &Path, networks: &[IpNet]) -> Result<Vec<Peer>, Vec<String>> {
    let document = files::yaml(path).map_err(|wrong| vec![wrong])?;
    understand(document, networks)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    peers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    identity: String,
    address: String,
}

fn understand(document: Document, networks: &[IpNet]) -> Result<Vec<Peer>, Vec<String>> {
    let mut peers = Vec::new();
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (index, entry) in document.peers.into_iter().enumerate() {
        match understand_entry(&entry, networks) {
            Ok(peer) if !seen.insert(peer.identity.clone()) => {
                wrong.push(format!("peers[{index}]: {} is there twice", peer.identity));
            }
            Ok(peer) => peers.push(peer),
            Err(messages) => wrong.extend(
                messages
                    .into_iter()
                    .map(|message| format!("peers[{index}].{message}")),
            ),
        }
    }
    if wrong.is_empty() {
        Ok(peers)
    } else {
        Err(wrong)
    }
}

fn understand_entry(entry: &Entry, networks: &[IpNet]) -> Result<Peer, Vec<String>> {
    let identity =
        parse::dns_subdomain(&entry.identity).map_err(|wrong| format!("identity: {wrong}"));
    let address = address(&entry.address, networks).map_err(|wrong| format!("address: {wrong}"));
    match (identity, address) {
        (Ok(identity), Ok(address)) => Ok(Peer { identity, address }),
        (identity, address) => Err(identity.err().into_iter().chain(address.err()).collect()),
    }
}

fn address(text: &str, networks: &[IpNet]) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("{text:?} is not IP:PORT; write it like 10.0.0.10:6443"))?;
    parse::advertised_ip(&address.ip().to_string())?;
    if address.port() == 0 {
        return Err(format!("{text:?} has no port"));
    }
    let inside = networks
        .iter()
        .any(|network| network.contains(&address.ip()));
    if !networks.is_empty() && !inside {
        return Err(format!("{} is in none of the --peer-cidrs", address.ip()));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understood(text: &str, networks: &[&str]) -> Result<Vec<Peer>, Vec<String>> {
        let networks: Vec<_> = networks.iter().map(|net| net.parse().unwrap()).collect();
        let document = files::parse_yaml(text).map_err(|wrong| vec![wrong])?;
        understand(document, &networks)
    }

    #[test]
    fn peers_have_an_identity_and_an_address() {
        let text = "peers:\n- identity: apiserver-0\n  address: 10.0.0.10:6443\n\
                    - {identity: b, address: '[fd00::1]:6443'}\n";
        let peers = understood(text, &[]).unwrap();
        assert_eq!(peers[0].identity, "apiserver-0");
        assert_eq!(peers[1].address, "[fd00::1]:6443".parse().unwrap());
        assert!(understood(text, &["10.0.0.0/8", "fd00::/8"]).is_ok());
        assert_eq!(understood("peers: []", &[]), Ok(vec![]));
    }

    #[test]
    fn every_wrong_entry_is_told_by_its_place() {
        let text = "peers:\n- {identity: A, address: 'kube:1'}\n- {identity: a, address: '1.1.1.1:0'}\n\
                    - {identity: b, address: '0.0.0.0:1'}\n- {identity: c, address: '2.2.2.2:1'}\n\
                    - {identity: d, address: '1.1.1.1:1'}\n- {identity: d, address: '1.1.1.1:1'}\n";
        let wrong = understood(text, &["1.1.1.0/24"]).unwrap_err();
        let expected = [
            "peers[0].identity: \"A\"",
            "peers[0].address: \"kube:1\" is not IP:PORT",
            "peers[1].address: \"1.1.1.1:0\" has no port",
            "peers[2].address: nobody can connect to 0.0.0.0",
            "peers[3].address: 2.2.2.2 is in none of",
            "peers[5]: d is there twice",
        ];
        assert_eq!(wrong.len(), expected.len(), "{wrong:?}");
        for (wrong, expected) in wrong.iter().zip(expected) {
            assert!(wrong.starts_with(expected), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_such_document_is_refused() {
        for text in [
            "",
            "peers",
            "[]",
            "peers: [{identity: a}]",
            "peers: []\nmore: 1",
            "{",
        ] {
            assert!(understood(text, &[]).is_err(), "{text}");
        }
    }
}
