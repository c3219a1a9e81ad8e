//! A control plane whose newest server alone has claims, with the real kube-controller-manager.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use skewbridge_e2e::{
    ControlPlane, HttpClient, Process, Protocol, Request, ServerSpec, User, Via, VirtualIp,
    control_planes, is_since, newest, oldest,
};
use skewbridge_etcd::{Client, Event};
use skewbridge_testkit::eventually;
use tokio::time::timeout;

/// For an operation that takes seconds on an idle machine.
pub(crate) const CONTROLLER_TIMEOUT: Duration = Duration::from_mins(1);

const CONTROLLERS: [&str; 2] = ["namespace-controller", "garbage-collector-controller"];

/// The APIs of the servers other than the newest.
const WITHOUT_CLAIMS: &str = "api/all=true,resource.k8s.io/v1=false,\
    resource.k8s.io/v1beta2=false,resource.k8s.io/v1beta1=false,resource.k8s.io/v1alpha3=false";

pub(crate) const NAMESPACES: &str = "/api/v1/namespaces";

const CONFIG_MAPS: &str = "/api/v1/namespaces/controllers/configmaps";

pub(crate) const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/controllers/resourceclaims";

pub(crate) const OWNER: &str =
    "/apis/resource.k8s.io/v1/namespaces/controllers/resourceclaims/owner";

pub(crate) const DEPENDANT: &str = "/api/v1/namespaces/controllers/configmaps/dependant";

/// The keys in etcd.
pub(crate) const CLAIM_KEY: &str = "/registry/resourceclaims/controllers/claim";

pub(crate) const NAMESPACE_KEY: &str = "/registry/namespaces/controllers";

/// The control planes on which the newest server can have its own API.
pub(crate) fn mixed_control_planes() -> Vec<Vec<String>> {
    let mut control_planes = control_planes();
    // This version of resource.k8s.io is served since 1.34.
    control_planes.retain(|it| newest(it) != oldest(it) && is_since(newest(it), 34));
    control_planes
}

/// A control plane whose newest server alone has claims.
pub(crate) struct ControllerFixture {
    pub(crate) plane: ControlPlane,
    pub(crate) oldest: usize,
    pub(crate) newest: usize,
    pub(crate) etcd: Client,
}

