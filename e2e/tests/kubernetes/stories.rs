//! The user stories of KEP-4020, told by the real kube-controller-manager: what
//! its namespace and garbage-collector controllers do to objects of an API that
//! only the newest server has, when they are sent to the oldest server, and when
//! they are sent to its bridge.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use skewbridge_e2e::{
    Plane, Process, Protocol, Raw, Request, Server, User, Via, Vip, is_since, newest, oldest,
    planes,
};
use skewbridge_etcd::{Client, Event};
use skewbridge_peer_directory::Identity;
use skewbridge_testkit::eventually;
use tokio::time::{sleep, timeout};

/// For what takes seconds on an idle machine.
const SOON: Duration = Duration::from_mins(1);

const CONTROLLERS: [&str; 2] = ["namespace-controller", "garbage-collector-controller"];

/// What the other servers than the newest have.
const WITHOUT_CLAIMS: &str = "api/all=true,resource.k8s.io/v1=false,\
    resource.k8s.io/v1beta2=false,resource.k8s.io/v1beta1=false,resource.k8s.io/v1alpha3=false";

const NAMESPACES: &str = "/api/v1/namespaces";
const CONFIG_MAPS: &str = "/api/v1/namespaces/story/configmaps";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/story/resourceclaims";

const PRECIOUS: &str = "/apis/resource.k8s.io/v1/namespaces/story/resourceclaims/precious";
const OWNER: &str = "/apis/resource.k8s.io/v1/namespaces/story/resourceclaims/owner";
const DEPENDANT: &str = "/api/v1/namespaces/story/configmaps/dependant";

/// Where etcd has them.
const PRECIOUS_KEY: &str = "/registry/resourceclaims/story/precious";
const NAMESPACE_KEY: &str = "/registry/namespaces/story";

/// KEP-4020, Namespace Lifecycle Controller: "the garbage will reappear if a
/// namespace of the same name is recreated".
#[tokio::test]
async fn by_an_old_server_a_namespace_leaves_garbage_that_comes_back() {
    for versions in mixed_planes() {
        let stage = Stage::set(&versions).await;
        let _controllers = stage.controllers(Via::Server);
        let precious = stage.create(CLAIMS, &claim("precious")).await;
        assert_eq!(stage.delete_the_namespace().await, [NAMESPACE_KEY]);
        let left = stage.etcd.get(PRECIOUS_KEY.as_bytes()).await.unwrap();
        assert!(left.is_some());

        stage.create(NAMESPACES, &named("story")).await;
        assert_eq!(stage.uid(PRECIOUS).await, Some(precious));
    }
}

#[tokio::test]
async fn by_its_bridge_a_namespace_is_emptied_and_then_goes() {
    for versions in mixed_planes() {
        let stage = Stage::set(&versions).await;
        let _controllers = stage.controllers(Via::Bridge);
        stage.create(CLAIMS, &claim("precious")).await;
        let gone = stage.delete_the_namespace().await;
        assert_eq!(gone, [PRECIOUS_KEY, NAMESPACE_KEY]);

        stage.create(NAMESPACES, &named("story")).await;
        assert_eq!(stage.uid(PRECIOUS).await, None);
    }
}

/// How long the server is away: longer than a bridge once remembered it after a restart.
const AWAY: Duration = Duration::from_mins(1);

/// How long the controller takes to try again: its backoff grows while it waits.
const TRIED_AGAIN: Duration = Duration::from_mins(3);

/// The only server of the claims is killed, the bridge of the controller restarts, and
/// the controller starts afresh: it sees the kind, is answered 503, and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_its_bridge_a_namespace_waits_while_the_server_of_what_is_in_it_is_down() {
    for versions in mixed_planes() {
        let mut stage = Stage::set(&versions).await;
        stage.create(CLAIMS, &claim("precious")).await;
        let identity = Identity::of_hostname(&stage.plane.servers[stage.newest].host);
        let record = format!("/registry/skewbridge/served/{identity}");
        eventually("what it serves is recorded", SOON, async || {
            stage.is_in_etcd(&record).await
        })
        .await;
        let (newest, oldest) = (stage.newest, stage.oldest);
        stage.plane.end_server(newest, "KILL");
        stage.plane.end_bridge(newest, "KILL");
        stage.plane.end_bridge(oldest, "KILL");
        stage.plane.run_bridge(oldest);
        let bridge = stage.plane.servers[oldest].bridge;
        stage.plane.ready("the bridge of the oldest", bridge).await;
        let _controllers = stage.controllers(Via::Bridge);
        let delete = Request::new("DELETE", &format!("{NAMESPACES}/story"));
        let (status, answer) = stage.send(bridge, &delete).await;
        assert_eq!(status, 200, "{answer}");
        let deleted = Instant::now();
        while deleted.elapsed() < AWAY {
            for key in [NAMESPACE_KEY, PRECIOUS_KEY] {
                assert!(stage.is_in_etcd(key).await, "{key} {:?}", deleted.elapsed());
            }
            sleep(Duration::from_secs(1)).await;
        }

        stage.plane.run_server(newest);
        stage.plane.run_bridge(newest);
        stage.plane.all_ready().await;
        eventually("the namespace goes", TRIED_AGAIN, async || {
            !stage.is_in_etcd(NAMESPACE_KEY).await
        })
        .await;
        assert!(!stage.is_in_etcd(PRECIOUS_KEY).await, "an orphan");
        println!("gone {:.1?} after it was deleted", deleted.elapsed());
    }
}

