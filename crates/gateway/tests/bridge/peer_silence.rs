//! Peers that do not answer: a request finds out, the next ones do not wait. And servers
//! that have ended, whose Leases would be waited for.

use std::net::TcpListener;
use std::sync::Arc;

use skewbridge_testkit::{PATIENCE, Reply, eventually};
use tokio::sync::Notify;

use crate::bed::start;
use crate::cluster::{Cluster, NEW, NEW_PATH, OWN, peer_view, refusal, served_by};
use crate::standin::LEASES;

const B: &str = "apiserver-b";
const C: &str = "apiserver-c";

/// As behind a firewall, or a process under SIGSTOP: the kernel takes connections, and no
/// program answers.
#[tokio::test]
async fn a_peer_that_does_not_answer_gets_no_requests_until_it_does() {
    let (cluster, [b], bridge) = Cluster::with_peers(&[], [(B, &[NEW])]).await;
    assert_eq!(served_by(&cluster.get(&bridge, NEW_PATH).await), B);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let _address = cluster.publish(B, silent.local_addr().unwrap());
    let message = async || refusal(&cluster.get(&bridge, NEW_PATH).await, 503);
    eventually("requests do not wait for it", PATIENCE, async || {
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

    let _address = cluster.publish(B, b.standin.server.addr());
    cluster.becomes(&bridge, NEW_PATH, 200).await;
}

/// Its bridge answers pings; the server behind it is stopped.
#[tokio::test]
async fn a_read_that_waits_for_a_silent_server_goes_to_another() {
    let peers = [(B, &[NEW][..]), (C, &[NEW][..])];
    let (cluster, [b, c], bridge) = Cluster::with_peers(&[], peers).await;
    let never = Arc::new(Notify::new());
    for silent in [&b, &c] {
        let never = never.clone();
        silent
            .standin
            .hook(move |_| Some(Reply::new(200).after(&never)));
        let answer = cluster.get(&bridge, NEW_PATH).await;
        let other = if silent.name == B { C } else { B };
        // Whichever was asked first.
        assert_eq!(served_by(&answer), other);
        silent.standin.behave();
        eventually("it is used again", PATIENCE, async || {
            peer_view(&bridge, silent.name).await["healthy"] == true
        })
        .await;
    }
}

#[tokio::test]
async fn the_lease_of_a_server_that_has_ended_is_deleted_through_a_peer() {
    for has_ended in [true, false] {
        let cluster = Cluster::new(&[]).await;
        let b = cluster.peer(B, &[NEW]).await;
        b.standin.lease(OWN, "one");
        let mut bridge = cluster.start().await;
        if has_ended {
            cluster.local.server.stop_listening().await;
            cluster.local.server.kill_connections().await;
        } else {
            // It runs, and is not ready.
            cluster
                .local
                .hook(|_| Some(Reply::new(500).body("not ready")));
        }
        bridge.finish().await;
        let lease = b.standin.object(LEASES, OWN);
        assert_eq!(lease.is_none(), has_ended, "{lease:?}");
        if has_ended {
            let path = format!("{LEASES}/{OWN}");
            let asked = b.standin.server.requests().into_iter();
            let mut asked = asked.filter(|seen| seen.path() == path);
            let groups = |seen: &skewbridge_testkit::RecordedRequest| {
                seen.all("x-remote-group")
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
            };
            assert!(asked.all(|seen| groups(&seen) == ["system:masters"]));
        }
    }
}

/// It has started again, and renewed its Lease, before the bridge deletes that.
#[tokio::test]
async fn a_lease_that_is_renewed_again_is_not_deleted() {
    let cluster = Cluster::new(&[]).await;
    let b = cluster.peer(B, &[NEW]).await;
    b.standin.lease(OWN, "one");
    let mut bridge = start(&cluster.config());
    cluster.becomes(&bridge, NEW_PATH, 200).await;
    cluster.local.server.stop_listening().await;
    cluster.local.server.kill_connections().await;
    let standin = Arc::new(b.standin);
    let renewing = standin.clone();
    standin.hook(move |seen| {
        if seen.method == "DELETE" {
            renewing.touch_unheard(LEASES, OWN);
        }
        None
    });
    bridge.finish().await;
    assert!(standin.object(LEASES, OWN).is_some());
    standin.behave();
}
