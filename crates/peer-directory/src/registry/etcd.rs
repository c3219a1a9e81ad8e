//! kube-apiserver's own records in etcd, through which servers and bridges find each other without
//! distinguishing between the two.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rustls::ClientConfig;
use skewbridge_etcd::{Client, Endpoint, EndpointError, Error, Event, LeaseId, Revision};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Activity, Addresses, AdvertisedAddress, RecordChannels, Registry, StatusReporter,
    send_if_changed, wait_until_withdrawn,
};
use crate::address_record::{AddressRecord, TTL_SECONDS};
use crate::identity::Identity;
use crate::served_record::{MAX_RECORDS, RecordError, Records, ServedRecord};

/// A lease lives 15 s: two renewals may fail.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// How often the own records are checked for changes by other programs.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The directory of served records under the prefix. They are not under a lease: a record
/// has to outlive the bridge that wrote it, and the host.
const SERVED_RECORDS_DIRECTORY: &str = "/skewbridge/served/";

/// The prefix of the bridges' own records, under the registry prefix.
const BRIDGE_SUBPREFIX: &str = "/skewbridge";

/// The backoff between retries: the first value doubles each time, up to the second.
const INITIAL_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// How long the withdrawal may take. If it fails, the lease expires.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(3);

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
    /// The etcd lease of the own records.
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

/// The addresses found in each directory.
#[derive(Debug, Default)]
struct FoundAddresses {
    servers: Addresses,
    bridges: Addresses,
}

impl FoundAddresses {
    /// The address of each server: that of its bridge, or else its own. While a bridge
    /// runs, both directories have the bridge's address.
    fn merged(&self) -> Addresses {
        let mut merged = self.servers.clone();
        merged.extend(self.bridges.clone());
        merged
    }
}

/// A directory of address records.
///
/// Since 1.36 every kube-apiserver writes an address for its identity every 10 s, even if it does
/// not take part in peering, and the address may be unreachable for peers: behind a bridge a server
/// often listens on loopback. So bridges write a second record in a directory of their own, which
/// takes precedence. When a bridge stops, its record is removed and the server's own is used.
#[derive(Debug, Clone, Copy)]
enum RecordDirectory {
    /// The directory of kube-apiserver.
    Servers,
    /// The directory of bridges.
    Bridges,
}

impl RecordDirectory {
    fn directory(self, prefix: &str) -> String {
        match self {
            Self::Servers => AddressRecord::directory(prefix),
            Self::Bridges => AddressRecord::directory(&format!("{prefix}{BRIDGE_SUBPREFIX}")),
        }
    }

    fn key(self, prefix: &str, identity: &Identity) -> String {
        self.directory(prefix) + identity.as_str()
    }

    fn advertised(self, address: SocketAddr) -> AdvertisedAddress {
        match self {
            Self::Servers => AdvertisedAddress::by_server(address),
            Self::Bridges => AdvertisedAddress::by_bridge(address),
        }
    }

