//! Addresses in a file that an administrator maintains: `--peer-registry=file:PATH`.
//!
//! ```yaml
//! peers:
//! - identity: apiserver-0
//!   address: 10.0.0.10:6443
//!   server: 10.0.0.10:6444
//! - server: 10.0.0.11:6443
//! ```
//!
//! `address` is that of a bridge, and `server` that of the kube-apiserver itself. With both, the
//! server is polled after its bridge has departed. An entry without `address` is a kube-apiserver
//! without a bridge; it needs no identity.
//! Records and announcements are annotations of identity Leases, whose addresses are ignored with
//! this registry.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{
    Activity, Addresses, AdvertisedAddress, Registry, StatusReporter, send_if_changed,
    wait_until_withdrawn,
};
use crate::identity::Identity;

/// Like all files of the bridge, it is read once a second, which detects every way of replacing a
/// file.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Enough for more than a thousand servers.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads the file. Addresses must be in one of the networks, if there are any.
pub fn read(path: &Path, networks: &[IpNet]) -> Result<Addresses, Vec<String>> {
    let text = text(path).map_err(|problem| vec![problem])?;
    parse(&text, networks)
}

fn text(path: &Path) -> Result<String, String> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => "no such file; correct the path, or create the file".to_owned(),
        _ => format!("cannot be read: {error}"),
    };
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
        .map_err(unreadable)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err("is larger than 1 MiB; correct the path".to_owned());
    }
    if text.trim().is_empty() {
        return Err("is empty".to_owned());
    }
    Ok(text)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    peers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    identity: Option<String>,
    #[serde(default)]
    address: Option<String>,
    #[serde(default)]
    server: Option<String>,
}

impl Entry {
    /// The server and its address, or what is wrong with which field.
    fn parse(
        &self,
        networks: &[IpNet],
    ) -> Result<(Identity, AdvertisedAddress), Vec<(&'static str, String)>> {
        let mut wrong = Vec::new();
        let mut parsed = |field, text: &Option<String>| {
            let parsed = text.as_deref().map(|text| address(text, networks));
            let parsed = parsed.transpose();
            parsed.unwrap_or_else(|problem| {
                wrong.push((field, problem));
                None
            })
        };
        let address = parsed(".address", &self.address);
        let server = parsed(".server", &self.server);
        let identity = self.identity.as_deref().map(Identity::named).transpose();
        let identity = identity.unwrap_or_else(|problem| {
            wrong.insert(0, (".identity", problem.to_string()));
            None
        });
        if !wrong.is_empty() {
            return Err(wrong);
        }
        match (identity, address, server) {
            (Some(identity), Some(address), server) => {
                Ok((identity, AdvertisedAddress::by_file(address, server)))
            }
            (identity, None, Some(server)) => {
                let identity = identity.unwrap_or_else(|| Identity::of_address(server));
                Ok((identity, AdvertisedAddress::by_server(server)))
            }
            (None, Some(_), _) => Err(vec![(
                "",
                "has an address of a bridge and no identity; add the identity of its server, or \
                 write server instead of address for a kube-apiserver without a bridge"
                    .to_owned(),
            )]),
            (_, None, None) => Err(vec![(
                "",
                "has no address; add the address of a bridge (address), or that of a \
                 kube-apiserver without one (server)"
                    .to_owned(),
            )]),
        }
    }
}

fn parse(text: &str, networks: &[IpNet]) -> Result<Addresses, Vec<String>> {
    let contents: Contents =
        serde_saphyr::from_str(text).map_err(|error| vec![error.without_snippet().to_string()])?;
    let mut peers = Addresses::new();
    let mut wrong = Vec::new();
    for (index, entry) in contents.peers.into_iter().enumerate() {
        match entry.parse(networks) {
            Ok((identity, advertised)) => {
                if peers.insert(identity.clone(), advertised).is_some() {
                    wrong.push(format!("peers[{index}]: {identity} is listed twice"));
                }
            }
            Err(problems) => wrong.extend(
                (problems.iter())
                    .map(|(field, problem)| format!("peers[{index}]{field}: {problem}")),
            ),
        }
    }
    if wrong.is_empty() {
        Ok(peers)
    } else {
        Err(wrong)
    }
}

