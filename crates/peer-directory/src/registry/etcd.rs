//! kube-apiserver's own records in etcd, through which servers and bridges find each other without
//! distinguishing between the two.

mod address_records;
mod served_records;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use skewbridge_etcd::{Client, Endpoint, EndpointError, Error, LeaseId, Revision};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep};

use self::address_records::{FoundAddresses, RecordDirectory, apply_address_record};
use super::{Activity, Addresses, RecordChannels, Registry, StatusReporter, wait_until_withdrawn};
use crate::address_record::{AddressRecord, TTL_SECONDS};
use crate::identity::Identity;
use crate::served_record::ServedRecord;

/// How often the records of this bridge are checked for changes by other programs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The key that [`EtcdRegistry::probe`] writes and removes, under the registry prefix.
const PROBE_KEY: &str = "/skewbridge/check";

/// The backoff between retries: the first value doubles each time, up to the second.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// Why an activity failed.
#[derive(Debug, thiserror::Error)]
enum RegistryError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Etcd(Box<Error>),
}

impl From<Error> for RegistryError {
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
    /// The etcd lease of the records of this bridge.
    lease: Mutex<Option<LeaseId>>,
    found_addresses: std::sync::Mutex<FoundAddresses>,
    /// The served records that were found, with the revision of each.
    records: std::sync::Mutex<BTreeMap<Identity, (Arc<ServedRecord>, Revision)>>,
    reporter: Arc<StatusReporter>,
    files: EtcdFiles,
}

/// The files of the TLS configuration, for messages.
#[derive(Debug, Clone, Default)]
pub struct EtcdFiles {
    /// `--etcd-cafile`
    pub ca: Option<PathBuf>,
    /// `--etcd-certfile`
    pub cert: Option<PathBuf>,
}

impl EtcdFiles {
    fn ca(&self) -> String {
        flag("--etcd-cafile", self.ca.as_ref())
    }

    fn cert(&self) -> String {
        flag("--etcd-certfile", self.cert.as_ref())
    }
}

fn flag(flag: &str, file: Option<&PathBuf>) -> String {
    match file {
        Some(file) => format!("{flag} {}", file.display()),
        None => format!("{flag} (not given)"),
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
            found_addresses: std::sync::Mutex::default(),
            records: std::sync::Mutex::default(),
            reporter: Arc::new(StatusReporter::new(
                "etcd",
                &[
                    Activity::Read,
                    Activity::ReadBridges,
                    Activity::ReadRecords,
                    Activity::Publish,
                ],
            )),
            files: EtcdFiles::default(),
        }
    }

    /// Names these files in messages.
    #[must_use]
    pub fn with_files(mut self, files: EtcdFiles) -> Self {
        self.files = files;
        self
    }

    /// Reads all records once, and writes and deletes a key beside them. An error names the flag
    /// and a remedy.
    pub async fn probe(&self) -> Result<Addresses, String> {
        let probed = async {
            let client = self.client()?;
            let mut found = FoundAddresses::default();
            for directory_kind in [RecordDirectory::Servers, RecordDirectory::Bridges] {
                let directory = directory_kind.directory(&self.prefix);
                let listing = client.range_prefix(directory.as_bytes()).await?;
                let known = match directory_kind {
                    RecordDirectory::Servers => &mut found.servers,
                    RecordDirectory::Bridges => &mut found.bridges,
                };
                for kv in &listing.kvs {
                    apply_address_record(known, directory_kind, &directory, &kv.key, &kv.value);
                }
            }
            // Under a lease, so that the key is removed in any case.
            let ttl = Duration::from_secs(TTL_SECONDS.unsigned_abs());
            let lease = client.grant(ttl).await?.id;
            let key = format!("{}{PROBE_KEY}", self.prefix);
            let written = client.put(key.as_bytes(), b"probe", Some(lease)).await;
            let revoked = client.revoke(lease).await;
            written?;
            revoked?;
            Ok::<_, RegistryError>(found.merged())
        };
        probed
            .await
            .map_err(|failure| describe_error(&failure, &self.files))
    }

    fn client(&self) -> Result<Client, RegistryError> {
        Ok(Client::new(self.endpoints.clone(), (self.tls)())?)
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
                let record = AddressRecord {
                    identity,
                    address,
                    generation: 1,
                };
                self.retry_forever(Activity::Publish, || self.publish(&record))
                    .await;
            };
            tokio::select! {
                () = wait_until_withdrawn(&mut own) => {}
                () = publish => {}
                () = self.retry_forever(Activity::Read, || self.watch_addresses(RecordDirectory::Servers, &found)) => {}
                () = self.retry_forever(Activity::ReadBridges, || self.watch_addresses(RecordDirectory::Bridges, &found)) => {}
            }
            self.withdraw().await;
        })
    }

    fn reporter(&self) -> Arc<StatusReporter> {
        self.reporter.clone()
    }

    fn run_records(
        &self,
        channels: RecordChannels,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let RecordChannels {
                own,
                found,
                mut outdated,
            } = channels;
            let remove = async {
                while let Some(record) = outdated.recv().await {
                    if let Err(error) = self.remove_record(&record).await {
                        tracing::debug!(%error, "an outdated served record stays in etcd");
                    }
                }
                std::future::pending::<()>().await;
            };
            let publish = self.retry_until_published(|| {
                let mut own = own.clone();
                async move { self.publish_records(&mut own).await }
            });
            tokio::select! {
                () = publish => {}
                () = self.retry_forever(Activity::ReadRecords, || self.watch_records(&found)) => {}
                () = remove => {}
            }
        })
    }
}

