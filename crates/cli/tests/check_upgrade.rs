//! `skewbridge check upgrade` while versions are mixed, run as their
//! users run them, against fake servers: each serves what a release serves.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use serde_json::{Value, json};
use skewbridge_released_apis::{ApiName, Release, release_of};
use skewbridge_testkit::{ApiServer, Ca, Options, RecordedRequest, Reply, ScratchDir};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

const CLASSES: &str = "/apis/storage.k8s.io/v1/volumeattributesclasses";
const GONE_CLASSES: &str = "/apis/storage.k8s.io/v1alpha1/volumeattributesclasses";
const CLASSES_SUBJECT: &str = "volumeattributesclasses.v1alpha1.storage.k8s.io";
/// Of an API that is served in no other version.
const RANGES: &str = "/apis/networking.k8s.io/v1alpha1/clustercidrs";
const RANGES_SUBJECT: &str = "clustercidrs.v1alpha1.networking.k8s.io";
const DRIVERS: &str = "/apis/storage.k8s.io/v1/csidrivers";
const APPS: &str = "/apis/apps/v1";

const GO: Option<i32> = Some(0);
const NOT_KNOWN: Option<i32> = Some(1);
const FINDINGS: Option<i32> = Some(2);

/// A response to every GET of a path.
#[derive(Clone)]
struct Answer {
    status: u16,
    content_type: &'static str,
    body: String,
}

impl Answer {
    fn json(body: &Value) -> Self {
        Self {
            status: 200,
            content_type: "application/json",
            body: body.to_string(),
        }
    }

    fn status(status: u16) -> Self {
        Self {
            status,
            content_type: "text/plain",
            body: String::new(),
        }
    }

    fn reply(&self) -> Reply {
        let reply = Reply::new(self.status).header("Content-Type", self.content_type);
        reply.body(self.body.clone())
    }
}

type Responses = BTreeMap<String, Answer>;

/// A cluster's CA, and a directory for a kubeconfig.
struct Cluster {
    ca: Ca,
    dir: ScratchDir,
}

impl Cluster {
    fn new() -> Self {
        let cluster = Self {
            ca: Ca::new("cluster"),
            dir: ScratchDir::new(),
        };
        cluster.dir.write("ca.crt", cluster.ca.pem());
        cluster.dir.write(
            "config",
            "current-context: c\n\
             clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca.crt}}]\n\
             contexts: [{name: c, context: {cluster: c, user: me}}]\n\
             users: [{name: me, user: {token: secret-token}}]\n",
        );
        cluster
    }

    /// A kube-apiserver of a minor version with its default APIs, and those that `more` selects.
    async fn server(
        &self,
        minor: &str,
        more: impl Fn(&ApiName) -> bool,
        responses: &[(&str, Answer)],
    ) -> ApiServer {
        let release = release_of(minor.parse().unwrap()).unwrap().unwrap();
        let mut all = responses_of(&release, more);
        let responses = responses.iter();
        all.extend(responses.map(|(path, reply)| ((*path).to_owned(), reply.clone())));
        let all = Arc::new(all);
        let options = Options::new(self.ca.server(&["127.0.0.1"]));
        ApiServer::start(options, move |request: RecordedRequest| {
            assert_eq!(request.header("authorization"), Some("Bearer secret-token"));
            all.get(request.path())
                .map_or_else(|| Reply::new(404), Answer::reply)
        })
        .await
    }

    /// The exit code and the output.
    async fn run(&self, words: &[&str], servers: &[SocketAddr]) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        command
            .args(words)
            .args(servers.iter().map(|it| format!("--server=https://{it}")))
            .arg(format!(
                "--kubeconfig={}",
                self.dir.path().join("config").display()
            ))
            .env("HOME", self.dir.path());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap());
        let output = output.await.unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("secret-token"));
        (output.status.code(), text)
    }

    /// The same without `--server`, with this server in the kubeconfig.
    async fn check_published(&self, target: &str, context: SocketAddr) -> (Option<i32>, Value) {
        let config = self.dir.path().join("config");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(
            &config,
            text.replace("127.0.0.1:1'", &format!("{context}'")),
        )
        .unwrap();
        self.check(target, &[]).await
    }

    /// The exit code and the report of `check upgrade`.
    async fn check(&self, target: &str, servers: &[SocketAddr]) -> (Option<i32>, Value) {
        let words = ["check", "upgrade", target, "-o=json"];
        let (code, text) = self.run(&words, servers).await;
        let mut document: Value = serde_json::from_str(&text).unwrap();
        (code, document["reports"][0].take())
    }
}

