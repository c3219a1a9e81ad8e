//! Handshakes that are under way. A port of loopback can be reached by every user of the
//! machine: whoever begins handshakes and does not end them must not keep out the one who
//! has a certificate.

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
const PATIENCE: Duration = Duration::from_secs(10);

/// At one time. When there are more, the oldest is given up: that of a client who means it
/// takes milliseconds.
const MAX: usize = 256;

/// From so many on it is looked at whose they are: more than a client with all its
/// threads begins at once, as a rule.
const CROWDED: usize = 32;

/// Between two such looks: the kernel's list may be long.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Both ends of a TCP connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) theirs: SocketAddr,
    pub(super) ours: SocketAddr,
}

/// Handshakes that are under way, in the order of their beginning.
pub(super) struct Handshakes {
    acceptor: TlsAcceptor,
    tasks: JoinSet<Option<TlsStream<Stream>>>,
    begun: VecDeque<Begun>,
    /// From when on it may be looked again whose they are.
    look_from: Instant,
    /// Whether there are some at which nobody has looked.
    has_news: bool,
}

struct Begun {
    task: AbortHandle,
    ends: Option<Ends>,
}

impl Handshakes {
    pub(super) fn new(acceptor: TlsAcceptor) -> Self {
        Self {
            acceptor,
            tasks: JoinSet::new(),
            begun: VecDeque::new(),
            look_from: Instant::now(),
            has_news: false,
        }
    }

    /// Begins one, and gives up others if there are too many.
    pub(super) async fn begin(&mut self, stream: Stream, ends: Option<Ends>) {
        let stream: Stream = Box::new(ReadAhead::new(stream));
        let handshake = self.acceptor.accept(stream);
        let task = self.tasks.spawn(async move {
            match timeout(PATIENCE, handshake).await {
                Ok(Ok(stream)) => Some(stream),
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a client failed its handshake");
                    None
                }
                Err(_) => None,
            }
        });
        self.begun.push_back(Begun { task, ends });
        self.has_news = true;
        if self.is_to_look() && self.look_from <= Instant::now() {
            self.turn_strangers_away().await;
        }
        if self.begun.len() > MAX
            && let Some(oldest) = self.begun.pop_front()
        {
            oldest.task.abort();
        }
    }

    /// The next client who has shown a certificate. It can be given up and asked again.
    pub(super) async fn next(&mut self) -> TlsStream<Stream> {
        loop {
            let is_to_look = self.is_to_look();
            let (id, ended) = tokio::select! {
                joined = self.tasks.join_next_with_id() => match joined {
                    Some(Ok((id, stream))) => (id, stream),
                    Some(Err(error)) => (error.id(), None),
                    None => std::future::pending().await,
                },
                () = sleep_until(self.look_from), if is_to_look => {
                    self.turn_strangers_away().await;
                    continue;
                }
            };
            self.begun.retain(|begun| begun.task.id() != id);
            if let Some(stream) = ended {
                return stream;
            }
        }
    }

    /// In a crowd other users' processes are not talked to. Where it cannot be told whose
    /// they are they stay.
    async fn turn_strangers_away(&mut self) {
        let ours = self.begun.iter().find_map(|begun| Some(begun.ends?.ours));
        let Some(SocketAddr::V4(ours)) = ours else {
            return;
        };
        let begun = Instant::now();
        let owners = tokio::task::spawn_blocking(move || {
            let read = |path| std::fs::read_to_string(path).unwrap_or_default();
            let mut owners = Owners::default();
            owners.read(&read("/proc/self/net/tcp"), &hex(ours, ""));
            // A client may use a socket for both families.
            owners.read(&read("/proc/self/net/tcp6"), &hex(ours, MAPPED));
            owners
        });
        let owners = owners.await.unwrap_or_default();
        let us = rustix::process::geteuid().as_raw();
        self.begun.retain(|begun| {
            let owner = begun.ends.and_then(|ends| owners.of(ends.theirs));
            // Root could do anything, and is not kept away.
            let is_stranger = owner.is_some_and(|uid| uid != us && uid != 0);
            if is_stranger {
                begun.task.abort();
            }
            !is_stranger
        });
        // The longer the list, the more seldom it is read.
        self.look_from = Instant::now() + LOOK_EVERY.max(begun.elapsed() * 4);
        self.has_news = false;
    }

    fn is_to_look(&self) -> bool {
        self.has_news && self.begun.len() > CROWDED
    }
}

/// Whose sockets are connected to one of ours, by the port that they have.
#[derive(Debug, Default)]
struct Owners(HashMap<String, u32>);

impl Owners {
    /// Reads one of the kernel's lists:
    /// `sl local_address rem_address st queues timer retrnsmt uid ...`
    fn read(&mut self, list: &str, ours: &str) {
        for line in list.lines() {
            let mut fields = line.split_ascii_whitespace().skip(1);
            if let (Some(theirs), Some(remote)) = (fields.next(), fields.next())
                && remote == ours
                && let Some(uid) = fields.nth(4).and_then(|uid| uid.parse().ok())
            {
                self.0.insert(theirs.to_owned(), uid);
            }
        }
    }

    fn of(&self, theirs: SocketAddr) -> Option<u32> {
        let SocketAddr::V4(theirs) = theirs else {
            return None;
        };
        let found = self.0.get(&hex(theirs, ""));
        found.or_else(|| self.0.get(&hex(theirs, MAPPED))).copied()
    }
}

/// How the kernel writes `::ffff:` in front of an IPv4 address.
const MAPPED: &str = "0000000000000000FFFF0000";

/// As the kernel writes it: bytes as the machine has them, the port as people do.
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
    fn the_owner_of_the_other_end_is_in_the_kernels_lists() {
        if cfg!(target_endian = "big") {
            return;
        }
        let ours = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 8080);
        let mut owners = Owners::default();
        owners.read(V4, &hex(ours, ""));
        owners.read(V6, &hex(ours, MAPPED));
        let of = |port| owners.of(SocketAddr::from(([127, 0, 0, 1], port)));
        assert_eq!(of(40000), Some(1000));
        assert_eq!(of(40001), Some(1001));
        assert_eq!(of(40002), None);
    }

    #[tokio::test]
    async fn our_own_connections_are_found() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let ours = listener.local_addr().unwrap();
        let client = tokio::net::TcpStream::connect(ours).await.unwrap();
        let SocketAddr::V4(ours) = ours else {
            panic!("{ours}");
        };
        let Ok(v4) = std::fs::read_to_string("/proc/self/net/tcp") else {
            return;
        };
        let mut owners = Owners::default();
        owners.read(&v4, &hex(ours, ""));
        let us = rustix::process::geteuid().as_raw();
        assert_eq!(owners.of(client.local_addr().unwrap()), Some(us));
    }
}
