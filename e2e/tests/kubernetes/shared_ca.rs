//! A front-proxy certificate that real kube-apiservers take for a user's.

use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, VersionSpecificApi, Via,
    old_and_new_versions,
};
use skewbridge_testkit::{Response, TlsClient, eventually};

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, wait_until_served};

/// kube-apiserver looks at its CA files once a minute at the latest.
const RELOADED: Duration = Duration::from_secs(90);

const HOP: (&str, &str) = ("X-Kubernetes-Peer-Proxied", "true");
const JUNK: (&str, &str) = ("Authorization", "Bearer junk");

async fn ask(
    client: &TlsClient,
    plane: &ControlPlane,
    server: usize,
    via: Via,
    headers: &[(&str, &str)],
) -> Response {
    let mut request = Request::get(VersionSpecificApi::POLICIES.path);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let address = plane.servers[server].at(via);
    let mut client = HttpClient::new(client.clone(), address, Protocol::H2);
    client.send(&request).await.unwrap()
}

/// Requests that a server has taken for those of the front proxy itself.
fn as_front_proxy(plane: &ControlPlane, server: usize) -> usize {
    let log = std::fs::read_to_string(&plane.servers[server].audit_log).unwrap();
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|entry| entry["user"]["username"] == "front-proxy-client")
        .count()
}

#[tokio::test]
async fn a_junk_token_never_becomes_the_identity_of_the_front_proxy() {
    let Some(versions) = old_and_new_versions() else {
        return;
    };
    let servers = versions.map(|version| ServerSpec::of(&version).peer());
    let mut plane = ControlPlane::start(&servers).await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    let (stranger, front_proxy) = (plane.anonymous_client(), plane.front_proxy_client());
    // Distinct CAs: a junk token is refused by the server that serves the API.
    let answer = ask(&stranger, &plane, OLD, Via::Bridge, &[JUNK]).await;
    assert_eq!(answer.status, 401, "{}", answer.text());

    // From now on users and front proxies have a CA in common, in the files of the
    // kube-apiservers and of the bridges.
    plane.share_front_proxy_ca();
    eventually(
        "the new CA file is in use everywhere",
        RELOADED,
        async || {
            let answer = ask(&front_proxy, &plane, NEW, Via::Server, &[JUNK, HOP]).await;
            answer.status == 403 && answer.text().contains(r#"User \"front-proxy-client\""#)
        },
    )
    .await;
    let metrics = async |plane: &ControlPlane| plane.admin_page(OLD, "/metrics").await;
    eventually(
        "peering is switched off",
        PEER_DISCOVERY_TIMEOUT,
        async || metrics(&plane).await.contains("skewbridge_peering 0"),
    )
    .await;

    let before = as_front_proxy(&plane, NEW);
    for headers in [&[JUNK][..], &[("Authorization", "Bearer bob-token")]] {
        let answer = ask(&stranger, &plane, OLD, Via::Bridge, headers).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        // A stranger reads nothing of the control plane.
        assert!(!answer.text().contains(".crt"), "{}", answer.text());
    }
    let answer = ask(&plane.client("admin"), &plane, OLD, Via::Bridge, &[]).await;
    assert_eq!(answer.status, 503);
    for part in ["--proxy-client-cert-file", "--client-ca-file"] {
        assert!(answer.text().contains(part), "{}", answer.text());
    }
    // A bridge that a peer sends such a request to does not believe the hop either.
    let answer = ask(&front_proxy, &plane, NEW, Via::Bridge, &[JUNK, HOP]).await;
    assert_eq!(answer.status, 401, "{}", answer.text());
    let answer = ask(&front_proxy, &plane, NEW, Via::Bridge, &[HOP]).await;
    assert_eq!(answer.status, 401, "{}", answer.text());
    assert_eq!(as_front_proxy(&plane, NEW), before);
    let ready = plane.admin_page(OLD, "/readyz?verbose").await;
    assert!(ready.contains("[+]ca-files ok: in conflict: "), "{ready}");

    // A bridge does not start so.
    plane.stop_bridge(OLD, "TERM");
    plane.start_bridge(OLD);
    let mut bridge = plane.servers[OLD].bridge_process.take().unwrap();
    assert_eq!(bridge.wait().code(), Some(64));
    let log = bridge.log();
    for part in [
        "skewbridge: --proxy-client-cert-file ",
        "front-proxy-client.crt: this certificate also authenticates as a user",
        "--client-ca-file ",
        "ca.crt",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

/// The new server has no bridge, and a client CA file of its own: the bridge of the old one
/// cannot see that file. Only what the servers publish together tells of it.
#[tokio::test]
async fn a_server_that_is_asked_directly_gets_tokens_without_the_certificate() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let direct = ServerSpec::of(&new).native_peer();
    let direct = direct.flag("--client-ca-file=direct-ca.crt");
    let mut plane = ControlPlane::prepare(&[ServerSpec::of(&old).peer(), direct]);
    plane.file("direct-ca.crt", &plane.ca().pem());
    plane.start_all();
    plane.wait_until_ready().await;
    wait_until_served(
        &plane,
        &VersionSpecificApi::POLICIES,
        PEER_DISCOVERY_TIMEOUT,
    )
    .await;
    let (stranger, front_proxy) = (plane.anonymous_client(), plane.front_proxy_client());
    let bob = [("Authorization", "Bearer bob-token")];
    let as_bob = async |plane: &ControlPlane| {
        let answer = ask(&stranger, plane, OLD, Via::Bridge, &bob).await;
        assert_eq!(answer.status, 403, "{}", answer.text());
        assert!(answer.text().contains(r#"User \"bob\""#));
    };
    as_bob(&plane).await;

    let both = plane.ca().pem() + &plane.front_proxy_ca().pem();
    plane.file("direct-ca.crt", &both);
    eventually(
        "the server takes front proxies for users",
        RELOADED,
        async || {
            let answer = ask(&front_proxy, &plane, NEW, Via::Server, &[JUNK, HOP]).await;
            answer.status == 403 && answer.text().contains(r#"User \"front-proxy-client\""#)
        },
    )
    .await;
    let before = as_front_proxy(&plane, NEW);
    for _ in 0..3 {
        let answer = ask(&stranger, &plane, OLD, Via::Bridge, &[JUNK]).await;
        assert_eq!(answer.status, 401, "{}", answer.text());
    }
    as_bob(&plane).await;
    // A user that is asserted, with the certificate.
    let admin = plane.client("admin");
    let answer = ask(&admin, &plane, OLD, Via::Bridge, &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());

    // Servers publish the client CAs of all of them, by which a bridge judges that starts.
    plane.stop_bridge(OLD, "TERM");
    plane.start_bridge(OLD);
    plane.wait_until_ready().await;
    eventually("peering is switched off", RELOADED, async || {
        let answer = ask(&admin, &plane, OLD, Via::Bridge, &[]).await;
        let text = answer.text();
        answer.status == 503 && text.contains("kube-system/extension-apiserver-authentication")
    })
    .await;
    assert_eq!(as_front_proxy(&plane, NEW), before);
}
