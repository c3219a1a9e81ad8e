//! Served records in the registry and in `--state-dir`, of the peer B that serves [`NEW`].

use std::sync::Arc;
use std::time::Duration;

use skewbridge_gateway::config::Config;
use skewbridge_peer_directory::registry::{RecordChannels, Registry};
use skewbridge_peer_directory::{Identity, Records, ServedRecord};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::sync::{mpsc, watch};

use crate::support::cluster::{ClusterFixture, NEW, OWN, peer_view};

/// The annotation of a served record on a Lease.
pub(crate) const SERVED_ANNOTATION: &str = "skewbridge.io/served";

pub(crate) const B: &str = "apiserver-b";

/// All records in the registry, as they change, and a sender that publishes one.
pub(crate) fn records(
    cluster: &ClusterFixture,
) -> (
    watch::Receiver<Option<Records>>,
    watch::Sender<Option<Arc<ServedRecord>>>,
) {
    let (publish, own) = watch::channel(None);
    let (found, recorded) = watch::channel(None);
    let registry = cluster.exchange.registry();
    tokio::spawn(async move {
        let (_keep, outdated) = mpsc::channel(1);
        let channels = RecordChannels {
            own,
            found,
            outdated,
        };
        registry.run_records(channels).await;
    });
    (recorded, publish)
}

pub(crate) fn record_of<'a>(all: Option<&'a Records>, name: &str) -> Option<&'a Arc<ServedRecord>> {
    all?.get(&Identity::named(name).unwrap())
}

/// Waits until a bridge has the APIs of B without discovery of B.
pub(crate) async fn wait_until_b_is_known(bridge: &skewbridge_gateway::Handle) {
    eventually("the APIs of B are known", TEST_TIMEOUT, async || {
        let b = peer_view(bridge, B).await;
        let serves = b["servesAlone"].as_array().cloned().unwrap_or_default();
        let resource = "storage.k8s.io/v1alpha1 volumeattributesclasses";
        serves
            .iter()
            .any(|it| it.as_str().is_some_and(|it| it.starts_with(resource)))
    })
    .await;
}

pub(crate) fn with_state_dir(cluster: &ClusterFixture) -> Config {
    let mut config = cluster.config();
    config.peers.state_dir = Some(cluster.pki.path().join("state"));
    config
}

/// The record of B, derived from what a bridge in front of B would publish.
pub(crate) async fn record_of_b(cluster: &ClusterFixture) -> ServedRecord {
    // A bridge in front of a server like B publishes under its own name.
    let other = ClusterFixture::new(&[NEW]).await;
    let (mut recorded, _publish) = records(&other);
    let bridge = other.start().await;
    let all = recorded
        .wait_for(|all| record_of(all.as_ref(), OWN).is_some())
        .await;
    let mut record = ServedRecord::clone(record_of(all.unwrap().as_ref(), OWN).unwrap());
    drop(bridge);
    record.identity = Identity::named(B).unwrap();
    cluster.local.lease(B, "one");
    record
}

/// Makes the departure of B in `--state-dir` older.
pub(crate) async fn age_departure_of_b(cluster: &ClusterFixture, age: Duration) {
    let file = cluster.pki.path().join("state/served").join(B);
    let stored = || ServedRecord::decode(&std::fs::read(&file).ok()?).ok();
    eventually("the departure is stored", TEST_TIMEOUT, async || {
        stored().is_some_and(|it| it.departure.is_some())
    })
    .await;
    let mut record = stored().unwrap();
    let departure = record.departure.as_mut().unwrap();
    departure.since = departure.since.before(age);
    std::fs::write(&file, record.encode().unwrap()).unwrap();
}
