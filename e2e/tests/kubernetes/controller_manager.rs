//! The user stories of KEP-4020 with the real kube-controller-manager: what its namespace
//! and garbage-collector controllers do to objects of an API that only the newest server
//! has, when they connect to the oldest server, and when they connect to its bridge.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Process, Protocol, Request, ServerSpec, User, Via, VirtualIp,
    control_planes, is_since, newest, oldest,
};
use skewbridge_etcd::{Client, Event};
use skewbridge_peer_directory::Identity;
use skewbridge_testkit::eventually;
use tokio::time::{sleep, timeout};

/// For an operation that takes seconds on an idle machine.
const CONTROLLER_TIMEOUT: Duration = Duration::from_mins(1);

const CONTROLLERS: [&str; 2] = ["namespace-controller", "garbage-collector-controller"];

/// The APIs of the servers other than the newest.
const WITHOUT_CLAIMS: &str = "api/all=true,resource.k8s.io/v1=false,\
    resource.k8s.io/v1beta2=false,resource.k8s.io/v1beta1=false,resource.k8s.io/v1alpha3=false";

const NAMESPACES: &str = "/api/v1/namespaces";
const CONFIG_MAPS: &str = "/api/v1/namespaces/controllers/configmaps";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/controllers/resourceclaims";

const CLAIM: &str = "/apis/resource.k8s.io/v1/namespaces/controllers/resourceclaims/claim";
const OWNER: &str = "/apis/resource.k8s.io/v1/namespaces/controllers/resourceclaims/owner";
const DEPENDANT: &str = "/api/v1/namespaces/controllers/configmaps/dependant";

/// The keys in etcd.
const CLAIM_KEY: &str = "/registry/resourceclaims/controllers/claim";
const NAMESPACE_KEY: &str = "/registry/namespaces/controllers";

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
        let gone = fixture.delete_the_namespace().await;
        assert_eq!(gone, [CLAIM_KEY, NAMESPACE_KEY]);

        fixture.create(NAMESPACES, &named("controllers")).await;
        assert_eq!(fixture.uid(CLAIM).await, None);
    }
}

/// How long the server is down: longer than a restarted bridge once remembered it.
const OUTAGE_DURATION: Duration = Duration::from_mins(1);

/// How long the controller takes to retry: its backoff grows while it waits.
const RETRY_TIMEOUT: Duration = Duration::from_mins(3);