impl ControllerFixture {
    pub(crate) async fn start(versions: &[String]) -> Self {
        println!("plane {versions:?}");
        let servers = versions.iter().map(|version| {
            // A bridge that restarts without --state-dir does not know the admission policies of a
            // server that is down, and rejects writes. These tests are about the APIs that it serves.
            let server = (ServerSpec::of(version).peer()).bridge_flag("--guard-admission=off");
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

    /// Starts controllers that connect only to the oldest server or to its bridge.
    pub(crate) fn controllers(&self, via: Via) -> Process {
        let plane = &self.plane;
        plane.start_controller_manager(self.oldest, via, &CONTROLLERS)
    }

    /// Starts controllers behind a load balancer. They read discovery of the newest server, and
    /// then the load balancer sends their connections to the oldest one.
    pub(crate) async fn redirected_controllers(&self, via: Via) -> (VirtualIp, Process) {
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
    pub(crate) async fn delete_the_namespace(&self) -> Vec<String> {
        let now = self.etcd.range_prefix(NAMESPACE_KEY.as_bytes()).await;
        let from = now.unwrap().revision.next();
        let mut watch = self.etcd.watch_prefix(b"/registry/", from).await.unwrap();

        let words = ["delete", "namespace", "controllers", "--timeout=1m"];
        let server = self.newest;
        let output = self.plane.kubectl(server, Via::Server, User::Admin, &words);
        let output = output.await;
        assert_eq!(output.code, Some(0), "{}", output.stderr);

        let mut deleted_keys: Vec<String> = Vec::new();
        while deleted_keys.last().is_none_or(|key| key != NAMESPACE_KEY) {
            for event in timeout(CONTROLLER_TIMEOUT, watch.next())
                .await
                .unwrap()
                .unwrap()
            {
                if let Event::Delete { key, .. } = event
                    && (key == CLAIM_KEY || key == NAMESPACE_KEY)
                {
                    deleted_keys.push(String::from_utf8_lossy(&key).into_owned());
                }
            }
        }
        deleted_keys
    }

    /// Creates a claim, and a `ConfigMap` that it owns. Returns the claim's UID.
    pub(crate) async fn create_owner_and_dependant(&self) -> String {
        let uid = self.create(CLAIMS, &claim("owner")).await;
        let owner = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "name": "owner", "uid": uid});
        self.create(CONFIG_MAPS, &owned("dependant", &owner)).await;
        uid
    }

    pub(crate) async fn check_owner_and_dependant(&self, controllers: &Process) {
        let owner = self.create_owner_and_dependant().await;
        eventually(
            "the collector has processed the owner",
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
        eventually(
            "the dependant is collected",
            CONTROLLER_TIMEOUT,
            async || self.uid(DEPENDANT).await.is_none(),
        )
        .await;
    }

    /// Creates an object that every collector treats as garbage, and waits until it is collected:
    /// this shows that the collector works.
    pub(crate) async fn wait_until_garbage_is_collected(&self) {
        let nothing = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "nothing",
            "uid": "00000000-0000-4000-8000-000000000000"});
        self.create(CONFIG_MAPS, &owned("garbage", &nothing)).await;
        let path = format!("{CONFIG_MAPS}/garbage");
        eventually("garbage is collected", CONTROLLER_TIMEOUT, async || {
            self.uid(&path).await.is_none()
        })
        .await;
    }

    pub(crate) async fn is_in_etcd(&self, key: &str) -> bool {
        self.etcd.get(key.as_bytes()).await.unwrap().is_some()
    }

    /// Creates an object at the newest server; returns its UID.
    pub(crate) async fn create(&self, path: &str, object: &Value) -> String {
        let request = Request::new("POST", path).body("application/json", &object.to_string());
        let (status, created) = self.send_newest(&request).await;
        assert_eq!(status, 201, "{path}: {created}");
        created["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The UID of an object at the newest server; `None` if it does not exist.
    pub(crate) async fn uid(&self, path: &str) -> Option<String> {
        let (status, object) = self.send_newest(&Request::get(path)).await;
        assert!(matches!(status, 200 | 404), "{path}: {object}");
        object["metadata"]["uid"].as_str().map(str::to_owned)
    }

    /// Deletes an object at the newest server immediately.
    pub(crate) async fn delete(&self, path: &str) {
        let (status, answer) = self.send_newest(&Request::new("DELETE", path)).await;
        assert_eq!(status, 200, "{path}: {answer}");
        assert_eq!(self.uid(path).await, None, "{path}");
    }

    pub(crate) async fn send_newest(&self, request: &Request) -> (u16, Value) {
        let newest = self.plane.servers[self.newest].address;
        self.send(newest, request).await
    }

    pub(crate) async fn send(&self, to: SocketAddr, request: &Request) -> (u16, Value) {
        let mut client = HttpClient::new(self.plane.client("admin"), to, Protocol::H2);
        let response = client.send(request).await.unwrap();
        let body = serde_json::from_slice(&response.body).unwrap_or_default();
        (response.status, body)
    }
}

pub(crate) fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

pub(crate) fn claim(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {}})
}

fn owned(name: &str, owner: &Value) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": [owner]}})
}

/// The log message of the collector about an owner of an unknown kind.
pub(crate) fn unknown_kind(uid: &str) -> [&str; 3] {
    ["error syncing item", uid, "unable to get REST mapping"]
}

/// The number of log lines with all these words.
pub(crate) fn log_lines(controllers: &Process, words: &[&str]) -> usize {
    let log = controllers.log();
    let lines = log.lines();
    let lines = lines.filter(|line| words.iter().all(|word| line.contains(word)));
    lines.count()
}
