//! Local listeners.

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use skewbridge_client::remote_command::{CloseMode, LocalStream};
use socket2::{Domain, SockAddr, Type};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{sleep, timeout};

/// Only the owner can connect to the socket. Local ports are open to all users of the machine; a
/// socket need not be.
const SOCKET_MODE: u32 = 0o600;

/// The backlog: as long as the system allows.
const BACKLOG: i32 = -1;

/// Time to wait for another process that binds in the same directory. It takes milliseconds, but
/// the machine may be busy.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval between attempts to lock the directory.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// An address to listen at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    /// 127.0.0.1 and `::1`, or one of them.
    Localhost,
    Ip(IpAddr),
}

impl Address {
    /// Parses kubectl's list.
    pub(crate) fn parse_all(texts: &[String]) -> Result<Vec<Self>, String> {
        let words = texts.iter().flat_map(|text| text.split(','));
        let mut all = Vec::new();
        for word in words.map(str::trim).filter(|word| !word.is_empty()) {
            let address = match word {
                "localhost" => Self::Localhost,
                word => word
                    .parse()
                    .map(Self::Ip)
                    .map_err(|_| format!("{word} is not a valid IP"))?,
            };
            if !all.contains(&address) {
                all.push(address);
            }
        }
        if all.is_empty() {
            return Err("you must specify at least 1 address".to_owned());
        }
        Ok(all)
    }
}

/// Something that accepts connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener, SocketAddr),
    /// Removed when this is dropped.
    Unix(UnixListener, Socket),
}

/// A socket in the file system, for as long as it is used.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Device and inode: another file at the same path is not removed.
    is: Option<(u64, u64)>,
}

impl Socket {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            is: device_and_inode(path),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.is.is_some() && device_and_inode(&self.path) == self.is {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn device_and_inode(path: &Path) -> Option<(u64, u64)> {
    let it = std::fs::symlink_metadata(path).ok()?;
    Some((it.dev(), it.ino()))
}

impl Listener {
    /// Listens on a port of all addresses; 0 is a free port, the same for all.
    pub(crate) async fn tcp(addresses: &[Address], port: u16) -> Result<Vec<Self>, String> {
        let (mut all, mut port) = (Vec::new(), port);
        for address in addresses {
            let (ips, enough): (Vec<IpAddr>, bool) = match address {
                Address::Localhost => (
                    vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
                    false,
                ),
                Address::Ip(ip) => (vec![*ip], true),
            };
            let (mut any, mut errors) = (false, Vec::new());
            for ip in ips {
                let at = SocketAddr::new(ip, port);
                match bind(at).await {
                    Ok((listener, at)) => {
                        port = at.port();
                        all.push(Self::Tcp(listener, at));
                        any = true;
                    }
                    Err(error) => errors.push(format!("{at}: {error}")),
                }
            }
            if !any || (enough && !errors.is_empty()) {
                let errors = errors.join("; ");
                return Err(format!("Unable to listen on port {port}: {errors}"));
            }
        }
        Ok(all)
    }

    /// Listens at a socket. A stale socket is replaced. A process that does so at the same time
    /// waits for the lock, and finds this listener.
    pub(crate) async fn unix(path: &Path) -> Result<Self, String> {
        let wrong = |error: io::Error| format!("Unable to listen on {}: {error}", path.display());
        let _turn = lock_directory(path).await;
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|it| it.file_type().is_socket());
        if is_socket {
            if !is_stale(path) {
                return Err(wrong(io::ErrorKind::AddrInUse.into()));
            }
            std::fs::remove_file(path).map_err(wrong)?;
        }
        let (listener, socket) = bind_private(path).map_err(wrong)?;
        Ok(Self::Unix(listener, socket))
    }

    /// The next connection. Until it is forwarded to a clean end, it closes with a reset.
    pub(crate) async fn accept(&self) -> io::Result<Box<dyn LocalStream>> {
        match self {
            Self::Tcp(listener, _) => {
                let (tcp, _) = listener.accept().await?;
                let _ = tcp.set_nodelay(true);
                tcp.set_close_mode(CloseMode::Reset);
                Ok(Box::new(tcp))
            }
            Self::Unix(listener, _) => Ok(Box::new(listener.accept().await?.0)),
        }
    }

    /// The port, or the socket.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Tcp(_, at) => at.port().to_string(),
            Self::Unix(_, socket) => format!("unix:{}", socket.path.display()),
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(_, at) => at.fmt(f),
            Self::Unix(..) => f.write_str(&self.name()),
        }
    }
}