/// A collector that has never heard of a kind keeps for good what belongs to it.
#[tokio::test]
async fn by_an_old_server_what_belonged_to_a_deleted_owner_is_never_collected() {
    for versions in mixed_planes() {
        let stage = Stage::set(&versions).await;
        let controllers = stage.controllers(Via::Server);
        let owner = stage.owner_and_dependant().await;
        let unknown = unknown_kind(&owner);
        eventually("the owner is looked for", SOON, async || {
            said(&controllers, &unknown) > 0
        })
        .await;

        stage.delete(OWNER).await;
        let times = said(&controllers, &unknown);
        eventually("the owner is looked for again", SOON, async || {
            said(&controllers, &unknown) > times
        })
        .await;
        stage.garbage_is_collected().await;
        assert!(stage.uid(DEPENDANT).await.is_some());
    }
}

#[tokio::test]
async fn by_its_bridge_what_belongs_to_an_owner_lives_and_goes_with_it() {
    for versions in mixed_planes() {
        let stage = Stage::set(&versions).await;
        let controllers = stage.controllers(Via::Bridge);
        stage.owner_and_dependant_live_and_go(&controllers).await;
    }
}

/// KEP-4020, Garbage Collector: "seeing a 404 and assuming an object has been
/// deleted".
#[tokio::test]
async fn by_an_old_server_what_belongs_to_a_living_owner_is_collected() {
    /// The collector looks at discovery each 30 s. If it has just done so, it
    /// knows no longer what the oldest server does not have, and does no harm.
    const ATTEMPTS: usize = 3;

    for versions in mixed_planes() {
        let stage = Stage::set(&versions).await;
        let mut harmed = false;
        for _ in 0..ATTEMPTS {
            let (_vip, controllers) = stage.controllers_led_astray(Via::Server).await;
            let owner = stage.owner_and_dependant().await;
            eventually("the collector decides", SOON, async || {
                harmed = stage.uid(DEPENDANT).await.is_none();
                harmed || said(&controllers, &unknown_kind(&owner)) > 0
            })
            .await;
            if harmed {
                assert_eq!(stage.uid(OWNER).await, Some(owner), "the owner lives");
                break;
            }
            stage.delete(DEPENDANT).await;
            stage.delete(OWNER).await;
        }
        assert!(harmed);
    }
}

#[tokio::test]
async fn by_its_bridge_what_belongs_to_a_living_owner_is_kept() {
    for versions in mixed_planes() {
        let stage = Stage::set(&versions).await;
        let (_vip, controllers) = stage.controllers_led_astray(Via::Bridge).await;
        stage.owner_and_dependant_live_and_go(&controllers).await;
    }
}

/// The planes on which the newest server can have something of its own.
fn mixed_planes() -> Vec<Vec<String>> {
    let mut planes = planes();
    // This version of resource.k8s.io is of 1.34.
    planes.retain(|it| newest(it) != oldest(it) && is_since(newest(it), 34));
    planes
}

/// Where a story happens: a plane whose newest server alone has claims.
struct Stage {
    plane: Plane,
    oldest: usize,
    newest: usize,
    etcd: Client,
}

impl Stage {
    async fn set(versions: &[String]) -> Self {
        println!("plane {versions:?}");
        let servers = versions.iter().map(|version| {
            let server = Server::of(version).peer();
            if version == newest(versions) {
                server
            } else {
                server.runtime_config(WITHOUT_CLAIMS)
            }
        });
        let mut plane = Plane::start(&servers.collect::<Vec<_>>()).await;
        let endpoint = format!("http://{}", plane.etcd().address);
        let position = |version| versions.iter().position(|it| it == version).unwrap();
        let stage = Self {
            plane,
            oldest: position(oldest(versions)),
            newest: position(newest(versions)),
            etcd: Client::new(vec![endpoint.parse().unwrap()], None).unwrap(),
        };
        stage.create(NAMESPACES, &named("story")).await;
        let oldest = &stage.plane.servers[stage.oldest];
        let (status, _) = stage.send(oldest.address, &Request::get(CLAIMS)).await;
        assert_eq!(status, 404);
        eventually("the bridges know each other", SOON, async || {
            let (status, _) = stage.send(oldest.bridge, &Request::get(CLAIMS)).await;
            status == 200
        })
        .await;
        stage
    }

