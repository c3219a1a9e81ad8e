//! The user stories of KEP-4020 with the real kube-controller-manager: what its namespace
//! and garbage-collector controllers do to objects of an API that only the newest server
//! has, when they connect to the oldest server, and when they connect to its bridge.

use std::time::{Duration, Instant};

use skewbridge_e2e::{Request, Via};
use skewbridge_peer_directory::Identity;
use skewbridge_testkit::eventually;
use tokio::time::sleep;

use crate::controller_fixture::{
    CLAIM_KEY, CLAIMS, CONTROLLER_TIMEOUT, ControllerFixture, DEPENDANT, NAMESPACE_KEY, NAMESPACES,
    OWNER, claim, log_lines, mixed_control_planes, named, unknown_kind,
};

const CLAIM: &str = "/apis/resource.k8s.io/v1/namespaces/controllers/resourceclaims/claim";

/// KEP-4020, Namespace Lifecycle Controller: "the garbage will reappear if a
/// namespace of the same name is recreated".
#[tokio::test]
async fn with_an_old_server_a_deleted_namespace_leaves_garbage_that_reappears() {
    for versions in mixed_control_planes() {
        let fixture = ControllerFixture::start(&versions).await;
        let _controllers = fixture.controllers(Via::Server);
        let uid = fixture.create(CLAIMS, &claim("claim")).await;
        assert_eq!(fixture.delete_the_namespace().await, [NAMESPACE_KEY]);
        let left = fixture.etcd.get(CLAIM_KEY.as_bytes()).await.unwrap();
        assert!(left.is_some());

        fixture.create(NAMESPACES, &named("controllers")).await;
        assert_eq!(fixture.uid(CLAIM).await, Some(uid));
    }
}

#[tokio::test]
async fn with_its_bridge_a_namespace_is_emptied_and_then_deleted() {
    for versions in mixed_control_planes() {
        let fixture = ControllerFixture::start(&versions).await;
        let _controllers = fixture.controllers(Via::Bridge);
        fixture.create(CLAIMS, &claim("claim")).await;
        let deleted_keys = fixture.delete_the_namespace().await;
        assert_eq!(deleted_keys, [CLAIM_KEY, NAMESPACE_KEY]);

        fixture.create(NAMESPACES, &named("controllers")).await;
        assert_eq!(fixture.uid(CLAIM).await, None);
    }
}

/// How long the server is down: longer than earlier releases of the bridge kept its APIs after a
/// restart of the bridge.
const OUTAGE_DURATION: Duration = Duration::from_mins(1);

/// How long the controller takes to retry: its backoff grows while it waits.
const RETRY_TIMEOUT: Duration = Duration::from_mins(3);

/// The only server of the claims is killed, the bridge of the controller restarts, and the
/// controller restarts: it discovers the kind, gets 503, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_its_bridge_a_namespace_waits_while_the_server_of_its_contents_is_down() {
    for versions in mixed_control_planes() {
        let mut fixture = ControllerFixture::start(&versions).await;
        fixture.create(CLAIMS, &claim("claim")).await;
        let identity = Identity::of_hostname(&fixture.plane.servers[fixture.newest].host);
        let record = format!("/registry/skewbridge/served/{identity}");
        eventually(
            "the served record of the server is stored",
            CONTROLLER_TIMEOUT,
            async || fixture.is_in_etcd(&record).await,
        )
        .await;
        let (newest, oldest) = (fixture.newest, fixture.oldest);
        fixture.plane.stop_server(newest, "KILL");
        fixture.plane.stop_bridge(newest, "KILL");
        fixture.plane.stop_bridge(oldest, "KILL");
        fixture.plane.start_bridge(oldest);
        let bridge = fixture.plane.servers[oldest].bridge;
        fixture
            .plane
            .wait_for_ready("the bridge of the oldest", bridge)
            .await;
        let _controllers = fixture.controllers(Via::Bridge);
        let delete = Request::new("DELETE", &format!("{NAMESPACES}/controllers"));
        let (status, answer) = fixture.send(bridge, &delete).await;
        assert_eq!(status, 200, "{answer}");
        let deleted = Instant::now();
        while deleted.elapsed() < OUTAGE_DURATION {
            for key in [NAMESPACE_KEY, CLAIM_KEY] {
                assert!(
                    fixture.is_in_etcd(key).await,
                    "{key} {:?}",
                    deleted.elapsed()
                );
            }
            sleep(Duration::from_secs(1)).await;
        }

        fixture.plane.start_server(newest);
        fixture.plane.start_bridge(newest);
        fixture.plane.wait_until_ready().await;
        eventually("the namespace is deleted", RETRY_TIMEOUT, async || {
            !fixture.is_in_etcd(NAMESPACE_KEY).await
        })
        .await;
        assert!(!fixture.is_in_etcd(CLAIM_KEY).await, "an orphan");
        println!("gone {:.1?} after it was deleted", deleted.elapsed());
    }
}

