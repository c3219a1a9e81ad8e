//! Where clients find the plugin: a socket in a directory that nobody else can
//! enter, or a port of loopback.

use std::fs::{self, Permissions};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use skewbridge_client::private_dir::{self, DirUse, PrivateDir, runtime_directories};
use tokio::net::{TcpListener, UnixListener};

use crate::Error;
use crate::forward::Listener;

/// What fits into the address of a Unix socket on every system that we know.
const MAX_SOCKET_PATH: usize = 100;

/// The socket in its directory.
const SOCKET: &str = "proxy.sock";

/// How often another name is tried for a directory: names are 64 random bits.
const TRIES: usize = 4;

/// On what clients connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Listen {
    /// A Unix socket.
    #[default]
    Unix,
    /// A port of 127.0.0.1, where there are no Unix sockets: any user can reach it,
    /// and only the client has a certificate for it.
    Tcp,
}

/// A listener, and what it leaves behind.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) url: String,
    directory: Option<SocketDirectory>,
}

/// Opens a listener.
pub(crate) async fn open(listen: Listen) -> Result<(Listener, Place), Error> {
    match listen {
        Listen::Tcp => {
            let opened = async {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
                let url = format!("https://{}", listener.local_addr()?);
                io::Result::Ok((listener, url))
            };
            let (listener, url) = opened.await.map_err(|cause| Error::Listen {
                at: "127.0.0.1".to_owned(),
                cause,
            })?;
            let place = Place {
                url,
                directory: None,
            };
            Ok((Listener::Tcp(listener), place))
        }
        Listen::Unix => {
            let directory = SocketDirectory::new()?;
            let path = directory.0.path().join(SOCKET);
            let listener = bind(&path)?;
            let place = Place {
                url: url_of(&path),
                directory: Some(directory),
            };
            Ok((Listener::Unix(listener), place))
        }
    }
}

/// What stands in a path as it is (RFC 3986, 3.3): the unreserved, and what parts it.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

/// The URL of a socket. A path may hold any bytes.
fn url_of(path: &Path) -> String {
    let path = path.as_os_str().as_encoded_bytes();
    format!("unix://{}", percent_encode(path, IN_PATH))
}

/// A socket that only its owner may use. The directory keeps others away until
/// the mode is set.
pub(crate) fn bind(path: &Path) -> Result<UnixListener, Error> {
    let bound = || {
        let listener = UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        io::Result::Ok(listener)
    };
    bound().map_err(|cause| Error::Listen {
        at: path.display().to_string(),
        cause,
    })
}

impl Place {
    /// Removes socket and directory; so does dropping it.
    pub(crate) fn leave(&mut self) {
        self.directory = None;
    }
}

/// The directory of a socket, removed when it is dropped.
#[derive(Debug)]
struct SocketDirectory(PrivateDir);

impl SocketDirectory {
    fn new() -> Result<Self, Error> {
        let mut failure = None;
        for above in runtime_directories() {
            sweep(&above);
            for _ in 0..TRIES {
                let path = above.join(format!("{PREFIX}{:016x}", random()?));
                if path.as_os_str().len() > MAX_SOCKET_PATH {
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
const PREFIX: &str = "skewbridge-agent-";

/// No process takes this long between creating a directory and listening in it.
const SETTLED: Duration = Duration::from_mins(1);

/// Removes directories of killed plugins: those with a socket on which no process listens, or
/// with nothing in them yet.
fn sweep(above: &Path) {
    private_dir::sweep(above, PREFIX, |entry, metadata| {
        let modified = metadata.modified().ok();
        let age = modified.and_then(|since| since.elapsed().ok());
        if age.is_none_or(|age| age <= SETTLED) {
            return DirUse::InUse;
        }
        match UnixStream::connect(entry.path().join(SOCKET)) {
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
        .map_err(|_| Error::Certificate("the system has no randomness".to_owned()))?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::time::SystemTime;

    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn whatever_a_path_holds_can_stand_in_a_url() {
        let rows: [(&[u8], &str); 4] = [
            (b"/run/user/0/a-b.c_d~/s", "unix:///run/user/0/a-b.c_d~/s"),
            (b"/tmp/a%20b/s", "unix:///tmp/a%2520b/s"),
            (b"/tmp/a b?c#d/s", "unix:///tmp/a%20b%3Fc%23d/s"),
            (b"/tmp/\xff/s", "unix:///tmp/%FF/s"),
        ];
        for (path, expected) in rows {
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            assert_eq!(url_of(path), expected);
        }
    }

    #[tokio::test]
    async fn what_a_killed_plugin_left_is_removed_and_nothing_else() {
        let dir = ScratchDir::new();
        let long_ago = SystemTime::now() - 2 * SETTLED;
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
        drop(bind(&dead.join(SOCKET)).unwrap());
        let alive = make("skewbridge-agent-2");
        let _listening = bind(&alive.join(SOCKET)).unwrap();
        let empty = make("skewbridge-agent-3");
        let full = make("skewbridge-agent-6");
        fs::write(full.join("something"), "").unwrap();
        let new = make("skewbridge-agent-7");
        let other = make("other-4");
        drop(bind(&other.join(SOCKET)).unwrap());
        let young = make("skewbridge-agent-5");
        drop(bind(&young.join(SOCKET)).unwrap());
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
