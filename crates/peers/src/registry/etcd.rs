//! kube-apiserver's own records in etcd: real servers and bridges find each
//! other here without knowing the difference.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use skewbridge_etcd::{Client, Endpoint, EndpointError, Error, Event, LeaseId};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

use super::{Addresses, Registry, over, tell};
use crate::identity::Identity;
use crate::record::{Record, TTL_SECONDS};

/// A lease lives 15 s: two renewals may fail.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// How often it is looked whether somebody has changed our records.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What our own shelf is called, under the prefix.
const BRIDGES: &str = "/skewbridge";

/// Between two tries: doubled each time, never longer than the second.
const FIRST_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// How long etcd may take to forget us. If it does not, the lease runs out.
const WITHDRAWAL: Duration = Duration::from_secs(3);

/// Why it does not go well.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Etcd(Box<Error>),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Etcd(Box::new(error))
    }
}

/// The TLS configuration as it is now: its files may change.
pub type TlsSource = Arc<dyn Fn() -> Option<Arc<ClientConfig>> + Send + Sync>;

/// A registry of records in etcd.
pub struct EtcdRegistry {
    endpoints: Vec<Endpoint>,
    tls: TlsSource,
    prefix: String,
    /// Under which our records stand.
    lease: Mutex<Option<LeaseId>>,
    shelves: std::sync::Mutex<Shelves>,
}

/// What was found where.
#[derive(Debug, Default)]
struct Shelves {
    servers: Addresses,
    bridges: Addresses,
}

/// Where records stand.
///
/// From 1.36 on every kube-apiserver writes an address for its identity every
/// 10 s, also one that takes no part, and it may be one that no peer can reach:
/// behind a bridge a server often listens on loopback. So bridges write a second
/// record where no server does, and go by that first. If the bridge ends, its
/// record goes, and the server's own counts.
#[derive(Debug, Clone, Copy)]
enum Shelf {
    /// kube-apiserver's own.
    Servers,
    /// Ours.
    Bridges,
}

impl Shelf {
    fn directory(self, prefix: &str) -> String {
        match self {
            Self::Servers => Record::directory(prefix),
            Self::Bridges => Record::directory(&format!("{prefix}{BRIDGES}")),
        }
    }

    fn key(self, prefix: &str, identity: &Identity) -> String {
        self.directory(prefix) + identity.as_str()
    }
}

impl EtcdRegistry {
    /// Records under `PREFIX/peerserverleases` at these endpoints.
    pub fn new(endpoints: Vec<Endpoint>, tls: TlsSource, prefix: String) -> Self {
        Self {
            endpoints,
            tls,
            prefix,
            lease: Mutex::new(None),
            shelves: std::sync::Mutex::default(),
        }
    }

    fn client(&self) -> Result<Client, Trouble> {
        Ok(Client::new(self.endpoints.clone(), (self.tls)())?)
    }

    /// Follows the records of one shelf for as long as it goes well.
    async fn follow(&self, place: Shelf, found: &watch::Sender<Addresses>) -> Result<(), Trouble> {
        let client = self.client()?;
        let directory = place.directory(&self.prefix);
        let listing = client.range_prefix(directory.as_bytes()).await?;
        let mut known = Addresses::new();
        for kv in &listing.kvs {
            learn(&mut known, &directory, &kv.key, &kv.value);
        }
        self.tell(place, known.clone(), found);
        let from = listing.revision.next();
        let mut watch = client.watch_prefix(directory.as_bytes(), from).await?;
        loop {
            for event in watch.next().await? {
                match event {
                    Event::Put(kv) => learn(&mut known, &directory, &kv.key, &kv.value),
                    Event::Delete { key, .. } => {
                        if let Some(identity) = named_by(&directory, &key) {
                            known.remove(&identity);
                        }
                    }
                }
            }
            self.tell(place, known.clone(), found);
        }
    }

    fn tell(&self, place: Shelf, known: Addresses, found: &watch::Sender<Addresses>) {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        match place {
            Shelf::Servers => shelves.servers = known,
            Shelf::Bridges => shelves.bridges = known,
        }
        let mut merged = shelves.servers.clone();
        merged.extend(shelves.bridges.clone());
        tell(found, merged);
    }

