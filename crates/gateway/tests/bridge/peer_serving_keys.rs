//! A bridge publishes the digest of its serving key, and a peer that presents another key is
//! rejected regardless of the CA that signed it.

use std::sync::Arc;

use skewbridge_gateway::config::{ApiServerIdentity, Config};
use skewbridge_peer_directory::KeyDigest;
use skewbridge_testkit::{ClientAuth, Options, TEST_TIMEOUT, TlsClient, eventually};

use crate::support::cluster::{ClusterFixture, NEW, NEW_PATH, OWN, served_by, status_message};
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::pki::start;
use crate::support::served_records::{record_of, record_of_b, records};

const B: &str = "apiserver-b";

#[tokio::test]
async fn a_peer_that_presents_a_key_other_than_the_published_one_is_rejected() {
    let cluster = ClusterFixture::new(&[]).await;
    let (_recorded, publish) = records(&cluster);
    let mut record = record_of_b(&cluster).await;
    let b = cluster.peer(B, &[NEW]).await;
    record.bridge = Some(b.apiserver.server.addr());
    record.serving_keys = vec![[7; 32]];
    publish.send_replace(Some(Arc::new(record.clone())));
    let bridge = start(&cluster.config());
    cluster.wait_for_status(&bridge, "/readyz", 200).await;
    let message = status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    assert!(
        message.contains("its key is not the one that its bridge has published"),
        "{message}"
    );
    assert!(b.client_requests().is_empty(), "no request was sent to it");

    // The published keys belong to a bridge at another address: the server itself has its own.
    record.bridge = Some(([127, 0, 0, 1], 1).into());
    publish.send_replace(Some(Arc::new(record)));
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
}

/// The configuration of a bridge in front of server B, beside the bridge of the local server.
fn bridge_of_b(cluster: &ClusterFixture, b: &FakeApiServer) -> Config {
    let mut config = cluster.config();
    config.upstream.port = b.server.addr().port();
    config.peers.identity = ApiServerIdentity::Named(B.to_owned());
    let file = |name: &str| cluster.pki.path().join(name);
    config.serving.key_pair.cert = file("b.crt");
    config.serving.key_pair.key = file("b.key");
    config
}

fn new_key(cluster: &ClusterFixture, names: &[&str]) {
    let leaf = cluster.peer_ca.server(names);
    cluster.pki.dir.write("b.key", &leaf.key_pem);
    cluster.pki.dir.write("b.crt", &leaf.cert_pem);
}

#[tokio::test]
async fn a_bridge_publishes_a_new_key_before_it_serves_with_it() {
    let cluster = ClusterFixture::new(&[]).await;
    let options = Options::new(cluster.pki.upstream.clone())
        .clients(ClientAuth::Accept(&cluster.pki.front_proxy_ca));
    let b = FakeApiServer::start(options, B, &[NEW]).await;
    for apiserver in [&cluster.local, &b] {
        apiserver.lease(B, "one");
        apiserver.lease(OWN, "one");
    }
    new_key(&cluster, &["kubernetes.default.svc"]);
    let bridge_of_b = start(&bridge_of_b(&cluster, &b));
    let (mut recorded, _publish) = records(&cluster);
    let keys = |all: &Option<_>| -> Vec<KeyDigest> {
        record_of(all.as_ref(), B).map_or_else(Vec::new, |it| it.serving_keys.clone())
    };
    let first = keys(
        &recorded
            .wait_for(|all| !keys(all).is_empty())
            .await
            .unwrap(),
    );
    assert_eq!(first.len(), 1);
    let bridge = start(&cluster.config());
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;

    new_key(&cluster, &["kubernetes.default.svc", "localhost"]);
    let both = keys(&recorded.wait_for(|all| keys(all).len() == 2).await.unwrap());
    assert_eq!(both[1], first[0]);
    // Before and after the change, over old and new connections.
    let new_key = TlsClient::new(&cluster.peer_ca);
    for is_changed in [false, true] {
        if is_changed {
            eventually(
                "the bridge serves with the new key",
                TEST_TIMEOUT,
                async || new_key.http1(bridge_of_b.address()).await.is_ok(),
            )
            .await;
        }
        for bridge in [&bridge, &start(&cluster.config())] {
            cluster.wait_for_status(bridge, "/readyz", 200).await;
            cluster.wait_for_status(bridge, NEW_PATH, 200).await;
            assert_eq!(served_by(&cluster.get(bridge, NEW_PATH).await), B);
        }
    }
}
