//! Custom resources are the same on every server: after their definition is deleted, they
//! are not found, immediately and everywhere, even though a peer is known to have served
//! them.

use std::time::Duration;

use serde_json::json;
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, VersionSpecificApi, Via,
    old_and_new_versions,
};
use skewbridge_testkit::eventually;

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, wait_until_served, wait_until_served_by};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const THINGS: &str = "/apis/bounce.example.com/v1/things";

/// For a server to start, or to process a definition.
const SERVER_TIMEOUT: Duration = Duration::from_mins(1);

/// How many requests each bridge gets after the definition is deleted.
const REQUESTS_AFTER_DELETE: usize = 50;

#[tokio::test]
async fn a_deleted_custom_resource_stays_not_found() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let servers = versions.map(|version| ServerSpec::of(&version).peer());
    let mut plane = ControlPlane::prepare(&servers);
    for server in [OLD, NEW] {
        plane.start_server(server);
    }
    for server in [OLD, NEW] {
        plane
            .wait_for_ready("a server", plane.servers[server].address)
            .await;
    }
    create(&plane, DEFINITIONS, &definition()).await;
    for server in [OLD, NEW] {
        eventually("things are served", SERVER_TIMEOUT, async || {
            plane.status(server, Via::Server, THINGS).await == 200
        })
        .await;
    }
    // Now both servers serve it, and each bridge has discovery of the other server.
    for server in [OLD, NEW] {
        plane.start_bridge(server);
    }
    plane.wait_until_ready().await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    wait_until_served_by(
        &plane,
        NEW,
        &VersionSpecificApi::ATTRIBUTES_CLASSES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    let thing = json!({"apiVersion": "bounce.example.com/v1", "kind": "Thing",
        "metadata": {"name": "thing"}});
    create(&plane, THINGS, &thing).await;
    for server in [OLD, NEW] {
        let path = format!("{THINGS}/thing");
        assert_eq!(plane.status(server, Via::Bridge, &path).await, 200);
    }

    let definition = format!("{DEFINITIONS}/things.bounce.example.com");
    let mut client = plane.http_client(OLD, Via::Bridge, Protocol::H2);
    let deleted = client.send(&Request::new("DELETE", &definition)).await;
    assert_eq!(deleted.unwrap().status, 200);
    let mut bridges = [OLD, NEW].map(|server| PolledBridge::new(&plane, server));
    eventually(
        "things are not found any more",
        SERVER_TIMEOUT,
        async || {
            let mut is_missing = true;
            for bridge in &mut bridges {
                let direct = plane.status(bridge.server, Via::Server, THINGS).await;
                let status = bridge.poll().await;
                // The request to the bridge was sent after the one to its server.
                assert!(direct != 404 || status == 404, "{status} after 404");
                is_missing &= status == 404;
            }
            is_missing
        },
    )
    .await;
    for _ in 0..REQUESTS_AFTER_DELETE {
        for bridge in &mut bridges {
            assert_eq!(bridge.poll().await, 404);
        }
    }
    for server in [OLD, NEW] {
        let metrics = plane.admin_page(server, "/metrics").await;
        assert!(!metrics.contains("bounce.example.com"), "{metrics}");
    }
}

/// A bridge that is polled for the custom resources.
struct PolledBridge {
    server: usize,
    client: HttpClient,
    gone: bool,
}

impl PolledBridge {
    fn new(plane: &ControlPlane, server: usize) -> Self {
        Self {
            server,
            client: plane.http_client(server, Via::Bridge, Protocol::H2),
            gone: false,
        }
    }

    /// The status: 200 until it becomes 404.
    async fn poll(&mut self) -> u16 {
        let response = self.client.send(&Request::get(THINGS)).await.unwrap();
        let status = response.status;
        let expected: &[u16] = if self.gone { &[404] } else { &[200, 404] };
        assert!(
            expected.contains(&status),
            "{status} from the bridge of {}: {}",
            self.server,
            response.text()
        );
        self.gone = status == 404;
        status
    }
}

async fn create(plane: &ControlPlane, path: &str, object: &serde_json::Value) {
    let request = Request::new("POST", path).body("application/json", &object.to_string());
    let mut client = plane.http_client(OLD, Via::Server, Protocol::H2);
    let created = client.send(&request).await.unwrap();
    assert_eq!(created.status, 201, "{}", created.text());
}

fn definition() -> serde_json::Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.bounce.example.com"},
        "spec": {"group": "bounce.example.com", "scope": "Cluster",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}]}})
}
