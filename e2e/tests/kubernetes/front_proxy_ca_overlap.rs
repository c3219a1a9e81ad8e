//! A front-proxy certificate that real kube-apiservers accept as that of a user.

use std::time::Duration;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, HttpClient, Protocol, Request, ServerSpec, VersionSpecificApi, Via,
    old_and_new_versions,
};
use skewbridge_testkit::{Response, TlsClient, eventually};

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT, wait_until_served};

/// kube-apiserver reloads its CA files at least once a minute.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(90);

const HOP: (&str, &str) = ("X-Kubernetes-Peer-Proxied", "true");
const JUNK: (&str, &str) = ("Authorization", "Bearer junk");

async fn send(
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

/// The requests that a server has authenticated as the front proxy itself.
fn front_proxy_requests(plane: &ControlPlane, server: usize) -> usize {
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
    let (anonymous, front_proxy) = (plane.anonymous_client(), plane.front_proxy_client());
    // Distinct CAs: the server that serves the API rejects an invalid token.
    let answer = send(&anonymous, &plane, OLD, Via::Bridge, &[JUNK]).await;
    assert_eq!(answer.status, 401, "{}", answer.text());

    // From now on users and front proxies have a CA in common, in the files of the
    // kube-apiservers and of the bridges.
    plane.share_front_proxy_ca();
    eventually(
        "the new CA file is in use everywhere",
        RELOAD_TIMEOUT,
        async || {
            let answer = send(&front_proxy, &plane, NEW, Via::Server, &[JUNK, HOP]).await;
            answer.status == 403 && answer.text().contains(r#"User \"front-proxy-client\""#)
        },
    )
    .await;
    let metrics = async |plane: &ControlPlane| plane.admin_page(OLD, "/metrics").await;
    eventually("peering is disabled", PEER_DISCOVERY_TIMEOUT, async || {
        metrics(&plane)
            .await
            .contains("skewbridge_peering_enabled 0")
    })
    .await;

    let before = front_proxy_requests(&plane, NEW);
    for headers in [&[JUNK][..], &[("Authorization", "Bearer bob-token")]] {
        let answer = send(&anonymous, &plane, OLD, Via::Bridge, headers).await;
        assert_eq!(answer.status, 503, "{}", answer.text());
        // An unauthenticated client reads nothing of the control plane.
        assert!(!answer.text().contains(".crt"), "{}", answer.text());
    }
    let answer = send(&plane.client("admin"), &plane, OLD, Via::Bridge, &[]).await;
    assert_eq!(answer.status, 503);
    for part in ["--proxy-client-cert-file", "--client-ca-file"] {
        assert!(answer.text().contains(part), "{}", answer.text());
    }
    // A bridge that receives such a request from a peer does not accept the hop header either.
    let answer = send(&front_proxy, &plane, NEW, Via::Bridge, &[JUNK, HOP]).await;
    assert_eq!(answer.status, 401, "{}", answer.text());
    let answer = send(&front_proxy, &plane, NEW, Via::Bridge, &[HOP]).await;
    assert_eq!(answer.status, 401, "{}", answer.text());
    assert_eq!(front_proxy_requests(&plane, NEW), before);
    let ready = plane.admin_page(OLD, "/readyz?verbose").await;
    assert!(ready.contains("[+]ca-files ok: in conflict: "), "{ready}");

    // A bridge does not start in this configuration.
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

/// The new server has no bridge, and its own client CA file, which the bridge of the old one cannot
/// read. Only the client CAs that the servers publish show it.
#[tokio::test]
async fn a_directly_contacted_server_gets_tokens_without_the_certificate() {
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
    let (anonymous, front_proxy) = (plane.anonymous_client(), plane.front_proxy_client());
    let bob = [("Authorization", "Bearer bob-token")];
    let as_bob = async |plane: &ControlPlane| {
        let answer = send(&anonymous, plane, OLD, Via::Bridge, &bob).await;
        assert_eq!(answer.status, 403, "{}", answer.text());
        assert!(answer.text().contains(r#"User \"bob\""#));
    };
    as_bob(&plane).await;

    let both = plane.ca().pem() + &plane.front_proxy_ca().pem();
    plane.file("direct-ca.crt", &both);
    eventually(
        "the server authenticates front proxies as users",
        RELOAD_TIMEOUT,
        async || {
            let answer = send(&front_proxy, &plane, NEW, Via::Server, &[JUNK, HOP]).await;
            answer.status == 403 && answer.text().contains(r#"User \"front-proxy-client\""#)
        },
    )
    .await;
    let before = front_proxy_requests(&plane, NEW);
    for _ in 0..3 {
        let answer = send(&anonymous, &plane, OLD, Via::Bridge, &[JUNK]).await;
        assert_eq!(answer.status, 401, "{}", answer.text());
    }
    as_bob(&plane).await;
    // An asserted user, with the certificate.
    let admin = plane.client("admin");
    let answer = send(&admin, &plane, OLD, Via::Bridge, &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());

    // Servers publish the client CAs of all of them, which a starting bridge checks.
    plane.stop_bridge(OLD, "TERM");
    plane.start_bridge(OLD);
    plane.wait_until_ready().await;
    eventually("peering is disabled", RELOAD_TIMEOUT, async || {
        let answer = send(&admin, &plane, OLD, Via::Bridge, &[]).await;
        let text = answer.text();
        answer.status == 503 && text.contains("kube-system/extension-apiserver-authentication")
    })
    .await;
    assert_eq!(front_proxy_requests(&plane, NEW), before);
}
