//! Faults of real bridges and servers, and the alerts that fire.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use serde_json::Value;
use skewbridge_e2e::{
    Bridge, ControlPlane, HttpClient, Prometheus, Protocol, Request, ServerSpec, Via, newest,
    versions,
};
use skewbridge_testkit::{Ca, Leaf, TlsClient, Validity, eventually};

use super::{ALERT_TIMEOUT, config, fast_rules};

/// Names in the serving certificate of a bridge.
const SERVING_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "kubernetes.default.svc"];

/// An API that the first server of [`start_peers`] does not serve.
const UNSERVED: &str = "/apis/batch/v1/cronjobs";

/// A serving certificate that expires tomorrow.
fn expiring(ca: &Ca) -> Leaf {
    let tomorrow = SystemTime::now() + Duration::from_hours(24);
    ca.server_valid(&SERVING_NAMES, Validity::Until(tomorrow))
}

fn write_serving_pair(plane: &ControlPlane, leaf: &Leaf) {
    plane.file("bridge.key", &leaf.key_pem);
    plane.file("bridge.crt", &leaf.cert_pem);
}

/// Two servers, of which only the second serves [`UNSERVED`], with bridges that are peers.
async fn start_peers() -> ControlPlane {
    let version = newest(&versions()).to_owned();
    let first = ServerSpec::of(&version)
        .peer()
        .runtime_config("api/all=true,batch/v1=false")
        .bridge_flag("--tls-cert-file=bridge.crt")
        .bridge_flag("--tls-private-key-file=bridge.key")
        .bridge_flag("--max-unauthenticated-connections-per-source=4")
        .bridge_flag("--max-authentication-failures-per-source=4");
    let second = ServerSpec::of(&version).peer();
    let mut plane = ControlPlane::prepare(&[first, second]);
    write_serving_pair(&plane, &plane.ca().server(&SERVING_NAMES));
    plane.start_all();
    plane.wait_until_ready().await;
    wait_for_status(&plane, UNSERVED, 200).await;
    plane
}

/// Waits for the status of a GET through the first bridge.
async fn wait_for_status(plane: &ControlPlane, path: &str, status: u16) {
    eventually(&format!("{path} is {status}"), ALERT_TIMEOUT, async || {
        plane.status(0, Via::Bridge, path).await == status
    })
    .await;
}

/// Bridges besides those of the servers, each with a fault of its own.
struct FaultyBridges {
    /// Its front-proxy certificate is not one that kube-apiserver knows.
    distrusted: Bridge,
    /// In front of both servers.
    balancer: Bridge,
    /// Its user has no rights, so that it never knows the cluster.
    without_rights: Bridge,
}

impl FaultyBridges {
    fn start(plane: &mut ControlPlane) -> Self {
        let etcd = format!("--etcd-servers=http://{}", plane.etcd().address);
        let server = plane.servers[0].address;
        let unknown = Ca::new("unknown").client("front-proxy-client", &[]);
        let certificate = plane.file("unknown.crt", &unknown.cert_pem);
        let key = plane.file("unknown.key", &unknown.key_pem);
        let other = format!("--upstream=https://{}", plane.servers[1].address);
        Self {
            distrusted: plane.spawn_bridge_for(
                server,
                &[
                    &format!("--proxy-client-cert-file={certificate}"),
                    &format!("--proxy-client-key-file={key}"),
                ],
            ),
            balancer: plane.spawn_bridge_for(server, &[&other]),
            without_rights: plane.spawn_bridge_for(
                server,
                &[
                    "--bridge-user=without-rights",
                    "--peer-ca-file=ca.crt",
                    "--apiserver-identity=apiserver-without-rights",
                    &etcd,
                ],
            ),
        }
    }
}

/// A Prometheus that evaluates [`fast_rules`] over the loopback ports of all bridges.
async fn watch(plane: &ControlPlane, faulty: &FaultyBridges) -> Prometheus {
    let targets = [
        plane.servers[0].admin,
        plane.servers[1].admin,
        faulty.distrusted.admin,
        faulty.balancer.admin,
        faulty.without_rights.admin,
    ];
    let targets = targets.map(|it| format!("'{it}'")).join(", ");
    let job = format!("- job_name: skewbridge\n  static_configs: [{{targets: [{targets}]}}]\n");
    let rules = fast_rules(plane).await;
    plane.start_prometheus(&config(&rules, "1s", &job)).await
}

/// Waits until a metric of the first bridge has this value.
async fn wait_for_value(plane: &ControlPlane, prometheus: &Prometheus, metric: &str, value: f64) {
    let series = format!("{metric}{{instance=\"{}\"}}", plane.servers[0].admin);
    eventually(&format!("{series} is {value}"), ALERT_TIMEOUT, async || {
        prometheus.value(&series).await == Some(value)
    })
    .await;
}

