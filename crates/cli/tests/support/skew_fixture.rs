//! Servers that `skewbridge skew` compares, and the command.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::{Value, json};
use skewbridge_testkit::{ApiServer, Ca, Options, RecordedRequest, Reply, ScratchDir};

pub(crate) const BRIDGE: &str =
    "application/json;g=skewbridge.io;v=v1alpha1;as=ServerDiscoveryList";

pub(crate) const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A cluster's CA, and a directory for kubeconfigs.
pub(crate) struct SkewFixture {
    pub(crate) ca: Ca,
    pub(crate) dir: ScratchDir,
}

impl SkewFixture {
    pub(crate) fn new() -> Self {
        Self {
            ca: Ca::new("cluster"),
            dir: ScratchDir::new(),
        }
    }

    pub(crate) async fn serve(
        &self,
        answer: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> ApiServer {
        let options = Options::new(self.ca.server(&["127.0.0.1"]));
        ApiServer::start(options, answer).await
    }

    /// A kubeconfig with a context for each server; the first is the current one.
    pub(crate) fn kubeconfig(&self, servers: &[(&str, SocketAddr)]) -> PathBuf {
        self.dir.write("ca.crt", self.ca.pem());
        let mut text = format!("current-context: {}\n", servers[0].0);
        let list = |text: &mut String, title: &str, entry: &dyn Fn(&str, SocketAddr) -> String| {
            text.push_str(title);
            text.push_str(":\n");
            for (name, address) in servers {
                text.push_str("- ");
                text.push_str(&entry(name, *address));
                text.push('\n');
            }
        };
        list(&mut text, "clusters", &|name, address| {
            format!(
                "{{name: {name}, cluster: {{server: 'https://{address}', certificate-authority: ca.crt}}}}"
            )
        });
        list(&mut text, "contexts", &|name, _| {
            format!("{{name: {name}, context: {{cluster: {name}, user: me}}}}")
        });
        text.push_str("users: [{name: me, user: {token: secret-token}}]\n");
        self.dir.write("config", text)
    }

    /// Runs the command on another thread than the fake servers.
    pub(crate) async fn skew(&self, words: &[&str]) -> CommandOutput {
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        command
            .arg("skew")
            .args(words)
            .env("HOME", self.dir.path())
            .env_remove("KUBECONFIG")
            .env_remove("KUBERNETES_SERVICE_HOST");
        let ran = tokio::task::spawn_blocking(move || command.output().unwrap());
        CommandOutput::of(&ran.await.unwrap())
    }
}

#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let ran = Self {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        };
        for text in [&ran.stdout, &ran.stderr] {
            assert!(!text.contains('\u{1b}'), "an escape code: {text:?}");
            assert!(!text.contains("secret-token"), "{text}");
        }
        ran
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

fn resource(name: &str) -> Value {
    json!({"resource": name, "scope": "Namespaced", "singularResource": "", "verbs": ["get", "list"]})
}

pub(crate) fn group(name: &str, version: &str, resources: &[&str]) -> Value {
    let resources: Vec<_> = resources.iter().map(|name| resource(name)).collect();
    json!({"metadata": {"name": name}, "versions": [
        {"version": version, "resources": resources, "freshness": "Current"}]})
}

fn document(groups: &Value) -> Reply {
    let list = json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {}, "items": groups,
    });
    Reply::new(200)
        .header("Content-Type", V2)
        .body(list.to_string())
}

/// A kube-apiserver: ignores unknown media types, and requires authentication.
pub(crate) fn plain(
    version: &'static str,
    apis: &Value,
) -> impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static + use<> {
    let apis = apis.clone();
    move |seen| {
        assert_eq!(seen.header("authorization"), Some("Bearer secret-token"));
        match seen.path() {
            "/version" => Reply::json(json!({"gitVersion": version}).to_string()),
            "/api" => document(&json!([group("", "v1", &["pods"])])),
            "/apis" => document(&apis),
            _ => Reply::new(404),
        }
    }
}

pub(crate) fn old() -> Value {
    json!([
        group("apps", "v1", &["sets"]),
        group("x.io", "v1alpha1", &["things"])
    ])
}

pub(crate) fn new() -> Value {
    json!([group("apps", "v1", &["sets", "policies"])])
}

/// A bridge with the list of these servers.
pub(crate) fn bridge(servers: Value) -> impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static {
    move |seen| {
        let accepted = seen.header("accept").unwrap();
        assert!(accepted.starts_with(&format!("{BRIDGE},")), "{accepted}");
        assert_eq!(seen.path(), "/apis");
        let list = json!({
            "kind": "ServerDiscoveryList", "apiVersion": "skewbridge.io/v1alpha1",
            "servers": servers,
        });
        Reply::new(200)
            .header("Content-Type", BRIDGE)
            .body(list.to_string())
    }
}

pub(crate) fn server_entry(identity: &str, groups: &Value) -> Value {
    json!({"identity": identity, "version": "v1.34.4", "local": false, "reachable": true,
           "address": "10.0.0.1:6443", "lastSync": "2026-11-15T12:00:00Z", "groups": groups})
}

/// A bridge in front of a server: it lists all servers of its cluster, or only its own if that
/// is requested.
pub(crate) fn bridge_before(
    version: &'static str,
    own: &Value,
    list: Value,
) -> impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static {
    let own = plain(version, own);
    move |seen| {
        let accepted = seen.header("accept").unwrap();
        if seen.path() != "/apis" || !accepted.starts_with(BRIDGE) {
            return own(seen);
        }
        let mut list = list.clone();
        list["kind"] = json!("ServerDiscoveryList");
        list["apiVersion"] = json!("skewbridge.io/v1alpha1");
        Reply::new(200)
            .header("Content-Type", BRIDGE)
            .body(list.to_string())
    }
}

/// A server with OpenAPI of `sets` and of a custom resource, whose `spec` has these fields.
pub(crate) fn with_fields(
    version: &'static str,
    fields: &'static [&'static str],
) -> impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static {
    let sets = json!({"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [
        {"resource": "sets", "responseKind": {"group": "", "version": "", "kind": "Set"}}]}]});
    let groups = json!([sets, group("example.com", "v1", &["things"])]);
    let other = plain(version, &groups);
    move |seen| match seen.path() {
        "/openapi/v3" => {
            assert_eq!(
                seen.header("accept"),
                Some("application/json;profile=nopeer")
            );
            Reply::json(openapi_index().to_string())
        }
        "/openapi/v3/apis/apps/v1" => Reply::json(openapi(fields).to_string()),
        _ => other(seen),
    }
}

pub(crate) fn openapi_index() -> Value {
    let paths = ["apis/apps/v1", "apis/example.com/v1", "version"];
    let paths = paths.map(|key| {
        (
            key,
            json!({"serverRelativeURL": format!("/openapi/v3/{key}")}),
        )
    });
    let paths = paths.into_iter().map(|(key, url)| (key.to_owned(), url));
    let paths: serde_json::Map<_, _> = paths.collect();
    json!({"paths": paths})
}

pub(crate) fn openapi(fields: &[&str]) -> Value {
    let fields = fields.iter().map(|name| ((*name).to_owned(), json!({})));
    let fields: serde_json::Map<_, _> = fields.collect();
    let schema = json!({"properties": {"spec": {"properties": fields}},
        "x-kubernetes-group-version-kind": [{"group": "apps", "version": "v1", "kind": "Set"}]});
    let schemas = json!({"io.k8s.api.apps.v1.Set": schema});
    json!({"components": {"schemas": schemas}})
}