/// A lock on the directory of a socket, held while this is kept. The directory itself is locked,
/// so no file is left behind. `None` if it cannot be locked, or is locked for too long, possibly
/// by another user of a shared directory.
async fn lock_directory(path: &Path) -> Option<File> {
    let beside = path.parent().filter(|it| !it.as_os_str().is_empty());
    let directory = File::open(beside.unwrap_or(Path::new("."))).ok()?;
    let taking = async {
        loop {
            match directory.try_lock() {
                Ok(()) => return true,
                Err(TryLockError::WouldBlock) => sleep(LOCK_POLL_INTERVAL).await,
                Err(TryLockError::Error(_)) => return false,
            }
        }
    };
    let taken = timeout(LOCK_TIMEOUT, taking).await.unwrap_or(false);
    taken.then_some(directory)
}

/// Whether no process listens at a socket. A socket with a full backlog is in use; this does not
/// wait for it.
fn is_stale(path: &Path) -> bool {
    let connected = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)
    });
    connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Sets the permissions before it listens: a socket that is bound and does not listen refuses
/// connections.
fn bind_private(path: &Path) -> io::Result<(UnixListener, Socket)> {
    let listener = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
    listener.bind(&SockAddr::unix(path)?)?;
    let socket = Socket::new(path);
    let mode = std::fs::Permissions::from_mode(SOCKET_MODE);
    std::fs::set_permissions(path, mode)?;
    listener.listen(BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok((UnixListener::from_std(listener.into())?, socket))
}

async fn bind(at: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(at).await?;
    let at = listener.local_addr()?;
    Ok((listener, at))
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    #[test]
    fn addresses_are_lists_of_ips_and_localhost() {
        let parse = |texts: &[&str]| {
            let texts: Vec<_> = texts.iter().map(|&text| text.to_owned()).collect();
            Address::parse_all(&texts)
        };
        let ip = |text: &str| Address::Ip(text.parse().unwrap());
        assert_eq!(
            parse(&["localhost,10.0.0.1", "::1", "localhost"]),
            Ok(vec![Address::Localhost, ip("10.0.0.1"), ip("::1")])
        );
        assert_eq!(
            parse(&["example.com"]),
            Err("example.com is not a valid IP".to_owned())
        );
        assert!(parse(&[""]).is_err());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let dir = ScratchDir::new();
        let path = dir.path().join("s");
        // Its owner was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::unix(&path).await.unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOCKET_MODE);
        assert!(Listener::unix(&path).await.unwrap_err().contains("in use"));
        drop(listener);
        assert!(!path.exists());
        // A file that another process put there meanwhile is not removed.
        let listener = Listener::unix(&path).await.unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let theirs = std::os::unix::net::UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
        drop(theirs);
        let file = dir.write("file", "x");
        assert!(Listener::unix(&file).await.is_err());
        assert!(file.exists());
    }

    #[tokio::test]
    async fn a_socket_with_a_full_backlog_is_in_use() {
        let dir = ScratchDir::new();
        let path = dir.path().join("s");
        let busy = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        busy.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        busy.listen(0).unwrap();
        // They are never accepted; the next one would block.
        let waiting: Vec<_> = std::iter::repeat_with(|| {
            let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let connected = socket.connect(&SockAddr::unix(&path).unwrap());
            connected.is_ok().then_some(socket)
        })
        .take_while(Option::is_some)
        .collect();
        assert!(!waiting.is_empty());
        let error = Listener::unix(&path).await.unwrap_err();
        assert!(error.contains("in use"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn only_one_of_several_concurrent_processes_listens() {
        /// Number of threads.
        const THREADS: usize = 4;
        let dir = ScratchDir::new();
        let path = dir.path().join("s");
        for _ in 0..50 {
            // Its owner was killed.
            drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
            let all = std::sync::Barrier::new(THREADS);
            let listening = || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .unwrap();
                all.wait();
                let listener = runtime.block_on(Listener::unix(&path));
                // All threads hold their listeners until all have tried.
                all.wait();
                listener.is_ok()
            };
            let ours = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(listening)).collect();
                let ended = threads.into_iter().map(|it| it.join().unwrap());
                ended.filter(|listens| *listens).count()
            });
            assert_eq!(ours, 1);
            assert!(!path.exists());
        }
    }

    #[tokio::test]
    async fn a_free_port_is_the_same_at_all_addresses() {
        let all = Listener::tcp(&[Address::Localhost], 0).await.unwrap();
        let names: Vec<_> = all.iter().map(Listener::name).collect();
        assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
        let taken: u16 = names[0].parse().unwrap();
        let again = Listener::tcp(&[Address::Ip(Ipv4Addr::LOCALHOST.into())], taken).await;
        let error = again.unwrap_err();
        assert!(
            error.starts_with(&format!("Unable to listen on port {taken}: 127.0.0.1")),
            "{error}"
        );
    }
}