fn list(items: &Value) -> Answer {
    Answer::json(&json!({"kind": "List", "metadata": {}, "items": items}))
}

fn responses_of(release: &Release, more: impl Fn(&ApiName) -> bool) -> Responses {
    let mut groups: BTreeMap<&str, BTreeMap<&str, Vec<Value>>> = BTreeMap::new();
    for (name, api) in release
        .apis()
        .filter(|(name, api)| api.by_default || more(name))
    {
        let versions = groups.entry(&name.group).or_default();
        versions.entry(&name.version).or_default().push(json!({
            "resource": name.resource, "scope": if api.namespaced { "Namespaced" } else { "Cluster" },
            "responseKind": {"group": name.group, "version": name.version, "kind": api.kind},
            "verbs": if api.listable { json!(["get", "list"]) } else { json!(["create"]) },
        }));
    }
    let mut responses = Responses::new();
    let mut documents = [("/api", Vec::new()), ("/apis", Vec::new())];
    for (group, versions) in &groups {
        let (prefix, document) = &mut documents[usize::from(!group.is_empty())];
        let of_version = |(version, resources): (&&str, &Vec<Value>)| json!({"version": version, "resources": resources, "freshness": "Current"});
        document.push(json!({"metadata": {"name": group},
            "versions": versions.iter().map(of_version).collect::<Vec<_>>()}));
        for (version, resources) in versions {
            let path = match *group {
                "" => format!("{prefix}/{version}"),
                group => format!("{prefix}/{group}/{version}"),
            };
            for resource in resources {
                let name = resource["resource"].as_str().unwrap();
                responses.insert(format!("{path}/{name}"), list(&json!([])));
            }
            let kind = "APIResourceList";
            let text = json!({"kind": kind, "groupVersion": version, "resources": []});
            responses.insert(path, Answer::json(&text));
        }
    }
    for (path, items) in documents {
        let document = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {}, "items": items});
        let answer = Answer {
            content_type: V2,
            ..Answer::json(&document)
        };
        responses.insert(path.to_owned(), answer);
    }
    let version = json!({"gitVersion": format!("v{}", release.version)});
    responses.insert("/version".to_owned(), Answer::json(&version));
    for path in ["/metrics", "/readyz"] {
        responses.insert(path.to_owned(), Answer::status(200));
    }
    for path in [
        "/api/v1/namespaces/kube-system/pods",
        "/apis/apps/v1/namespaces/kube-system/daemonsets",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    ] {
        responses.insert(path.to_owned(), list(&json!([])));
    }
    responses
}

/// The subjects and messages of the findings of a severity.
fn findings(report: &Value, severity: &str) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    let text = |it: &Value, key: &str| it[key].as_str().unwrap().to_owned();
    findings
        .filter(|it| it["severity"] == severity)
        .map(|it| format!("{}: {}", text(it, "subject"), text(it, "message")))
        .collect()
}

fn is_class(name: &ApiName) -> bool {
    name.resource == "volumeattributesclasses"
}

fn class() -> Answer {
    list(&json!([{"metadata": {"name": "gold", "managedFields": [
        {"manager": "kubectl-create", "apiVersion": "storage.k8s.io/v1alpha1"}]}}]))
}