impl EtcdRegistry {
    /// Retries publishing served records after failures, until the last one is written.
    async fn retry_until_published<F: Future<Output = Result<(), RegistryError>>>(
        &self,
        mut start: impl FnMut() -> F,
    ) {
        let mut backoff = INITIAL_BACKOFF;
        let mut last = String::new();
        loop {
            let began = Instant::now();
            let Err(failure) = start().await else {
                return;
            };
            let error = describe_error(&failure, &self.files);
            if began.elapsed() > MAX_BACKOFF {
                backoff = INITIAL_BACKOFF;
                last.clear();
            }
            if error != last {
                tracing::warn!(%error, flag = "--etcd-servers", "cannot publish the served record; peers use the previous one");
                last.clone_from(&error);
            }
            self.reporter.failed(Activity::PublishRecord, error);
            sleep(backoff).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Restarts an activity after each failure, forever.
    async fn retry_forever<F: Future<Output = Result<(), RegistryError>>>(
        &self,
        activity: Activity,
        mut start: impl FnMut() -> F,
    ) {
        let mut backoff = INITIAL_BACKOFF;
        let mut last = String::new();
        loop {
            let began = Instant::now();
            if let Err(failure) = start().await {
                let error = describe_error(&failure, &self.files);
                if began.elapsed() > MAX_BACKOFF || error != last {
                    let what = activity.as_str();
                    tracing::warn!(%error, flag = "--etcd-servers", "cannot {what}; {}", activity.effect_of_failure());
                    last.clone_from(&error);
                }
                self.reporter.failed(activity, error);
            }
            if began.elapsed() > MAX_BACKOFF {
                backoff = INITIAL_BACKOFF;
            }
            sleep(backoff).await;
            backoff = (backoff * 2).min(MAX_BACKOFF);
        }
    }
}

/// The error with the flag and a remedy.
fn describe_error(failure: &RegistryError, files: &EtcdFiles) -> String {
    let error = failure.to_string();
    let is_tls = ["TLS", "certificate", "alert"];
    let is_tls = is_tls.iter().any(|word| error.contains(word));
    let remedy = match failure {
        RegistryError::Etcd(it) => match &**it {
            Error::Connection { .. } if is_tls => format!(
                "; {} must hold the CA that signed etcd's certificate, and {} must be a \
                 certificate that etcd accepts",
                files.ca(),
                files.cert()
            ),
            Error::Connection { .. } => {
                "; start etcd, or correct the address in --etcd-servers".to_owned()
            }
            Error::Malformed { .. } => {
                "; --etcd-servers must name etcd's client port, usually 2379".to_owned()
            }
            Error::Status { .. } => format!(
                "; check what the user of {} may do under --etcd-prefix",
                files.cert()
            ),
            _ => String::new(),
        },
        RegistryError::Endpoint(_) => String::new(),
    };
    format!("--etcd-servers: {error}{remedy}")
}

fn identity_from_key(directory: &str, key: &[u8]) -> Option<Identity> {
    let key = std::str::from_utf8(key).ok()?;
    Identity::named(key.strip_prefix(directory)?.trim_start_matches('/')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::AdvertisedAddress;

    /// Since 1.36 a server behind a bridge writes its own address in addition to that of the bridge.
    #[test]
    fn the_origin_of_an_address_is_its_directory() {
        let identity = Identity::named("apiserver-a").unwrap();
        let [bridge, server] = [1, 2].map(|port| SocketAddr::from(([10, 0, 0, 1], port)));
        let on = |directory_kind: RecordDirectory, address: SocketAddr| {
            let record = AddressRecord {
                identity: identity.clone(),
                address,
                generation: 1,
            };
            let (directory, key) = (
                directory_kind.directory("/r"),
                directory_kind.key("/r", &identity),
            );
            let mut known = Addresses::new();
            apply_address_record(
                &mut known,
                directory_kind,
                &directory,
                key.as_bytes(),
                &record.encode(),
            );
            known
        };
        let mut found_addresses = FoundAddresses {
            servers: on(RecordDirectory::Servers, server),
            bridges: on(RecordDirectory::Bridges, bridge),
        };
        assert_eq!(
            found_addresses.merged()[&identity],
            AdvertisedAddress::by_bridge(bridge)
        );
        found_addresses.bridges.clear();
        assert_eq!(
            found_addresses.merged()[&identity],
            AdvertisedAddress::by_server(server)
        );
    }

    #[test]
    fn an_error_names_the_flag_and_a_remedy() {
        let endpoint: Endpoint = "https://127.0.0.1:2379".parse().unwrap();
        let connection = |cause: &str| {
            RegistryError::from(Error::Connection {
                endpoint: endpoint.clone(),
                cause: cause.to_owned(),
            })
        };
        let table = [
            (
                connection("Connection refused (os error 111)"),
                "start etcd, or correct the address in --etcd-servers",
            ),
            (
                connection("TLS: invalid peer certificate: UnknownIssuer"),
                "--etcd-cafile /pki/etcd/ca.crt must hold the CA",
            ),
            (
                connection("received fatal alert: CertificateRequired"),
                "--etcd-certfile (not given) must be a certificate that etcd accepts",
            ),
            (
                connection(
                    "closed by the server after the TLS handshake; it may have refused the \
                     client certificate (Connection reset by peer (os error 104))",
                ),
                "--etcd-certfile (not given) must be a certificate that etcd accepts",
            ),
            (
                RegistryError::from(Error::Malformed {
                    endpoint: endpoint.clone(),
                    cause: "not gRPC".to_owned(),
                }),
                "etcd's client port",
            ),
        ];
        for (failure, remedy) in table {
            let files = EtcdFiles {
                ca: Some("/pki/etcd/ca.crt".into()),
                cert: None,
            };
            let text = describe_error(&failure, &files);
            assert!(text.starts_with("--etcd-servers: "), "{text}");
            assert!(text.contains("127.0.0.1:2379"), "{text}");
            assert!(text.contains(remedy), "{text}");
        }
    }
}