    fn activity(self) -> Activity {
        match self {
            Self::Servers => Activity::Read,
            Self::Bridges => Activity::ReadBridges,
        }
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

    /// Watches the served records of all servers until an error.
    async fn watch_records(
        &self,
        found: &watch::Sender<Option<Records>>,
    ) -> Result<(), RegistryError> {
        let client = self.client()?;
        let directory = self.served_directory();
        let listing = client.range_prefix(directory.as_bytes()).await?;
        self.records().clear();
        for kv in &listing.kvs {
            self.apply_record(&directory, &kv.key, &kv.value, kv.mod_revision);
        }
        self.send_records(found);
        self.reporter.succeeded(Activity::ReadRecords);
        let from = listing.revision.next();
        let mut watch = client.watch_prefix(directory.as_bytes(), from).await?;
        loop {
            for event in watch.next().await? {
                match event {
                    Event::Put(kv) => {
                        self.apply_record(&directory, &kv.key, &kv.value, kv.mod_revision);
                    }
                    Event::Delete { key, .. } => {
                        if let Some(identity) = identity_from_key(&directory, &key) {
                            self.records().remove(&identity);
                        }
                    }
                }
            }
            self.send_records(found);
        }
    }

    /// A record applies only to the server that its key names.
    fn apply_record(&self, directory: &str, key: &[u8], value: &[u8], revision: Revision) {
        let Some(identity) = identity_from_key(directory, key) else {
            return;
        };
        let mut records = self.records();
        match ServedRecord::decode(value) {
            Ok(record) if record.identity == identity => {
                if records.len() < MAX_RECORDS || records.contains_key(&identity) {
                    records.insert(identity, (Arc::new(record), revision));
                }
            }
            Ok(record) => {
                tracing::warn!(%identity, named = %record.identity, "a served record in etcd names another server, and is ignored");
                records.remove(&identity);
            }
            Err(error @ RecordError::UnknownVersion(_)) => {
                tracing::info!(%identity, %error, "a served record in etcd is ignored");
                records.remove(&identity);
            }
            Err(error) => {
                tracing::warn!(%identity, %error, "a served record in etcd is ignored");
                records.remove(&identity);
            }
        }
    }

    fn send_records(&self, found: &watch::Sender<Option<Records>>) {
        let records = self.records().clone().into_iter();
        let records = records.map(|(identity, (record, _))| (identity, record));
        found.send_replace(Some(records.collect()));
    }

    fn records(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<Identity, (Arc<ServedRecord>, Revision)>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn served_directory(&self) -> String {
        match self.prefix.trim_matches('/') {
            "" => SERVED_RECORDS_DIRECTORY.to_owned(),
            prefix => format!("/{prefix}{SERVED_RECORDS_DIRECTORY}"),
        }
    }

    /// Writes the record of the own server whenever etcd has another one. Ends after the last record
    /// is written.
    async fn publish_records(
        &self,
        own: &mut watch::Receiver<Option<Arc<ServedRecord>>>,
    ) -> Result<(), RegistryError> {
        let client = self.client()?;
        let mut written: Option<Arc<ServedRecord>> = None;
        loop {
            let record = own.borrow_and_update().clone();
            if let Some(record) = record {
                let is_known = (self.records().get(&record.identity))
                    .is_some_and(|(known, _)| known.has_same_content(&record));
                let is_written = written.as_ref().is_some_and(|it| Arc::ptr_eq(it, &record));
                let mut problem = None;
                if !(is_known || is_written && record.bridge_left_at.is_some()) {
                    match record.encode() {
                        Ok(value) => {
                            let key = self.served_directory() + record.identity.as_str();
                            client.put(key.as_bytes(), &value, None).await?;
                        }
                        Err(error) => {
                            if !is_written {
                                tracing::warn!(%error, "the record of what the own server serves is not published");
                            }
                            problem = Some(format!("the served record is not published: {error}"));
                        }
                    }
                }
                match problem {
                    None => self.reporter.succeeded(Activity::PublishRecord),
                    Some(problem) => self.reporter.failed(Activity::PublishRecord, problem),
                }
                if record.bridge_left_at.is_some() {
                    return Ok(());
                }
                written = Some(record);
            }
            tokio::select! {
                changed = own.changed() => if changed.is_err() { return Ok(()) },
                () = sleep(CHECK_INTERVAL) => {}
            }
        }
    }

    /// Removes a record unless it has been written again since it was found to be outdated.
    async fn remove_record(&self, outdated: &ServedRecord) -> Result<(), RegistryError> {
        let identity = &outdated.identity;
        let known = self.records().get(identity).cloned();
        if let Some((record, revision)) = known
            && record.observed_at == outdated.observed_at
        {
            let key = self.served_directory() + identity.as_str();
            let client = self.client()?;
            if client.delete_if_unchanged(key.as_bytes(), revision).await? {
                tracing::info!(%identity, "the served record of a server without a Lease is removed from etcd");
            }
        }
        Ok(())
    }

    /// Names these files in messages.
    #[must_use]
    pub fn with_files(mut self, files: EtcdFiles) -> Self {
        self.files = files;
        self
    }

    fn client(&self) -> Result<Client, RegistryError> {
        Ok(Client::new(self.endpoints.clone(), (self.tls)())?)
    }

    /// Watches the records of one directory until an error.
    async fn watch_addresses(
        &self,
        directory_kind: RecordDirectory,
        found: &watch::Sender<Addresses>,
    ) -> Result<(), RegistryError> {
        let client = self.client()?;
        let directory = directory_kind.directory(&self.prefix);
        let listing = client.range_prefix(directory.as_bytes()).await?;
        let mut known = Addresses::new();
        for kv in &listing.kvs {
            apply_address_record(&mut known, directory_kind, &directory, &kv.key, &kv.value);
        }
        self.update_addresses(directory_kind, known.clone(), found);
        self.reporter.succeeded(directory_kind.activity());
        let from = listing.revision.next();
        let mut watch = client.watch_prefix(directory.as_bytes(), from).await?;
        loop {
            for event in watch.next().await? {
                match event {
                    Event::Put(kv) => {
                        apply_address_record(
                            &mut known,
                            directory_kind,
                            &directory,
                            &kv.key,
                            &kv.value,
                        );
                    }
                    Event::Delete { key, .. } => {
                        if let Some(identity) = identity_from_key(&directory, &key) {
                            known.remove(&identity);
                        }
                    }
                }
            }
            self.update_addresses(directory_kind, known.clone(), found);
        }
    }

    fn update_addresses(
        &self,
        directory_kind: RecordDirectory,
        known: Addresses,
        found: &watch::Sender<Addresses>,
    ) {
        let mut found_addresses = self
            .found_addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match directory_kind {
            RecordDirectory::Servers => found_addresses.servers = known,
            RecordDirectory::Bridges => found_addresses.bridges = known,
        }
        send_if_changed(found, found_addresses.merged());
    }

    /// Publishes and renews the own record until an error.
    async fn publish(&self, record: &AddressRecord) -> Result<(), RegistryError> {
        let client = self.client()?;
        let ttl = Duration::from_secs(TTL_SECONDS.unsigned_abs());
        let value = record.encode();
        loop {
            let lease = client.grant(ttl).await?.id;
            *self.lease.lock().await = Some(lease);
            for directory_kind in [RecordDirectory::Bridges, RecordDirectory::Servers] {
                let key = directory_kind.key(&self.prefix, &record.identity);
                client.put(key.as_bytes(), &value, Some(lease)).await?;
            }
            tracing::info!(identity = %record.identity, address = %record.address, "published in etcd");
            self.reporter.succeeded(Activity::Publish);
            let mut renewed = Instant::now();
            loop {
                sleep(CHECK_INTERVAL).await;
                if renewed.elapsed() >= RENEW_INTERVAL {
                    if client.keep_alive(lease).await?.is_none() {
                        break;
                    }
                    renewed = Instant::now();
                }
                for directory_kind in [RecordDirectory::Bridges, RecordDirectory::Servers] {
                    if self.published_address(directory_kind, &record.identity)
                        != Some(record.address)
                    {
                        let key = directory_kind.key(&self.prefix, &record.identity);
                        client.put(key.as_bytes(), &value, Some(lease)).await?;
                    }
                }
            }
        }
    }

    /// The address of a server in a directory.
    fn published_address(
        &self,
        directory_kind: RecordDirectory,
        identity: &Identity,
    ) -> Option<SocketAddr> {
        let found_addresses = self
            .found_addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = match directory_kind {
            RecordDirectory::Servers => &found_addresses.servers,
            RecordDirectory::Bridges => &found_addresses.bridges,
        };
        known.get(identity).map(|it| it.address)
    }

    /// Withdraws the records under the own lease, and no others.
    async fn withdraw(&self) {
        let Some(lease) = self.lease.lock().await.take() else {
            return;
        };
        let revoke = async { Ok::<_, RegistryError>(self.client()?.revoke(lease).await?) };
        match timeout(WITHDRAWAL_TIMEOUT, revoke).await {
            Ok(Ok(())) => tracing::info!("withdrawn from etcd"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "not withdrawn from etcd: the record expires with its lease");
            }
            Err(_) => tracing::warn!("not withdrawn from etcd: the record expires with its lease"),
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
                tracing::warn!(%error, flag = "--etcd-servers", "cannot publish the served record; peers use the one before it");
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

fn apply_address_record(
    known: &mut Addresses,
    directory_kind: RecordDirectory,
    directory: &str,
    key: &[u8],
    value: &[u8],
) {
    let text = String::from_utf8_lossy(key);
    match AddressRecord::decode(&text, value) {
        // The record names its server; kube-apiserver uses that as well.
        Ok(record) => {
            known.insert(record.identity, directory_kind.advertised(record.address));
        }
        Err(error) => {
            tracing::warn!(key = %text, %error, "the address record of a peer cannot be decoded");
            if let Some(identity) = identity_from_key(directory, key) {
                known.remove(&identity);
            }
        }
    }
}

fn identity_from_key(directory: &str, key: &[u8]) -> Option<Identity> {
    let key = std::str::from_utf8(key).ok()?;
    Identity::named(key.strip_prefix(directory)?.trim_start_matches('/')).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

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
