//! TLS handshakes that are pending. Every user of the machine can reach a port of loopback: clients
//! that begin handshakes and do not complete them must not block the client that has a certificate.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use skewbridge_client::Stream;
use skewbridge_stream_io::ReadAhead;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take: the client is on this machine.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Pending handshakes at one time. When there are more, the oldest is aborted: a handshake takes
/// milliseconds.
const MAX_PENDING_HANDSHAKES: usize = 256;

/// Above this number the owners of the connections are looked up. It is more than a client with
/// all its threads usually begins at once.
const OWNER_CHECK_THRESHOLD: usize = 32;

/// Between two such checks: the kernel's list may be long.
const MIN_OWNER_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// The addresses of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketAddrs {
    pub(super) client: SocketAddr,
    pub(super) server: SocketAddr,
}

/// Pending handshakes, oldest first.
pub(super) struct PendingHandshakes {
    acceptor: TlsAcceptor,
    tasks: JoinSet<Option<TlsStream<Stream>>>,
    pending: VecDeque<PendingHandshake>,
    /// The next time at which the owners may be looked up.
    next_owner_check: Instant,
    /// Whether a handshake was added since the last check.
    has_unchecked: bool,
}

struct PendingHandshake {
    task: AbortHandle,
    addrs: Option<SocketAddrs>,
}

impl PendingHandshakes {
    pub(super) fn new(acceptor: TlsAcceptor) -> Self {
        Self {
            acceptor,
            tasks: JoinSet::new(),
            pending: VecDeque::new(),
            next_owner_check: Instant::now(),
            has_unchecked: false,
        }
    }

    /// Begins a handshake, and aborts others if there are too many.
    pub(super) async fn begin(&mut self, stream: Stream, addrs: Option<SocketAddrs>) {
        let stream: Stream = Box::new(ReadAhead::new(stream));
        let handshake = self.acceptor.accept(stream);
        let task = self.tasks.spawn(async move {
            match timeout(HANDSHAKE_TIMEOUT, handshake).await {
                Ok(Ok(stream)) => Some(stream),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a client failed its handshake");
                    None
                }
                Err(_) => None,
            }
        });
        self.pending.push_back(PendingHandshake { task, addrs });
        self.has_unchecked = true;
        if self.needs_owner_check() && self.next_owner_check <= Instant::now() {
            self.abort_other_users().await;
        }
        if self.pending.len() > MAX_PENDING_HANDSHAKES
            && let Some(oldest) = self.pending.pop_front()
        {
            oldest.task.abort();
        }
    }

    /// The next client that has presented a certificate. Cancel safe.
    pub(super) async fn next(&mut self) -> TlsStream<Stream> {
        loop {
            let needs_owner_check = self.needs_owner_check();
            let (id, ended) = tokio::select! {
                joined = self.tasks.join_next_with_id() => match joined {
                    Some(Ok((id, stream))) => (id, stream),
                    Some(Err(error)) => (error.id(), None),
                    None => std::future::pending().await,
                },
                () = sleep_until(self.next_owner_check), if needs_owner_check => {
                    self.abort_other_users().await;
                    continue;
                }
            };
            self.pending.retain(|it| it.task.id() != id);
            if let Some(stream) = ended {
                return stream;
            }
        }
    }

    /// Aborts the handshakes of other users' processes. Those of unknown owners stay.
    async fn abort_other_users(&mut self) {
        let server = self.pending.iter().find_map(|it| Some(it.addrs?.server));
        let Some(SocketAddr::V4(server)) = server else {
            return;
        };
        let started = Instant::now();
        let owners = tokio::task::spawn_blocking(move || {
            let read = |path| std::fs::read_to_string(path).unwrap_or_default();
            let mut owners = SocketOwners::default();
            owners.read(&read("/proc/self/net/tcp"), &hex(server, ""));
            // A client may use a socket for both families.
            owners.read(&read("/proc/self/net/tcp6"), &hex(server, MAPPED));
            owners
        });
        let owners = owners.await.unwrap_or_default();
        let own_uid = rustix::process::geteuid().as_raw();
        self.pending.retain(|it| {
            let owner = it.addrs.and_then(|addrs| owners.of(addrs.client));
            // Root is not rejected: it could read the keys anyway.
            let is_other_user = owner.is_some_and(|uid| uid != own_uid && uid != 0);
            if is_other_user {
                it.task.abort();
            }
            !is_other_user
        });
        // The longer the list, the less often it is read.
        self.next_owner_check =
            Instant::now() + MIN_OWNER_CHECK_INTERVAL.max(started.elapsed() * 4);
        self.has_unchecked = false;
    }

    fn needs_owner_check(&self) -> bool {
        self.has_unchecked && self.pending.len() > OWNER_CHECK_THRESHOLD
    }
}