#[tokio::test]
async fn objects_are_listed_at_a_server_that_serves_their_api() {
    let cluster = Cluster::new();
    let is_range = |name: &ApiName| name.resource == "clustercidrs";
    let range = list(&json!([{"metadata": {"name": "pods"}}]));
    let new = cluster.server("1.29", is_range, &[]).await;
    let old = cluster.server("1.28", is_range, &[(RANGES, range)]).await;
    let gone = format!("{RANGES_SUBJECT}: 1.29 does not serve networking.k8s.io/v1alpha1");
    for servers in [[new.addr(), old.addr()], [old.addr(), new.addr()]] {
        let (code, report) = cluster.check("--target=1.29", &servers).await;
        assert_eq!(code, FINDINGS);
        let found = findings(&report, "finding");
        let expected = format!("{gone}, in no version; 1 object can no longer be read");
        assert!(found.contains(&expected), "{found:#?}");
    }
    assert!(new.requests().iter().all(|it| it.path() != RANGES));

    // A server whose discovery has the API answers 404: another one has its objects.
    let without = cluster
        .server("1.28", is_range, &[(RANGES, Answer::status(404))])
        .await;
    let (_, report) = cluster
        .check("--target=1.29", &[without.addr(), old.addr()])
        .await;
    let about = |report: &Value, severity| {
        let found = findings(report, severity).into_iter();
        found
            .filter(|it| it.starts_with(RANGES_SUBJECT))
            .collect::<Vec<_>>()
    };
    assert_eq!(about(&report, "finding").len(), 1);
    // Without another one, this is not known, and not zero.
    let (_, report) = cluster.check("--target=1.29", &[without.addr()]).await;
    assert_eq!(about(&report, "note"), Vec::<String>::new());
    let unknown = about(&report, "notKnown");
    let expected = format!(
        "{gone}; its objects could not be counted: {}: {RANGES}: 404 Not Found",
        without.addr()
    );
    assert_eq!(unknown, [expected]);
}

#[tokio::test]
async fn objects_are_listed_in_a_version_that_stays() {
    let cluster = Cluster::new();
    let responses = [(CLASSES, class()), (GONE_CLASSES, Answer::status(500))];
    let old = cluster.server("1.34", is_class, &responses).await;
    let (code, report) = cluster.check("--target=1.36", &[old.addr()]).await;
    assert_eq!(code, FINDINGS);
    let found = findings(&report, "finding");
    let expected = format!(
        "{CLASSES_SUBJECT}: 1.36 does not serve storage.k8s.io/v1alpha1; its 1 object can be read as v1, \
         v1beta1, but these write in v1alpha1: kubectl-create (1)"
    );
    assert!(found.contains(&expected), "{found:#?}");
    // kube-apiserver would count a call of the API that goes, and the next check would find it.
    assert!(old.requests().iter().all(|it| it.path() != GONE_CLASSES));
}

#[tokio::test]
async fn servers_that_may_not_be_listed_are_not_known() {
    const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    // (the EndpointSlices of the Service `kubernetes`, exit code, what is not known)
    let rows = [
        // No server publishes its address.
        (list(&json!([])), GO, None),
        (Answer::status(403), NOT_KNOWN, Some("could not be read: ")),
        (Answer::status(500), NOT_KNOWN, Some("could not be read: ")),
    ];
    for (slices, expected, unknown) in rows {
        let cluster = Cluster::new();
        let server = cluster.server("1.35", |_| false, &[(SLICES, slices)]).await;
        let (code, report) = cluster
            .check_published("--target=1.36", server.addr())
            .await;
        assert_eq!(code, expected, "{report:#}");
        let found = findings(&report, "notKnown");
        assert_eq!(found.is_empty(), unknown.is_none(), "{found:#?}");
        let is_found = unknown.is_none_or(|it| found.iter().any(|found| found.contains(it)));
        assert!(is_found, "{found:#?}");
    }
}

#[tokio::test]
async fn fields_in_use_are_read_at_the_newest_server() {
    let cluster = Cluster::new();
    let driver = |spec: Value| list(&json!([{"metadata": {"name": "vault"}, "spec": spec}]));
    let shown = driver(json!({"serviceAccountTokenInSecrets": true}));
    let new = cluster.server("1.36", |_| false, &[(DRIVERS, shown)]).await;
    // It does not have the field.
    let old = cluster
        .server("1.34", |_| false, &[(DRIVERS, driver(json!({})))])
        .await;
    for servers in [[new.addr(), old.addr()], [old.addr(), new.addr()]] {
        let (code, report) = cluster.check("--rollback=1.34", &servers).await;
        let expected = "csidrivers.storage.k8s.io: spec.serviceAccountTokenInSecrets is set in 1 object, \
                        such as vault; 1.34 erases it";
        let found = findings(&report, "finding");
        assert!(found.iter().any(|it| it == expected), "{found:#?}");
        assert_eq!(code, FINDINGS);
    }
    // The newest server does not answer.
    let failing = Answer::status(500);
    let failing = cluster
        .server("1.36", |_| false, &[(DRIVERS, failing)])
        .await;
    let (code, report) = cluster
        .check("--rollback=1.34", &[old.addr(), failing.addr()])
        .await;
    let unknown = findings(&report, "notKnown");
    assert!(
        unknown.iter().any(|it| it.starts_with("fields in use: ")),
        "{unknown:#?}"
    );
    assert_ne!(code, GO);
}

