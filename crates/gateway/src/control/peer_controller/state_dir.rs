//! `--state-dir`: the served records of other servers, in files that survive a restart. The file of
//! admission policies is `policy_file`.
//!
//! There is one file per server under `served/`. Its name is the identity of the server, or host and
//! port of its `--upstream`, where there are several: their identities depend on the order of the
//! flags. A file that cannot be read is ignored: it must not prevent the start.

use std::fs;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use skewbridge_peer_directory::registry::FixedServer;
use skewbridge_peer_directory::served_record::MAX_ENCODED_BYTES;
use skewbridge_peer_directory::served_record::MAX_RECORDS;
use skewbridge_peer_directory::{Identity, ServedRecord};
use skewbridge_private_files::{check_writable, ensure_private_dir, replace_file};
use tokio::sync::watch;

/// The subdirectory of the records.
const RECORDS_DIR: &str = "served";

/// The directory in which this bridge stores served records.
#[derive(Debug, Clone)]
pub(crate) struct StateDir {
    served: PathBuf,
    /// The servers behind the bridge, if files are not named by identities.
    upstreams: Option<Upstreams>,
}

/// The servers behind the bridge from the view of one of them.
#[derive(Debug, Clone)]
struct Upstreams {
    own: Identity,
    /// All of them, as they change.
    servers: watch::Receiver<Vec<FixedServer>>,
}

impl StateDir {
    /// Opens the directory, creates it if it does not exist, and checks that it is writable.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let served = path.join(RECORDS_DIR);
        ensure_private_dir(&served)?;
        check_writable(&served)?;
        Ok(Self {
            served,
            upstreams: None,
        })
    }

    /// The same directory for the other servers behind the bridge only, by host and port.
    pub(crate) fn for_upstream(
        mut self,
        own: Identity,
        servers: watch::Receiver<Vec<FixedServer>>,
    ) -> Self {
        self.upstreams = Some(Upstreams { own, servers });
        self
    }

    /// The addresses of servers behind an earlier process of this bridge, in ascending order.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let entries = fs::read_dir(&self.served).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut addresses: Vec<SocketAddr> = names.filter_map(|name| name.parse().ok()).collect();
        addresses.sort_unstable();
        addresses
    }

    /// Removes the record of a server that is not behind the bridge any more.
    pub(crate) fn remove_upstream(&self, authority: &str) {
        // Without it, the next process has one more server that does not answer, for some minutes.
        let _ = fs::remove_file(self.served.join(authority));
    }

    /// The directory itself.
    pub(super) fn path(&self) -> Option<&Path> {
        self.served.parent()
    }

    /// All records that can be read.
    pub(crate) fn read(&self) -> Vec<ServedRecord> {
        let entries = match fs::read_dir(&self.served) {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(flag = "--state-dir", path = %self.served.display(), %error, "stored records cannot be listed");
                return Vec::new();
            }
        };
        let mut records = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name();
            // Files that are being written begin with a dot, and no server identity does.
            let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
                continue;
            };
            if records.len() == MAX_RECORDS {
                tracing::warn!(flag = "--state-dir", path = %self.served.display(), "more than {MAX_RECORDS} stored records: the others are ignored");
                break;
            }
            let identity = match &self.upstreams {
                None => None,
                Some(upstreams) => match upstreams.identity(name) {
                    Some(identity) => Some(identity),
                    // The record of this upstream itself, or of an upstream that is no longer configured.
                    None => continue,
                },
            };
            match read(&entry.path(), name, identity.as_ref()) {
                Ok(record) => records.push(record),
                Err(problem) => {
                    tracing::warn!(flag = "--state-dir", file = %entry.path().display(), %problem, "a stored record is ignored");
                }
            }
        }
        records
    }

    /// Replaces the record of a server atomically.
    pub(crate) fn write(&self, record: &ServedRecord) -> io::Result<()> {
        let Some(file) = self.file(&record.identity) else {
            return Ok(());
        };
        let bytes = record.encode().map_err(io::Error::other)?;
        replace_file(&file, &bytes)
    }

    /// Removes the record of a server.
    pub(crate) fn remove(&self, identity: &Identity) -> io::Result<()> {
        let Some(file) = self.file(identity) else {
            return Ok(());
        };
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// An identity is a DNS subdomain and a host is one or an IP address, so it is neither a path nor a
    /// hidden file. `None` for a server that is not behind the bridge any more.
    fn file(&self, identity: &Identity) -> Option<PathBuf> {
        let name = match &self.upstreams {
            None => identity.as_str().to_owned(),
            Some(upstreams) => upstreams.authority(identity)?,
        };
        Some(self.served.join(name))
    }
}

impl Upstreams {
    /// The identity of another server by its host and port.
    fn identity(&self, authority: &str) -> Option<Identity> {
        let servers = self.servers.borrow();
        let mut others = servers.iter().filter(|it| it.identity != self.own);
        let server = others.find(|it| it.authority() == authority)?;
        Some(server.identity.clone())
    }

    fn authority(&self, identity: &Identity) -> Option<String> {
        let servers = self.servers.borrow();
        let server = servers.iter().find(|it| it.identity == *identity)?;
        Some(server.authority())
    }
}