/// A collector that does not know a kind never collects its dependants.
#[tokio::test]
async fn with_an_old_server_dependants_of_a_deleted_owner_are_never_collected() {
    for versions in mixed_control_planes() {
        let fixture = ControllerFixture::start(&versions).await;
        let controllers = fixture.controllers(Via::Server);
        let owner = fixture.create_owner_and_dependant().await;
        let unknown = unknown_kind(&owner);
        eventually(
            "the collector requests the owner",
            CONTROLLER_TIMEOUT,
            async || log_lines(&controllers, &unknown) > 0,
        )
        .await;

        fixture.delete(OWNER).await;
        let times = log_lines(&controllers, &unknown);
        eventually(
            "the collector requests the owner again",
            CONTROLLER_TIMEOUT,
            async || log_lines(&controllers, &unknown) > times,
        )
        .await;
        fixture.wait_until_garbage_is_collected().await;
        assert!(fixture.uid(DEPENDANT).await.is_some());
    }
}

#[tokio::test]
async fn with_its_bridge_dependants_are_kept_and_collected_with_their_owner() {
    for versions in mixed_control_planes() {
        let fixture = ControllerFixture::start(&versions).await;
        let controllers = fixture.controllers(Via::Bridge);
        fixture.check_owner_and_dependant(&controllers).await;
    }
}

/// KEP-4020, Garbage Collector: "seeing a 404 and assuming an object has been
/// deleted".
#[tokio::test]
async fn with_an_old_server_dependants_of_a_live_owner_are_collected() {
    /// The collector reads discovery every 30 s. If it has just done so, it no longer has the
    /// kinds that the oldest server lacks, and deletes nothing.
    const ATTEMPTS: usize = 3;

    for versions in mixed_control_planes() {
        let fixture = ControllerFixture::start(&versions).await;
        let mut harmed = false;
        for _ in 0..ATTEMPTS {
            let (_vip, controllers) = fixture.redirected_controllers(Via::Server).await;
            let owner = fixture.create_owner_and_dependant().await;
            eventually("the collector decides", CONTROLLER_TIMEOUT, async || {
                harmed = fixture.uid(DEPENDANT).await.is_none();
                harmed || log_lines(&controllers, &unknown_kind(&owner)) > 0
            })
            .await;
            if harmed {
                assert_eq!(fixture.uid(OWNER).await, Some(owner), "the owner exists");
                break;
            }
            fixture.delete(DEPENDANT).await;
            fixture.delete(OWNER).await;
        }
        assert!(harmed);
    }
}

#[tokio::test]
async fn with_its_bridge_dependants_of_a_live_owner_are_kept() {
    for versions in mixed_control_planes() {
        let fixture = ControllerFixture::start(&versions).await;
        let (_vip, controllers) = fixture.redirected_controllers(Via::Bridge).await;
        fixture.check_owner_and_dependant(&controllers).await;
    }
}