    /// Keeps our record there for as long as it goes well.
    async fn publish(&self, record: &Record) -> Result<(), Trouble> {
        let client = self.client()?;
        let ttl = Duration::from_secs(TTL_SECONDS.unsigned_abs());
        let value = record.encode();
        loop {
            let lease = client.grant(ttl).await?.id;
            *self.lease.lock().await = Some(lease);
            for place in [Shelf::Bridges, Shelf::Servers] {
                let key = place.key(&self.prefix, &record.identity);
                client.put(key.as_bytes(), &value, Some(lease)).await?;
            }
            tracing::info!(identity = %record.identity, address = %record.address, "published in etcd");
            let mut renewed = Instant::now();
            loop {
                sleep(LOOK_EVERY).await;
                if renewed.elapsed() >= RENEW_EVERY {
                    if client.keep_alive(lease).await?.is_none() {
                        break;
                    }
                    renewed = Instant::now();
                }
                for place in [Shelf::Bridges, Shelf::Servers] {
                    if self.at(place, &record.identity) != Some(record.address) {
                        let key = place.key(&self.prefix, &record.identity);
                        client.put(key.as_bytes(), &value, Some(lease)).await?;
                    }
                }
            }
        }
    }

    /// What a shelf says of a server now.
    fn at(&self, place: Shelf, identity: &Identity) -> Option<SocketAddr> {
        let shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let known = match place {
            Shelf::Servers => &shelves.servers,
            Shelf::Bridges => &shelves.bridges,
        };
        known.get(identity).copied()
    }

    /// Takes our records back, and nobody else's: what stands under our lease.
    async fn withdraw(&self) {
        let Some(lease) = self.lease.lock().await.take() else {
            return;
        };
        let revoke = async { Ok::<_, Trouble>(self.client()?.revoke(lease).await?) };
        match timeout(WITHDRAWAL, revoke).await {
            Ok(Ok(())) => tracing::info!("withdrawn from etcd"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "not withdrawn from etcd: the record runs out by itself");
            }
            Err(_) => tracing::warn!("not withdrawn from etcd: the record runs out by itself"),
        }
    }
}

impl std::fmt::Debug for EtcdRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdRegistry")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl Registry for EtcdRegistry {
    fn run(
        &self,
        mut own: watch::Receiver<Option<(Identity, SocketAddr)>>,
        found: watch::Sender<Addresses>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let record = own.borrow_and_update().clone();
            let publish = async {
                let Some((identity, address)) = record else {
                    return std::future::pending().await;
                };
                let record = Record {
                    identity,
                    address,
                    generation: 1,
                };
                keep_trying("publish", || self.publish(&record)).await;
            };
            tokio::select! {
                () = over(&mut own) => {}
                () = publish => {}
                () = keep_trying("follow", || self.follow(Shelf::Servers, &found)) => {}
                () = keep_trying("follow", || self.follow(Shelf::Bridges, &found)) => {}
            }
            self.withdraw().await;
        })
    }
}

/// Starts something again whenever it fails, for ever.
async fn keep_trying<F: Future<Output = Result<(), Trouble>>>(
    what: &'static str,
    mut start: impl FnMut() -> F,
) {
    let mut backoff = FIRST_BACKOFF;
    let mut last = String::new();
    loop {
        let began = Instant::now();
        if let Err(error) = start().await {
            let said = error.to_string();
            if said != last {
                tracing::warn!(%error, flag = "--etcd-servers", "cannot {what} peer addresses; what is known stays known");
                last = said;
            }
        }
        if began.elapsed() > MAX_BACKOFF {
            backoff = FIRST_BACKOFF;
            last.clear();
        }
        sleep(backoff).await;
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}

fn learn(known: &mut Addresses, directory: &str, key: &[u8], value: &[u8]) {
    let text = String::from_utf8_lossy(key);
    match Record::decode(&text, value) {
        // Whose it is, is what the record says; real servers go by that as well.
        Ok(record) => {
            known.insert(record.identity, record.address);
        }
        Err(error) => {
            tracing::warn!(key = %text, %error, "a peer's record cannot be read");
            if let Some(identity) = named_by(directory, key) {
                known.remove(&identity);
            }
        }
    }
}

fn named_by(directory: &str, key: &[u8]) -> Option<Identity> {
    let key = std::str::from_utf8(key).ok()?;
    Identity::named(key.strip_prefix(directory)?.trim_start_matches('/')).ok()
}