    /// Controllers that know only the oldest server, by this way.
    fn controllers(&self, via: Via) -> Process {
        let plane = &self.plane;
        plane.start_controller_manager(self.oldest, via, &CONTROLLERS)
    }

    /// Controllers that have learnt from the newest server which kinds there
    /// are, and whose connections then go to the oldest: a balancer does that.
    async fn controllers_led_astray(&self, via: Via) -> (Vip, Process) {
        let plane = &self.plane;
        let vip = Vip::start(plane.servers[self.newest].at(via)).await;
        let controllers = plane.start_controller_manager_at(vip.address, &CONTROLLERS);
        eventually("the controllers know the cluster", SOON, async || {
            said(&controllers, &["all resource monitors have synced"]) > 0
        })
        .await;
        vip.switch(plane.servers[self.oldest].at(via)).await;
        (vip, controllers)
    }

    /// kubectl deletes the namespace and waits until it is gone. Tells whether
    /// it or the precious claim went from etcd, in order.
    async fn delete_the_namespace(&self) -> Vec<String> {
        let now = self.etcd.range_prefix(NAMESPACE_KEY.as_bytes()).await;
        let from = now.unwrap().revision.next();
        let mut watch = self.etcd.watch_prefix(b"/registry/", from).await.unwrap();

        let words = ["delete", "namespace", "story", "--timeout=1m"];
        let server = self.newest;
        let output = self.plane.kubectl(server, Via::Server, User::Admin, &words);
        let output = output.await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);

        let mut gone: Vec<String> = Vec::new();
        while gone.last().is_none_or(|key| key != NAMESPACE_KEY) {
            for event in timeout(SOON, watch.next()).await.unwrap().unwrap() {
                if let Event::Delete { key, .. } = event
                    && (key == PRECIOUS_KEY || key == NAMESPACE_KEY)
                {
                    gone.push(String::from_utf8_lossy(&key).into_owned());
                }
            }
        }
        gone
    }

    /// A claim, and a `ConfigMap` that belongs to it. Gives the claim's UID.
    async fn owner_and_dependant(&self) -> String {
        let uid = self.create(CLAIMS, &claim("owner")).await;
        let owner = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "name": "owner", "uid": uid});
        self.create(CONFIG_MAPS, &owned("dependant", &owner)).await;
        uid
    }

    async fn owner_and_dependant_live_and_go(&self, controllers: &Process) {
        let owner = self.owner_and_dependant().await;
        eventually("the collector has seen the owner", SOON, async || {
            let words = ["GraphBuilder process object", &owner, "virtual=false"];
            said(controllers, &words) > 0
        })
        .await;
        self.garbage_is_collected().await;
        assert!(self.uid(DEPENDANT).await.is_some());

        self.delete(OWNER).await;
        eventually("the dependant goes", SOON, async || {
            self.uid(DEPENDANT).await.is_none()
        })
        .await;
    }

    /// Waits until something has come and gone that every collector knows for
    /// garbage: it has been at work all this time.
    async fn garbage_is_collected(&self) {
        let nothing = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nothing",
            "uid": "00000000-0000-4000-8000-000000000000"});
        self.create(CONFIG_MAPS, &owned("garbage", &nothing)).await;
        let path = format!("{CONFIG_MAPS}/garbage");
        eventually("garbage is collected", SOON, async || {
            self.uid(&path).await.is_none()
        })
        .await;
    }

    async fn is_in_etcd(&self, key: &str) -> bool {
        self.etcd.get(key.as_bytes()).await.unwrap().is_some()
    }

    /// Creates an object straight at the newest server; gives its UID.
    async fn create(&self, path: &str, object: &Value) -> String {
        let request = Request::new("POST", path).body("application/json", &object.to_string());
        let (status, created) = self.send_newest(&request).await;
        assert_eq!(status, 201, "{path}: {created}");
        created["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// Of an object, straight from the newest server; `None` where there is none.
    async fn uid(&self, path: &str) -> Option<String> {
        let (status, object) = self.send_newest(&Request::get(path)).await;
        assert!(matches!(status, 200 | 404), "{path}: {object}");
        object["metadata"]["uid"].as_str().map(str::to_owned)
    }

    /// Deletes an object straight at the newest server, at once.
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
        let mut client = Raw::new(self.plane.client("admin"), to, Protocol::H2);
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

/// What the collector says of an owner of a kind that discovery does not name.
fn unknown_kind(uid: &str) -> [&str; 3] {
    ["error syncing item", uid, "unable to get REST mapping"]
}

/// In how many lines all these words were said.
fn said(controllers: &Process, words: &[&str]) -> usize {
    let log = controllers.log();
    let lines = log.lines();
    let lines = lines.filter(|line| words.iter().all(|word| line.contains(word)));
    lines.count()
}