#[tokio::test]
async fn stored_versions_that_cannot_be_read_are_not_known() {
    let cluster = Cluster::new();
    let good = cluster.server("1.35", |_| false, &[]).await;
    let (code, report) = cluster.check("--target=1.36", &[good.addr()]).await;
    assert_eq!(code, GO, "{report:#}");
    let unknown_version = json!({"kind": "APIResourceList", "resources": [
        {"name": "deployments", "storageVersionHash": "AAAAAAAAAAA="}]});
    for (answer, why) in [
        (Answer::status(500), "500"),
        (
            Answer::json(&unknown_version),
            "of no release that is known",
        ),
    ] {
        let server = cluster.server("1.35", |_| false, &[(APPS, answer)]).await;
        let (code, report) = cluster.check("--target=1.36", &[server.addr()]).await;
        assert_eq!(code, NOT_KNOWN, "{report:#}");
        let unknown = findings(&report, "notKnown");
        assert_eq!(unknown.len(), 1, "{unknown:#?}");
        let expected = format!(
            "{}: the versions in which it stores objects could not be read: ",
            server.addr()
        );
        assert!(
            unknown[0].starts_with(&expected) && unknown[0].contains(why),
            "{unknown:#?}"
        );
    }
    // A definition that cannot be read.
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let definitions = list(&json!([{"metadata": {"name": "a.example.com"}, "spec": {}}]));
    let server = cluster
        .server("1.35", |_| false, &[(path, definitions)])
        .await;
    let (code, report) = cluster.check("--target=1.36", &[server.addr()]).await;
    assert_eq!(code, NOT_KNOWN);
    assert!(
        findings(&report, "notKnown")[0].starts_with("custom resources: stored versions could")
    );
}

#[tokio::test]
async fn lists_are_read_page_by_page() {
    let cluster = Cluster::new();
    let object =
        json!({"metadata": {"name": "vault"}, "spec": {"serviceAccountTokenInSecrets": true}});
    let page =
        json!({"kind": "List", "metadata": {"continue": "again"}, "items": vec![object; 500]});
    // Every page has a next one.
    let endless = Answer::json(&page);
    let server = cluster
        .server("1.36", |_| false, &[(DRIVERS, endless)])
        .await;
    let (_, report) = cluster.check("--rollback=1.34", &[server.addr()]).await;
    let expected = "csidrivers.storage.k8s.io: spec.serviceAccountTokenInSecrets is set in at least 20000 \
                    objects, such as vault, vault, vault; 1.34 erases it";
    let found = findings(&report, "finding");
    assert!(found.iter().any(|it| it == expected), "{found:#?}");
    let requests = server.requests();
    let pages = requests.iter().filter(|it| it.path() == DRIVERS);
    assert_eq!(pages.count(), 40);
}

#[tokio::test]
async fn a_component_that_only_a_lease_shows_is_not_known() {
    let cluster = Cluster::new();
    let lease = list(&json!([
        {"metadata": {"name": "kube-scheduler"}, "spec": {"holderIdentity": "cp-1_7f"}},
        {"metadata": {"name": "apiserver-abc"}, "spec": {"holderIdentity": "apiserver-abc_1"}},
    ]));
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let server = cluster.server("1.35", |_| false, &[(leases, lease)]).await;
    let (code, report) = cluster.check("--target=1.36", &[server.addr()]).await;
    assert_eq!(code, NOT_KNOWN);
    let unknown = findings(&report, "notKnown");
    assert_eq!(unknown.len(), 1, "{unknown:#?}");
    assert!(unknown[0].starts_with("kube-scheduler on cp-1: its version could not be read"));
    // No right to read Leases.
    let server = cluster
        .server("1.35", |_| false, &[(leases, Answer::status(403))])
        .await;
    let (code, report) = cluster.check("--target=1.36", &[server.addr()]).await;
    assert_eq!(code, NOT_KNOWN);
    let unknown = findings(&report, "notKnown");
    assert!(
        unknown[0].starts_with("components of the control plane: "),
        "{unknown:#?}"
    );
}