/// The only server of the claims is killed, the bridge of the controller restarts, and the
/// controller restarts: it sees the kind, gets 503, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_its_bridge_a_namespace_waits_while_the_server_of_its_contents_is_down() {
    for versions in mixed_control_planes() {
        let mut fixture = ControllerFixture::start(&versions).await;
        fixture.create(CLAIMS, &claim("claim")).await;
        let identity = Identity::of_hostname(&fixture.plane.servers[fixture.newest].host);
        let record = format!("/registry/skewbridge/served/{identity}");
        eventually(
            "what it serves is recorded",
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
        eventually("the namespace goes", RETRY_TIMEOUT, async || {
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
        eventually("the owner is looked for", CONTROLLER_TIMEOUT, async || {
            log_lines(&controllers, &unknown) > 0
        })
        .await;

        fixture.delete(OWNER).await;
        let times = log_lines(&controllers, &unknown);
        eventually(
            "the owner is looked for again",
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
    /// The collector reads discovery every 30 s. If it has just done so, it no longer knows
    /// the kinds that the oldest server lacks, and deletes nothing.
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
                assert_eq!(fixture.uid(OWNER).await, Some(owner), "the owner lives");
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

/// The control planes on which the newest server can have its own API.
fn mixed_control_planes() -> Vec<Vec<String>> {
    let mut control_planes = control_planes();
    // This version of resource.k8s.io is served since 1.34.
    control_planes.retain(|it| newest(it) != oldest(it) && is_since(newest(it), 34));
    control_planes
}

/// A control plane whose newest server alone has claims.
struct ControllerFixture {
    plane: ControlPlane,
    oldest: usize,
    newest: usize,
    etcd: Client,
}

impl ControllerFixture {
    async fn start(versions: &[String]) -> Self {
        println!("plane {versions:?}");
        let servers = versions.iter().map(|version| {
            let server = ServerSpec::of(version).peer();
            if version == newest(versions) {
                server
            } else {
                server.runtime_config(WITHOUT_CLAIMS)
            }
        });
        let mut plane = ControlPlane::start(&servers.collect::<Vec<_>>()).await;
        let endpoint = format!("http://{}", plane.etcd().address);
        let position = |version| versions.iter().position(|it| it == version).unwrap();
        let fixture = Self {
            plane,
            oldest: position(oldest(versions)),
            newest: position(newest(versions)),
            etcd: Client::new(vec![endpoint.parse().unwrap()], None).unwrap(),
        };
        fixture.create(NAMESPACES, &named("controllers")).await;
        let oldest = &fixture.plane.servers[fixture.oldest];
        let (status, _) = fixture.send(oldest.address, &Request::get(CLAIMS)).await;
        assert_eq!(status, 404);
        eventually(
            "the bridges know each other",
            CONTROLLER_TIMEOUT,
            async || {
                let (status, _) = fixture.send(oldest.bridge, &Request::get(CLAIMS)).await;
                status == 200
            },
        )
        .await;
        fixture
    }

    /// Starts controllers that know only the oldest server or its bridge.
    fn controllers(&self, via: Via) -> Process {
        let plane = &self.plane;
        plane.start_controller_manager(self.oldest, via, &CONTROLLERS)
    }

    /// Starts controllers that have learnt the kinds from the newest server, and whose
    /// connections then go to the oldest: a load balancer does that.
    async fn redirected_controllers(&self, via: Via) -> (VirtualIp, Process) {
        let plane = &self.plane;
        let vip = VirtualIp::start(plane.servers[self.newest].at(via)).await;
        let controllers = plane.start_controller_manager_at(vip.address, &CONTROLLERS);
        eventually(
            "the controllers know the cluster",
            CONTROLLER_TIMEOUT,
            async || log_lines(&controllers, &["all resource monitors have synced"]) > 0,
        )
        .await;
        vip.fail_over(plane.servers[self.oldest].at(via)).await;
        (vip, controllers)
    }

    /// kubectl deletes the namespace and waits until it is gone. Returns the keys
    /// of the namespace and the claim that were deleted from etcd, in order.
    async fn delete_the_namespace(&self) -> Vec<String> {
        let now = self.etcd.range_prefix(NAMESPACE_KEY.as_bytes()).await;
        let from = now.unwrap().revision.next();
        let mut watch = self.etcd.watch_prefix(b"/registry/", from).await.unwrap();

        let words = ["delete", "namespace", "controllers", "--timeout=1m"];
        let server = self.newest;
        let output = self.plane.kubectl(server, Via::Server, User::Admin, &words);
        let output = output.await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);

        let mut gone: Vec<String> = Vec::new();
        while gone.last().is_none_or(|key| key != NAMESPACE_KEY) {
            for event in timeout(CONTROLLER_TIMEOUT, watch.next())
                .await
                .unwrap()
                .unwrap()
            {
                if let Event::Delete { key, .. } = event
                    && (key == CLAIM_KEY || key == NAMESPACE_KEY)
                {
                    gone.push(String::from_utf8_lossy(&key).into_owned());
                }
            }
        }
        gone
    }

    /// Creates a claim, and a `ConfigMap` that it owns. Returns the claim's UID.
    async fn create_owner_and_dependant(&self) -> String {
        let uid = self.create(CLAIMS, &claim("owner")).await;
        let owner = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "name": "owner", "uid": uid});
        self.create(CONFIG_MAPS, &owned("dependant", &owner)).await;
        uid
    }

    async fn check_owner_and_dependant(&self, controllers: &Process) {
        let owner = self.create_owner_and_dependant().await;
        eventually(
            "the collector has seen the owner",
            CONTROLLER_TIMEOUT,
            async || {
                let words = ["GraphBuilder process object", &owner, "virtual=false"];
                log_lines(controllers, &words) > 0
            },
        )
        .await;
        self.wait_until_garbage_is_collected().await;
        assert!(self.uid(DEPENDANT).await.is_some());

        self.delete(OWNER).await;
        eventually("the dependant goes", CONTROLLER_TIMEOUT, async || {
            self.uid(DEPENDANT).await.is_none()
        })
        .await;
    }

    /// Waits until an object has been created and collected that every collector knows as
    /// garbage: it has been working all the time.
    async fn wait_until_garbage_is_collected(&self) {
        let nothing = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nothing",
            "uid": "00000000-0000-4000-8000-000000000000"});
        self.create(CONFIG_MAPS, &owned("garbage", &nothing)).await;
        let path = format!("{CONFIG_MAPS}/garbage");
        eventually("garbage is collected", CONTROLLER_TIMEOUT, async || {
            self.uid(&path).await.is_none()
        })
        .await;
    }

    async fn is_in_etcd(&self, key: &str) -> bool {
        self.etcd.get(key.as_bytes()).await.unwrap().is_some()
    }

    /// Creates an object at the newest server; returns its UID.
    async fn create(&self, path: &str, object: &Value) -> String {
        let request = Request::new("POST", path).body("application/json", &object.to_string());
        let (status, created) = self.send_newest(&request).await;
        assert_eq!(status, 201, "{path}: {created}");
        created["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The UID of an object at the newest server; `None` if it does not exist.
    async fn uid(&self, path: &str) -> Option<String> {
        let (status, object) = self.send_newest(&Request::get(path)).await;
        assert!(matches!(status, 200 | 404), "{path}: {object}");
        object["metadata"]["uid"].as_str().map(str::to_owned)
    }

    /// Deletes an object at the newest server immediately.
    async fn delete(&self, path: &str) {
        let (status, answer) = self.send_newest(&Request::new("DELETE", path)).await;
        assert_eq!(status, 200, "{path}: {answer}");
        assert_eq!(self.uid(path).await, None, "{path}");
    }

    async fn send_newest(&self, request: &Request) -> (u16, Value) {
        let newest = self.plane.servers[self.newest].address;
        self.send(newest, request).await
    }

    async fn send(&self, to: SocketAddr, request: &Request) -> (u16, Value) {
        let mut client = HttpClient::new(self.plane.client("admin"), to, Protocol::H2);
        let response = client.send(request).await.unwrap();
        let body = serde_json::from_slice(&response.body).unwrap_or_default();
        (response.status, body)
    }
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn claim(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {}})
}

fn owned(name: &str, owner: &Value) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [owner]}})
}

/// The log message of the collector about an owner of an unknown kind.
fn unknown_kind(uid: &str) -> [&str; 3] {
    ["error syncing item", uid, "unable to get REST mapping"]
}

/// The number of log lines with all these words.
fn log_lines(controllers: &Process, words: &[&str]) -> usize {
    let log = controllers.log();
    let lines = log.lines();
    let lines = lines.filter(|line| words.iter().all(|word| line.contains(word)));
    lines.count()
}
