//! Addresses of servers and bridges in etcd, under leases.

use std::net::SocketAddr;
use std::sync::PoisonError;
use std::time::Duration;

use skewbridge_etcd::Event;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::{CHECK_INTERVAL, EtcdRegistry, RegistryError, identity_from_key};
use crate::address_record::{AddressRecord, TTL_SECONDS};
use crate::identity::Identity;
use crate::registry::{Activity, Addresses, AdvertisedAddress, send_if_changed};

/// The TTL of the etcd lease is 15 s: two renewals may fail.
const RENEW_INTERVAL: Duration = Duration::from_secs(5);

/// The prefix of the bridges' own records, under the registry prefix.
const BRIDGE_SUBPREFIX: &str = "/skewbridge";

/// How long the withdrawal may take. If it fails, the lease expires.
const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(3);

/// The addresses found in each directory.
#[derive(Debug, Default)]
pub(super) struct FoundAddresses {
    pub(super) servers: Addresses,
    pub(super) bridges: Addresses,
}

impl FoundAddresses {
    /// The address of each server: that of its bridge, or else its own. While a bridge
    /// runs, both directories have the bridge's address.
    pub(super) fn merged(&self) -> Addresses {
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
pub(super) enum RecordDirectory {
    /// The directory of kube-apiserver.
    Servers,
    /// The directory of bridges.
    Bridges,
}

impl RecordDirectory {
    pub(super) fn directory(self, prefix: &str) -> String {
        match self {
            Self::Servers => AddressRecord::directory(prefix),
            Self::Bridges => AddressRecord::directory(&format!("{prefix}{BRIDGE_SUBPREFIX}")),
        }
    }

    pub(super) fn key(self, prefix: &str, identity: &Identity) -> String {
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
    /// Watches the records of one directory until an error.
    pub(super) async fn watch_addresses(
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

    /// Publishes and renews the record of this bridge until an error.
    pub(super) async fn publish(&self, record: &AddressRecord) -> Result<(), RegistryError> {
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

    /// Withdraws the records under this bridge's etcd lease, and no others.
    pub(super) async fn withdraw(&self) {
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

/// Adds an address record, or removes the address of a server whose record is invalid.
pub(super) fn apply_address_record(
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
