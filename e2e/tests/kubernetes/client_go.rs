//! What users of client-go do works through a bridge as it does straight.

use serde_json::{Value, json};
use skewbridge_e2e::{ControlPlane, Node, ServerSpec, User, Via, control_planes, is_since};

/// What every server can do.
const CHECKS: [&str; 5] = ["informers", "protobuf", "apply", "pages", "election"];

#[tokio::test]
async fn client_go_sees_every_plane_the_same_through_its_bridges() {
    for versions in control_planes() {
        println!("plane {versions:?}");
        judge(&versions).await;
    }
}

async fn judge(versions: &[String]) {
    // Servers speak CBOR only when they are told to.
    let speaks_cbor = |version: &str| is_since(version, 32);
    let servers = versions.iter().map(|version| {
        let server = ServerSpec::of(version);
        if speaks_cbor(version) {
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
            let seen = both(&plane, server, check).await;
            if check == "informers" {
                // Streaming lists came on in 1.32, went off in 1.33, and are on
                // for good since 1.34.
                let way = match version {
                    version if is_since(version, 34) => "streaming list",
                    version if is_since(version, 32) => continue,
                    _ => "list, then watch",
                };
                assert_eq!(seen["Way"], way, "{seen:#}");
            }
        }
        if speaks_cbor(version) {
            both(&plane, server, "cbor").await;
        }
        commands_run(&plane, server, "exec-spdy").await;
        // kube-apiserver translates v5, which is all that client-go offers,
        // from 1.30 on.
        if is_since(version, 30) {
            commands_run(&plane, server, "exec-websocket").await;
        }
    }
}

/// Commands run in a container the same by both ways.
async fn commands_run(plane: &ControlPlane, server: usize, check: &str) {
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

/// Does the same by both ways, each in a namespace of its own, and returns what
/// both saw.
async fn both(plane: &ControlPlane, server: usize, check: &str) -> Value {
    let by = async |via, way: &str| {
        let namespace = format!("{check}-{server}-{way}");
        let words = [check];
        let output = plane.client_go(server, via, User::Admin, &namespace, &words);
        let output = output.await;
        let version = &plane.servers[server].version;
        assert_eq!(output.code, Some(0), "{version} {via:?}: {}", output.stderr);
        serde_json::from_str::<Value>(&output.stdout).unwrap()
    };
    let (straight, bridged) = tokio::join!(by(Via::Server, "straight"), by(Via::Bridge, "bridged"));
    assert_eq!(bridged, straight, "{check}");
    bridged
}
