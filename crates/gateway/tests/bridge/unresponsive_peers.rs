//! Peers that do not answer: one request detects it and the following requests do not wait. Also
//! the Leases of stopped servers, which would be waited for.

use std::net::TcpListener;
use std::sync::Arc;

use skewbridge_testkit::{Reply, TEST_TIMEOUT, eventually};
use tokio::sync::Notify;

use crate::support::cluster::{
    ClusterFixture, NEW, NEW_PATH, OWN, peer_view, served_by, status_message,
};
use crate::support::fake_apiserver::LEASES;
use crate::support::pki::start;

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";

/// As behind a firewall, or a process under SIGSTOP: the kernel accepts connections, and no process
/// answers.
#[tokio::test]
async fn a_peer_that_does_not_answer_gets_no_requests_until_it_answers() {
    let (cluster, [b], bridge) = ClusterFixture::with_peers(&[], [(B, &[NEW])]).await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    let unresponsive = TcpListener::bind("127.0.0.1:0").unwrap();
    let _address = cluster.publish(B, unresponsive.local_addr().unwrap());
    let message = async || status_message(&cluster.get(&bridge, NEW_PATH).await, 503);
    eventually("requests do not wait for it", TEST_TIMEOUT, async || {
        let answer = cluster.get(&bridge, NEW_PATH).await;
        answer.status == 503 && answer.text().contains("does not answer")
    })
    .await;
    assert!(
        message()
            .await
            .contains("it gets requests again after a successful poll")
    );
    assert_eq!(peer_view(&bridge, B).await["healthy"], false);

    let _address = cluster.publish(B, b.apiserver.server.addr());
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
}

/// The peer's bridge answers pings; the server behind it is stopped.
#[tokio::test]
async fn a_read_that_waits_for_an_unresponsive_server_is_sent_to_another() {
    let peers = [(B, &[NEW][..]), (C, &[NEW][..])];
    let (cluster, [b, c], bridge) = ClusterFixture::with_peers(&[], peers).await;
    let never = Arc::new(Notify::new());
    for unresponsive in [&b, &c] {
        let never = never.clone();
        unresponsive
            .apiserver
            .set_hook(move |_| Some(Reply::new(200).after(&never)));
        let answer = cluster.get(&bridge, NEW_PATH).await;
        let other = if unresponsive.name == B { C } else { B };
        // Either of the peers may have been chosen first.
        assert_eq!(served_by(&answer), other);
        unresponsive.apiserver.remove_hook();
        eventually("the peer is used again", TEST_TIMEOUT, async || {
            peer_view(&bridge, unresponsive.name).await["healthy"] == true
        })
        .await;
    }
}

#[tokio::test]
async fn the_lease_of_a_stopped_server_is_deleted_through_a_peer() {
    for has_ended in [true, false] {
        let cluster = ClusterFixture::new(&[]).await;
        let b = cluster.peer(B, &[NEW]).await;
        b.apiserver.lease(OWN, "one");
        let mut bridge = cluster.start().await;
        if has_ended {
            cluster.local.server.stop_listening().await;
            cluster.local.server.kill_connections().await;
        } else {
            // The server runs, but is not ready.
            cluster
                .local
                .set_hook(|_| Some(Reply::new(500).body("not ready")));
        }
        bridge.finish().await;
        let lease = b.apiserver.object(LEASES, OWN);
        assert_eq!(lease.is_none(), has_ended, "{lease:?}");
        if has_ended {
            let path = format!("{LEASES}/{OWN}");
            let recorded_requests = b.apiserver.server.requests().into_iter();
            let mut recorded_requests =
                recorded_requests.filter(|recorded| recorded.path() == path);
            let groups = |recorded: &skewbridge_testkit::RecordedRequest| {
                recorded
                    .all("x-remote-group")
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
            };
            assert!(recorded_requests.all(|recorded| groups(&recorded) == ["system:masters"]));
        }
    }
}

/// The server has restarted and renewed its Lease before the bridge deletes it.
#[tokio::test]
async fn a_lease_that_is_renewed_in_the_meantime_is_not_deleted() {
    let cluster = ClusterFixture::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    b.apiserver.lease(OWN, "one");
    let mut bridge = start(&cluster.config());
    cluster.wait_for_status(&bridge, NEW_PATH, 200).await;
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    let apiserver = Arc::new(b.apiserver);
    let renewing = apiserver.clone();
    apiserver.set_hook(move |recorded| {
        if recorded.method == "DELETE" {
            renewing.touch_without_event(LEASES, OWN);
        }
        None
    });
    bridge.finish().await;
    assert!(apiserver.object(LEASES, OWN).is_some());
    apiserver.remove_hook();
}