/// Whether an alert fires for the bridge with this admin port.
async fn is_firing(prometheus: &Prometheus, bridge: SocketAddr, name: &str) -> bool {
    let instance = bridge.to_string();
    let firing = prometheus.firing_labels().await;
    let mut firing = firing.iter();
    firing.any(|it| it["alertname"] == name && it["instance"] == instance.as_str())
}

/// Asserts that an alert does not fire before its cause.
pub(super) async fn silent(prometheus: &Prometheus, bridge: SocketAddr, name: &str) {
    let fires = is_firing(prometheus, bridge, name).await;
    assert!(!fires, "{name} fires for {bridge} before its cause");
}

pub(super) async fn fires(prometheus: &Prometheus, bridge: SocketAddr, name: &str) {
    let what = format!("the alert {name} for {bridge}");
    eventually(&what, ALERT_TIMEOUT, async || {
        is_firing(prometheus, bridge, name).await
    })
    .await;
}

/// Waits until an alert has fired for a bridge, if only for a moment: after its start a bridge has
/// yet to read OpenAPI.
async fn has_fired(prometheus: &Prometheus, name: &str) {
    let fired =
        format!("count(count_over_time(ALERTS{{alertname=\"{name}\",alertstate=\"firing\"}}[1h]))");
    let what = format!("the alert {name} has fired");
    eventually(&what, ALERT_TIMEOUT, async || {
        prometheus.value(&fired).await.is_some()
    })
    .await;
}

/// Bridges without a fault become silent, and stay it while each peer is polled at least twice.
async fn nothing_fires_at(prometheus: &Prometheus, instances: &[String]) {
    let at = async || -> Vec<Value> {
        let mut firing = prometheus.firing_labels().await;
        firing.retain(|it| instances.iter().any(|own| it["instance"] == own.as_str()));
        firing
    };
    eventually("healthy bridges are silent", ALERT_TIMEOUT, async || {
        at().await.is_empty()
    })
    .await;
    // The staleness falls with each poll.
    let pattern = instances.join("|");
    let polls = format!(
        "min(resets(skewbridge_discovery_staleness_seconds{{instance=~\"{pattern}\"}}[1h]))"
    );
    let before = prometheus.value(&polls).await.unwrap_or_default();
    eventually(
        "healthy peers are polled twice",
        ALERT_TIMEOUT,
        async || {
            let firing = at().await;
            assert!(firing.is_empty(), "{firing:#?}");
            let polled = prometheus.value(&polls).await;
            polled.is_some_and(|it| it >= before + 2.0)
        },
    )
    .await;
}

/// Repeats a request until an alert fires: the alert requires lasting failures.
pub(super) async fn request_until(
    client: &mut HttpClient,
    request: &Request,
    (prometheus, bridge): (&Prometheus, SocketAddr),
    name: &str,
) {
    silent(prometheus, bridge, name).await;
    repeat_until(client, request, (prometheus, bridge), name).await;
}

/// The same for an alert whose cause may have been seen already.
async fn repeat_until(
    client: &mut HttpClient,
    request: &Request,
    (prometheus, bridge): (&Prometheus, SocketAddr),
    name: &str,
) {
    let what = format!("the alert {name} for {bridge}");
    eventually(&what, ALERT_TIMEOUT, async || {
        let _ = client.send(request).await;
        is_firing(prometheus, bridge, name).await
    })
    .await;
}

/// Discovery from a bridge that knows no cluster.
async fn request_discovery(plane: &ControlPlane, faulty: &FaultyBridges, prometheus: &Prometheus) {
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let request = Request::get("/apis").header("Accept", accept);
    let address = faulty.without_rights.address;
    let mut client = HttpClient::new(plane.client("admin"), address, Protocol::H1);
    request_until(
        &mut client,
        &request,
        (prometheus, faulty.without_rights.admin),
        "SkewbridgeDiscoveryFallback",
    )
    .await;
}

/// Guessed tokens, and connections that send nothing.
async fn attack(plane: &ControlPlane, prometheus: &Prometheus) {
    let admin = plane.servers[0].admin;
    silent(prometheus, admin, "SkewbridgeAuthenticationsLimited").await;
    silent(prometheus, admin, "SkewbridgeConnectionsRejected").await;
    let (anonymous, bridge) = (plane.anonymous_client(), plane.servers[0].bridge);
    for guess in 0..12 {
        let headers = format!("Authorization: Bearer guess-{guess}\r\n");
        let _ = raw_get(&anonymous, bridge, &headers).await;
    }
    fires(prometheus, admin, "SkewbridgeAuthenticationsLimited").await;
    let mut idle = Vec::new();
    for _ in 0..12 {
        idle.push(anonymous.connect(bridge, "localhost").await);
    }
    fires(prometheus, admin, "SkewbridgeConnectionsRejected").await;
}