/// The users whose sockets are connected to the server's address, by the client's address.
#[derive(Debug, Default)]
struct SocketOwners(HashMap<String, u32>);

impl SocketOwners {
    /// Reads one of the kernel's lists:
    /// `sl local_address rem_address st queues timer retrnsmt uid ...`
    fn read(&mut self, list: &str, server: &str) {
        for line in list.lines() {
            let mut fields = line.split_ascii_whitespace().skip(1);
            if let (Some(client), Some(remote)) = (fields.next(), fields.next())
                && remote == server
                && let Some(uid) = fields.nth(4).and_then(|uid| uid.parse().ok())
            {
                self.0.insert(client.to_owned(), uid);
            }
        }
    }

    fn of(&self, client: SocketAddr) -> Option<u32> {
        let SocketAddr::V4(client) = client else {
            return None;
        };
        let found = self.0.get(&hex(client, ""));
        found.or_else(|| self.0.get(&hex(client, MAPPED))).copied()
    }
}

/// How the kernel writes `::ffff:` in front of an IPv4 address.
const MAPPED: &str = "0000000000000000FFFF0000";

/// As the kernel writes it: the address in native byte order, the port in network order.
fn hex(address: SocketAddrV4, before: &str) -> String {
    let ip = u32::from_ne_bytes(Ipv4Addr::octets(address.ip()));
    format!("{before}{ip:08X}:{:04X}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0
   1: 0100007F:9C40 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 2 1 0
   2: 0100007F:1F90 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     7        0 3 1 0
";
    const V6: &str = "\
   0: 0000000000000000FFFF00000100007F:9C41 0000000000000000FFFF00000100007F:1F90 01 \
00000000:00000000 00:00000000 00000000  1001        0 2 1 0
";

    #[test]
    fn the_owner_of_a_client_socket_is_found_in_the_lists_of_the_kernel() {
        if cfg!(target_endian = "big") {
            return;
        }
        let ours = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);
        let mut owners = SocketOwners::default();
        owners.read(V4, &hex(ours, ""));
        owners.read(V6, &hex(ours, MAPPED));
        let of = |port| owners.of(SocketAddr::from(([127, 0, 0, 1], port)));
        assert_eq!(of(40000), Some(1000));
        assert_eq!(of(40001), Some(1001));
        assert_eq!(of(40002), None);
    }

    #[tokio::test]
    async fn connections_of_this_process_are_found() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = listener.local_addr().unwrap();
        let client = tokio::net::TcpStream::connect(ours).await.unwrap();
        let SocketAddr::V4(ours) = ours else {
            panic!("{ours}");
        };
        let Ok(v4) = std::fs::read_to_string("/proc/self/net/tcp") else {
            return;
        };
        let mut owners = SocketOwners::default();
        owners.read(&v4, &hex(ours, ""));
        let us = rustix::process::geteuid().as_raw();
        assert_eq!(owners.of(client.local_addr().unwrap()), Some(us));
    }
}
