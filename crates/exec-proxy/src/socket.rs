//! The address at which a plugin listens: a Unix socket in a directory that only this user can
//! enter, or a port on loopback.

use std::fs::{self, Permissions};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use skewbridge_private_files::{DirUse, PrivateDir, runtime_directories};
use tokio::net::{TcpListener, UnixListener};

use crate::Error;
use crate::forward::Listener;

/// The longest socket path that is accepted on all supported systems.
const MAX_SOCKET_PATH_BYTES: usize = 100;

/// The file name of the socket in its directory.
const SOCKET_NAME: &str = "proxy.sock";

/// How many names are tried for a directory; they have 64 random bits.
const MAX_NAME_ATTEMPTS: usize = 4;

/// What a plugin listens on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listen {
    /// A Unix socket.
    #[default]
    Unix,
    /// A port on 127.0.0.1, for systems without Unix sockets. Any user can reach it, but only
    /// the client has a certificate for it.
    Tcp,
}

/// The address of a listener, and the directory of its socket.
#[derive(Debug)]
pub(crate) struct ListenAddress {
    pub(crate) url: String,
    directory: Option<SocketDirectory>,
}

/// Opens a listener.
pub(crate) async fn listen(listen: Listen) -> Result<(Listener, ListenAddress), Error> {
    match listen {
        Listen::Tcp => {
            let bind = async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                let url = format!("https://{}", listener.local_addr()?);
                io::Result::Ok((listener, url))
            };
            let (listener, url) = bind.await.map_err(|cause| Error::Listen {
                at: "127.0.0.1".to_owned(),
                cause,
            })?;
            let address = ListenAddress {
                url,
                directory: None,
            };
            Ok((Listener::Tcp(listener), address))
        }
        Listen::Unix => {
            let directory = SocketDirectory::new()?;
            let path = directory.0.path().join(SOCKET_NAME);
            let listener = bind(&path)?;
            let address = ListenAddress {
                url: unix_url(&path),
                directory: Some(directory),
            };
            Ok((Listener::Unix(listener), address))
        }
    }
}

/// The characters that are escaped in a path: all except unreserved ones and `/` (RFC 3986, 3.3).
const PATH_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// The URL of a socket. Its path may contain any bytes.
fn unix_url(path: &Path) -> String {
    let path = path.as_os_str().as_encoded_bytes();
    format!("unix://{}", percent_encode(path, PATH_ESCAPES))
}

/// Binds a socket that only its owner may use. Until its mode is set, the directory keeps other
/// users away.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, Error> {
    let bind = || {
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        io::Result::Ok(listener)
    };
    bind().map_err(|cause| Error::Listen {
        at: path.display().to_string(),
        cause,
    })
}

impl ListenAddress {
    /// Removes the socket and its directory, as dropping does.
    pub(crate) fn remove(&mut self) {
        self.directory = None;
    }
}

/// The directory of a socket, removed when it is dropped.
#[derive(Debug)]
struct SocketDirectory(PrivateDir);

impl SocketDirectory {
    fn new() -> Result<Self, Error> {
        let mut failure = None;
        for parent in runtime_directories() {
            sweep(&parent);
            for _ in 0..MAX_NAME_ATTEMPTS {
                let path = parent.join(format!("{DIRECTORY_PREFIX}{:016x}", random()?));
                if path.as_os_str().len() > MAX_SOCKET_PATH_BYTES {
                    break;
                }
                let at = path.display().to_string();
                match PrivateDir::create(path) {
                    Ok(directory) => return Ok(Self(directory)),
                    Err(cause) => failure = Some(Error::Listen { at, cause }),
                }
            }
        }
        Err(failure.unwrap_or_else(|| Error::Listen {
            at: "$XDG_RUNTIME_DIR, $TMPDIR and /tmp".to_owned(),
            cause: io::Error::other("their paths are too long for a socket"),
        }))
    }
}

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        if let Err(error) = self.0.remove() {
            tracing::warn!(path = %self.0.path().display(), %error, "cannot remove the socket's directory");
        }
    }
}

/// Prefix of the socket directories; random digits follow.
const DIRECTORY_PREFIX: &str = "skewbridge-agent-";

/// Younger directories are kept: their process may not listen yet.
const MIN_ABANDONED_AGE: Duration = Duration::from_mins(1);

/// Removes directories of killed plugins: those with a socket on which no process listens, or
/// with nothing in them yet.
fn sweep(parent: &Path) {
    skewbridge_private_files::sweep(parent, DIRECTORY_PREFIX, |entry, metadata| {
        let modified = metadata.modified().ok();
        let age = modified.and_then(|since| since.elapsed().ok());
        if age.is_none_or(|age| age <= MIN_ABANDONED_AGE) {
            return DirUse::InUse;
        }
        match UnixStream::connect(entry.path().join(SOCKET_NAME)) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => DirUse::Abandoned,
            // Its process was killed before it bound the socket.
            Err(error) if error.kind() == io::ErrorKind::NotFound => DirUse::Empty,
            _ => DirUse::InUse,
        }
    });
}

fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    aws_lc_rs::rand::fill(&mut bytes)
        .map_err(|_| Error::Certificate("the system has no random numbers".to_owned()))?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::time::SystemTime;

    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn any_path_can_be_written_as_a_url() {
        let rows: [(&[u8], &str); 4] = [
            (b"/run/user/0/a-b.c_d~/s", "unix:///run/user/0/a-b.c_d~/s"),
            (b"/tmp/a%20b/s", "unix:///tmp/a%2520b/s"),
            (b"/tmp/a b?c#d/s", "unix:///tmp/a%20b%3Fc%23d/s"),
            (b"/tmp/\xff/s", "unix:///tmp/%FF/s"),
        ];
        for (path, expected) in rows {
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            assert_eq!(unix_url(path), expected);
        }
    }

    #[tokio::test]
    async fn only_the_directories_of_killed_plugins_are_removed() {
        let dir = ScratchDir::new();
        let long_ago = SystemTime::now() - 2 * MIN_ABANDONED_AGE;
        let make = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let age = |path: &Path| {
            fs::File::open(path)
                .unwrap()
                .set_modified(long_ago)
                .unwrap();
        };
        let dead = make("skewbridge-agent-1");
        drop(bind(&dead.join(SOCKET_NAME)).unwrap());
        let alive = make("skewbridge-agent-2");
        let _listening = bind(&alive.join(SOCKET_NAME)).unwrap();
        let empty = make("skewbridge-agent-3");
        let full = make("skewbridge-agent-6");
        fs::write(full.join("something"), "").unwrap();
        let new = make("skewbridge-agent-7");
        let other = make("other-4");
        drop(bind(&other.join(SOCKET_NAME)).unwrap());
        let young = make("skewbridge-agent-5");
        drop(bind(&young.join(SOCKET_NAME)).unwrap());
        for path in [&dead, &alive, &empty, &full, &other] {
            age(path);
        }
        sweep(dir.path());
        assert!(!dead.exists() && !empty.exists());
        for path in [&alive, &full, &new, &other, &young] {
            assert!(path.exists(), "{}", path.display());
        }
    }
}
