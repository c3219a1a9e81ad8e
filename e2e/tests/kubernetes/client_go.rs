//! client-go behaves through a bridge as it does directly.

use serde_json::{Value, json};
use skewbridge_e2e::{ControlPlane, Node, ServerSpec, User, Via, control_planes, is_since};

/// The checks that every server supports.
const CHECKS: [&str; 5] = [
    "informers",
    "protobuf",
    "server-side-apply",
    "pagination",
    "leader-election",
];

#[tokio::test]
async fn client_go_has_the_same_results_through_the_bridges_of_every_control_plane() {
    for versions in control_planes() {
        println!("plane {versions:?}");
        check_control_plane(&versions).await;
    }
}

async fn check_control_plane(versions: &[String]) {
    // Servers use CBOR only if it is enabled.
    let supports_cbor = |version: &str| is_since(version, 32);
    let servers = versions.iter().map(|version| {
        let server = ServerSpec::of(version);
        if supports_cbor(version) {
            server.gate("CBORServingAndStorage", true)
        } else {
            server
        }
    });
    let servers: Vec<_> = servers.collect();
    let plane = ControlPlane::start(&servers).await;
    let _node = plane.start_node().await;
    for (server, version) in versions.iter().enumerate() {
        for check in CHECKS {
            let seen = same_both_ways(&plane, server, check).await;
            if check == "informers" {
                // Streaming lists were enabled in 1.32, disabled in 1.33, and are enabled
                // since 1.34.
                let method = match version {
                    version if is_since(version, 34) => "streaming list",
                    version if is_since(version, 32) => continue,
                    _ => "list, then watch",
                };
                assert_eq!(seen["ListMethod"], method, "{seen:#}");
            }
        }
        if supports_cbor(version) {
            same_both_ways(&plane, server, "cbor").await;
        }
        commands_have_the_same_result(&plane, server, "exec-spdy").await;
        // kube-apiserver translates v5, the only version that client-go offers, from 1.30 on.
        if is_since(version, 30) {
            commands_have_the_same_result(&plane, server, "exec-websocket").await;
        }
    }
}

/// Commands in a container have the same result directly and through the bridge.
async fn commands_have_the_same_result(plane: &ControlPlane, server: usize, check: &str) {
    let words = ["--pod", Node::POD, "--container", Node::CONTAINER, check];
    let by = async |via| {
        let output = plane.client_go(server, via, User::Admin, Node::NAMESPACE, &words);
        let output = output.await;
        assert_eq!(output.code, Some(0), "{check} {via:?}: {}", output.stderr);
        serde_json::from_str::<Value>(&output.stdout).unwrap()
    };
    let expected = json!({"Bytes": 1 << 20, "Stderr": "err\n", "Code": 7});
    assert_eq!(by(Via::Server).await, expected, "{check}");
    assert_eq!(by(Via::Bridge).await, expected, "{check}");
}

/// Runs a check directly and through the bridge, each in its own namespace, and returns the
/// common result.
async fn same_both_ways(plane: &ControlPlane, server: usize, check: &str) -> Value {
    let by = async |via, way: &str| {
        let namespace = format!("{check}-{server}-{way}");
        let words = [check];
        let output = plane.client_go(server, via, User::Admin, &namespace, &words);
        let output = output.await;
        let version = &plane.servers[server].version;
        assert_eq!(output.code, Some(0), "{version} {via:?}: {}", output.stderr);
        serde_json::from_str::<Value>(&output.stdout).unwrap()
    };
    let (direct, bridged) = tokio::join!(by(Via::Server, "direct"), by(Via::Bridge, "bridged"));
    assert_eq!(bridged, direct, "{check}");
    bridged
}