/// A certificate that cannot be read, and one that expires.
async fn replace_certificates(plane: &ControlPlane, prometheus: &Prometheus) {
    let admin = plane.servers[0].admin;
    silent(prometheus, admin, "SkewbridgeFileReloadFailed").await;
    silent(prometheus, admin, "SkewbridgeCertificateExpires").await;
    plane.file("bridge.crt", "not a certificate");
    fires(prometheus, admin, "SkewbridgeFileReloadFailed").await;
    write_serving_pair(plane, &expiring(plane.ca()));
    fires(prometheus, admin, "SkewbridgeCertificateExpires").await;
}

/// A bridge that leaves, and then a bridge and a server that are lost.
async fn lose_the_peer(plane: &mut ControlPlane, faulty: &FaultyBridges, prometheus: &Prometheus) {
    let admin = plane.servers[0].admin;
    let rerouted = "SkewbridgeReroutedRequestsFail";
    silent(prometheus, admin, "SkewbridgePeerWithoutBridge").await;
    silent(prometheus, admin, rerouted).await;
    plane.stop_bridge(1, "TERM");
    fires(prometheus, admin, "SkewbridgePeerWithoutBridge").await;
    plane.start_bridge(1);
    plane.wait_until_ready().await;
    wait_for_value(plane, prometheus, "skewbridge_peers_without_bridge", 0.0).await;
    wait_for_status(plane, UNSERVED, 200).await;
    let lost = [
        (admin, "SkewbridgePeerUnreachable"),
        (admin, "SkewbridgeDiscoveryStale"),
        (faulty.balancer.admin, "SkewbridgeBackendNotReady"),
        (plane.servers[1].admin, "SkewbridgeDown"),
    ];
    // The bridge was away for a moment.
    for (bridge, name) in lost {
        let what = format!("{name} for {bridge} ends");
        eventually(&what, ALERT_TIMEOUT, async || {
            !is_firing(prometheus, bridge, name).await
        })
        .await;
    }
    plane.stop_bridge(1, "KILL");
    plane.stop_server(1, "KILL");
    wait_for_status(plane, UNSERVED, 503).await;
    let mut client = plane.http_client(0, Via::Bridge, Protocol::H1);
    let request = Request::get(UNSERVED);
    repeat_until(&mut client, &request, (prometheus, admin), rerouted).await;
    for (bridge, name) in lost {
        fires(prometheus, bridge, name).await;
    }
}

/// A bridge that restarts repeatedly.
async fn restart(plane: &mut ControlPlane, prometheus: &Prometheus) {
    let started = format!(
        "process_start_time_seconds{{instance=\"{}\"}}",
        plane.servers[0].admin
    );
    let admin = plane.servers[0].admin;
    silent(prometheus, admin, "SkewbridgeRestarting").await;
    for _ in 0..3 {
        let before = prometheus.value(&started).await;
        plane.stop_bridge(0, "KILL");
        plane.start_bridge(0);
        eventually("a scrape after a restart", ALERT_TIMEOUT, async || {
            let now = prometheus.value(&started).await;
            now.is_some() && now != before
        })
        .await;
    }
    fires(prometheus, admin, "SkewbridgeRestarting").await;
}

#[tokio::test]
async fn the_conditions_of_alerts_make_them_fire() {
    let mut plane = start_peers().await;
    let faulty = FaultyBridges::start(&mut plane);
    let prometheus = watch(&plane, &faulty).await;
    wait_for_value(&plane, &prometheus, "skewbridge_ready", 1.0).await;
    fires(
        &prometheus,
        faulty.distrusted.admin,
        "SkewbridgeSelfTestFailed",
    )
    .await;
    has_fired(&prometheus, "SkewbridgeFieldsUnknown").await;
    let healthy = [plane.servers[0].admin, plane.servers[1].admin].map(|it| it.to_string());
    nothing_fires_at(&prometheus, &healthy).await;
    request_discovery(&plane, &faulty, &prometheus).await;
    attack(&plane, &prometheus).await;
    replace_certificates(&plane, &prometheus).await;
    lose_the_peer(&mut plane, &faulty, &prometheus).await;
    restart(&mut plane, &prometheus).await;
    wait_for_value(&plane, &prometheus, "skewbridge_peer_registry_up", 1.0).await;
    let admin = plane.servers[0].admin;
    silent(&prometheus, admin, "SkewbridgeRegistryDown").await;
    plane.etcd().kill();
    fires(&prometheus, admin, "SkewbridgeRegistryDown").await;
}

/// The status of a GET with these header lines.
async fn raw_get(client: &TlsClient, address: SocketAddr, headers: &str) -> std::io::Result<u16> {
    let mut client = client.http1(address).await?;
    let request = format!("GET /api HTTP/1.1\r\nHost: k\r\n{headers}\r\n");
    client.send(request).await?;
    Ok(client.read_response().await?.status)
}