fn address(text: &str, networks: &[IpNet]) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("{text:?} is not IP:PORT; write it like 10.0.0.10:6443"))?;
    let ip = address.ip();
    if ip.is_unspecified() || ip.is_multicast() {
        return Err(format!("clients cannot connect to {ip}"));
    }
    if address.port() == 0 {
        return Err(format!("{text:?} has no port"));
    }
    if !networks.is_empty() && !networks.iter().any(|net| net.contains(&ip)) {
        return Err(format!("{ip} is in none of the --peer-cidrs"));
    }
    Ok(address)
}

/// A read-only registry: the author of the file publishes for all servers.
#[derive(Debug)]
pub struct FileRegistry {
    path: PathBuf,
    networks: Vec<IpNet>,
    reporter: Arc<StatusReporter>,
}

impl FileRegistry {
    /// The file at this path.
    pub fn new(path: PathBuf, networks: Vec<IpNet>) -> Self {
        let reporter = Arc::new(StatusReporter::new("file", &[Activity::Read]));
        Self {
            path,
            networks,
            reporter,
        }
    }

    async fn poll_file(&self, found: &watch::Sender<Addresses>) {
        let mut last_problem = Vec::new();
        loop {
            match read(&self.path, &self.networks) {
                Ok(addresses) => {
                    last_problem.clear();
                    // First, so that the addresses are available when the registry counts as read.
                    send_if_changed(found, addresses);
                    self.reporter.succeeded(Activity::Read);
                }
                Err(problem) if problem != last_problem => {
                    let path = self.path.display();
                    let error = format!("--peer-registry {path}: {}", problem.join("; "));
                    self.reporter.failed(Activity::Read, error);
                    tracing::error!(flag = "--peer-registry", %path, problem = problem.join("; "), "the file is invalid; the last valid one stays in use");
                    last_problem = problem;
                }
                Err(_) => {}
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

impl Registry for FileRegistry {
    fn run(
        &self,
        mut own: watch::Receiver<Option<(Identity, SocketAddr)>>,
        found: watch::Sender<Addresses>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            tokio::select! {
                () = wait_until_withdrawn(&mut own) => {}
                () = self.poll_file(&found) => {}
            }
        })
    }

    fn reporter(&self) -> Arc<StatusReporter> {
        self.reporter.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::super::AddressOrigin;
    use super::*;

    fn parsed(text: &str, networks: &[&str]) -> Result<Addresses, Vec<String>> {
        let networks: Vec<_> = networks.iter().map(|net| net.parse().unwrap()).collect();
        parse(text, &networks)
    }

    #[test]
    fn peers_have_an_identity_and_an_address() {
        let text = "peers:\n- identity: apiserver-0\n  address: 10.0.0.10:6443\n\
                    - {identity: b, address: '[fd00::1]:6443', server: '10.0.0.11:6444'}\n";
        let peers = parsed(text, &[]).unwrap();
        let b = Identity::named("b").unwrap();
        let server = "10.0.0.11:6444".parse().ok();
        let expected = AdvertisedAddress::by_file("[fd00::1]:6443".parse().unwrap(), server);
        assert_eq!(peers[&b], expected);
        let a = Identity::named("apiserver-0").unwrap();
        assert_eq!(peers[&a].origin, AddressOrigin::File { server: None });
        assert_eq!(peers.len(), 2);
        assert!(parsed(text, &["10.0.0.0/8", "fd00::/8"]).is_ok());
        assert_eq!(parsed("peers: []", &[]), Ok(Addresses::new()));
    }

    #[test]
    fn every_invalid_entry_is_reported_with_its_index() {
        let text = "peers:\n- {identity: A, address: 'kube:1'}\n- {identity: a, address: '1.1.1.1:0'}\n\
                    - {identity: b, address: '0.0.0.0:1'}\n- {identity: c, address: '2.2.2.2:1'}\n\
                    - {identity: d, address: '1.1.1.1:1'}\n- {identity: d, address: '1.1.1.1:1'}\n";
        let wrong = parsed(text, &["1.1.1.0/24"]).unwrap_err();
        let outside = "peers: [{identity: a, address: '1.1.1.1:1', server: '2.2.2.2:1'}]";
        let refused = parsed(outside, &["1.1.1.0/24"]).unwrap_err();
        assert!(refused[0].starts_with("peers[0].server: 2.2.2.2 is in none"));
        let expected = [
            "peers[0].identity: ",
            "peers[0].address: \"kube:1\" is not IP:PORT",
            "peers[1].address: \"1.1.1.1:0\" has no port",
            "peers[2].address: clients cannot connect to 0.0.0.0",
            "peers[3].address: 2.2.2.2 is in none of",
            "peers[5]: d is listed twice",
        ];
        assert_eq!(wrong.len(), expected.len(), "{wrong:?}");
        for (wrong, expected) in wrong.iter().zip(expected) {
            assert!(wrong.starts_with(expected), "{wrong}");
        }
    }

    #[test]
    fn an_entry_without_the_address_of_a_bridge_is_a_kube_apiserver() {
        let text = "peers:\n- server: '10.0.0.1:6443'\n- {identity: b, server: '10.0.0.2:6443'}\n\
                    - {identity: c, address: '10.0.0.3:7443'}\n";
        let peers = parsed(text, &[]).unwrap();
        let of = |name: &str| peers[&Identity::stored(name).unwrap()];
        let server = |text: &str| AdvertisedAddress::by_server(text.parse().unwrap());
        assert_eq!(of("10.0.0.1:6443"), server("10.0.0.1:6443"));
        assert_eq!(of("b"), server("10.0.0.2:6443"));
        assert_eq!(of("c").origin, AddressOrigin::File { server: None });
        assert_eq!(peers.len(), 3);
        for (entry, expected) in [
            (
                "address: '10.0.0.1:1'",
                "peers[0]: has an address of a bridge and no identity",
            ),
            ("identity: a", "peers[0]: has no address"),
            (
                "server: '10.0.0.1'",
                "peers[0].server: \"10.0.0.1\" is not IP:PORT",
            ),
            (
                "identity: '10.0.0.1:1', server: '10.0.0.1:1'",
                "peers[0].identity: ",
            ),
        ] {
            let wrong = parsed(&format!("peers: [{{{entry}}}]"), &[]).unwrap_err();
            assert!(
                wrong.len() == 1 && wrong[0].starts_with(expected),
                "{wrong:?}"
            );
        }
        let twice = "peers: [{server: '10.0.0.1:1'}, {server: '10.0.0.1:1'}]";
        assert_eq!(
            parsed(twice, &[]).unwrap_err(),
            ["peers[1]: 10.0.0.1:1 is listed twice"]
        );
    }

    #[test]
    fn an_invalid_document_is_rejected() {
        for text in [
            "peers",
            "[]",
            "peers: [{identity: a}]",
            "peers: []\nmore: 1",
            "{",
        ] {
            assert!(parsed(text, &[]).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_changed_file_is_reloaded_and_an_invalid_one_changes_nothing() {
        let dir = skewbridge_testkit::ScratchDir::new();
        let write = |text: &str| dir.write("peers.yaml", text);
        let path = write("peers: [{identity: a, address: '10.0.0.1:6443'}]");
        let registry = FileRegistry::new(path, Vec::new());
        let own = (
            Identity::named("own").unwrap(),
            "10.0.0.9:1".parse().unwrap(),
        );
        let (leave, own) = watch::channel(Some(own));
        let (found, mut seen) = watch::channel(Addresses::new());
        let mut status = registry.status();
        assert!(!status.borrow().up && !status.borrow().read);
        let running = tokio::spawn(async move { registry.run(own, found).await });
        let has = |name: &str| {
            let identity = Identity::named(name).unwrap();
            move |all: &Addresses| all.contains_key(&identity) && all.len() == 1
        };
        seen.wait_for(has("a")).await.unwrap();
        status.wait_for(|it| it.up && it.read).await.unwrap();
        write("peers: [{identity: b");
        write("peers: [{identity: c, address: '10.0.0.3:6443'}]");
        seen.wait_for(has("c")).await.unwrap();
        status.wait_for(|it| it.up).await.unwrap();
        write("peers: [{identity: d, address: 'nowhere'}]");
        let down = status.wait_for(|it| !it.up).await.unwrap().clone();
        let error = down.error().unwrap();
        for part in [
            "--peer-registry",
            "peers.yaml",
            "write it like 10.0.0.10:6443",
        ] {
            assert!(error.contains(part), "{error}");
        }
        assert!(down.read, "it was read before");
        assert!(has("c")(&seen.borrow()));
        leave.send_replace(None);
        running.await.unwrap();
    }
}