/// Reads the record in a file. With an identity, the record gets it: that in the file is of an earlier
/// order of the flags.
fn read(path: &Path, name: &str, identity: Option<&Identity>) -> Result<ServedRecord, String> {
    let file = fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let limit = u64::try_from(MAX_ENCODED_BYTES).unwrap_or(u64::MAX);
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    let mut record = ServedRecord::decode(&bytes).map_err(|error| error.to_string())?;
    if let Some(identity) = identity {
        record.identity = identity.clone();
        return Ok(record);
    }
    if record.identity.as_str() != name {
        return Err(format!("the file is the record of {}", record.identity));
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;
    use std::time::SystemTime;

    use skewbridge_discovery::Index;
    use skewbridge_peer_directory::ServedApis;
    use skewbridge_testkit::ScratchDir;

    use super::*;

    fn record(name: &str) -> ServedRecord {
        let served = ServedApis {
            index: Arc::new(Index::new(&[])),
            documents: [Arc::default(), Arc::default()],
            etags: [None, None],
            version: "1.36.4".parse().ok(),
            version_suffix: Arc::default(),
            by_bridge: false,
        };
        let identity = Identity::named(name).unwrap();
        ServedRecord::new(identity, &served, |_, _| false, SystemTime::UNIX_EPOCH)
    }

    fn names(state: &StateDir) -> Vec<String> {
        let records = state.read();
        let mut names: Vec<_> = records.iter().map(|it| it.identity.to_string()).collect();
        names.sort();
        names
    }

    #[test]
    fn records_are_kept_until_they_are_removed() {
        let dir = ScratchDir::new();
        let path = dir.path().join("made/by/it");
        let state = StateDir::open(&path).unwrap();
        assert_eq!(names(&state), [""; 0]);
        state.write(&record("apiserver-a")).unwrap();
        state.write(&record("apiserver-b")).unwrap();
        state.write(&record("apiserver-a")).unwrap();
        let state = StateDir::open(&path).unwrap();
        assert_eq!(names(&state), ["apiserver-a", "apiserver-b"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path.join("served")), 0o700);
        assert_eq!(mode(&path.join("served/apiserver-a")), 0o600);
        state.remove(&record("apiserver-a").identity).unwrap();
        state.remove(&record("apiserver-a").identity).unwrap();
        assert_eq!(names(&state), ["apiserver-b"]);
    }

    #[test]
    fn records_of_upstreams_are_found_by_host_and_port_in_any_order_of_the_flags() {
        let dir = ScratchDir::new();
        let servers = |upstreams: &[(&str, &str)]| -> Vec<_> {
            let server = |(identity, host): &(&str, &str)| FixedServer {
                identity: Identity::named(identity).unwrap(),
                host: (*host).to_owned(),
                port: 6443,
            };
            upstreams.iter().map(server).collect()
        };
        let state = |own: &str, upstreams: &[(&str, &str)]| {
            let (change, all) = watch::channel(servers(upstreams));
            let own = Identity::named(own).unwrap();
            let state = StateDir::open(dir.path()).unwrap();
            (state.for_upstream(own, all), change)
        };
        let (a, b) = ("10.0.0.11:6443", "[fd00::1]:6443");
        let (a_host, b_host) = ("10.0.0.11", "fd00::1");
        let own = ("upstream-1", "10.0.0.10");
        let (first, change) = state("upstream-1", &[own, ("upstream-2", a_host)]);
        first.write(&record("upstream-3")).unwrap();
        assert_eq!(first.addresses(), [], "it is not behind the bridge");
        // Another server joins later.
        change.send_replace(servers(&[
            own,
            ("upstream-2", a_host),
            ("upstream-3", b_host),
        ]));
        first.write(&record("upstream-2")).unwrap();
        first.write(&record("upstream-3")).unwrap();
        assert!(dir.path().join("served").join(a).exists());
        assert_eq!(names(&first), ["upstream-2", "upstream-3"]);
        assert_eq!(first.addresses(), [a, b].map(|it| it.parse().unwrap()));
        let (turned, _) = state(
            "upstream-2",
            &[("upstream-1", b_host), ("upstream-2", a_host)],
        );
        assert_eq!(names(&turned), ["upstream-1"], "without its own");
        turned.remove(&record("upstream-1").identity).unwrap();
        assert_eq!(names(&first), ["upstream-2"]);
        first.remove_upstream(a);
        assert_eq!(first.addresses(), []);
    }

    #[test]
    fn files_that_are_not_records_are_ignored() {
        let dir = ScratchDir::new();
        let state = StateDir::open(dir.path()).unwrap();
        let served = dir.path().join("served");
        let bytes = record("apiserver-a").encode().unwrap();
        for (name, content) in [
            ("apiserver-empty", &b""[..]),
            ("apiserver-cut", &bytes[..bytes.len() / 2]),
            ("apiserver-other", &bytes),
            ("apiserver-large", &vec![b'S'; MAX_ENCODED_BYTES + 1]),
            (".new", b"cut"),
        ] {
            fs::write(served.join(name), content).unwrap();
        }
        fs::create_dir(served.join("apiserver-directory")).unwrap();
        state.write(&record("apiserver-good")).unwrap();
        assert_eq!(names(&state), ["apiserver-good"]);
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_an_error() {
        let dir = ScratchDir::new();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(StateDir::open(&dir.path().join("file")).is_err());
    }
}
