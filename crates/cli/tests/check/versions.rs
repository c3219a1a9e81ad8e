//! The versions of the bridges and kube-apiservers of a cluster.

use std::net::SocketAddr;

use serde_json::{Value, json};
use skewbridge_testkit::{ApiServer, Ca, Options, RecordedRequest, Reply, ScratchDir};
use tokio::process::Command;

use crate::check_fixture::{OK, Report, run};

const SERVER_LIST: &str = "application/json;g=skewbridge.io;v=v1alpha1;as=ServerDiscoveryList";

const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Two bridges and the kube-apiservers behind them.
struct Cluster {
    bridges: [Option<&'static str>; 2],
    servers: [&'static str; 2],
}

impl Cluster {
    /// The list of the bridge beside a server.
    fn list(&self, bridge: usize, other: Option<SocketAddr>) -> Value {
        let servers = [0, 1].map(|server| {
            let is_local = server == bridge;
            json!({
                "identity": format!("apiserver-{server}"),
                "host": format!("cp-{server}"),
                "version": self.servers[server],
                "local": is_local,
                "address": other.filter(|_| !is_local).map(|it| it.to_string()),
                "reachable": true,
                "groups": [],
            })
        });
        json!({
            "kind": "ServerDiscoveryList",
            "apiVersion": "skewbridge.io/v1alpha1",
            "servers": servers,
            "bridgeVersion": self.bridges[bridge],
        })
    }

    /// The findings of a check through the first bridge, which has no failure.
    async fn check(&self) -> Report {
        let (ca, dir) = (Ca::new("cluster"), ScratchDir::new());
        let start = async |list: Value| {
            let options = Options::new(ca.server(&["127.0.0.1", "kubernetes.default.svc"]));
            ApiServer::start(options, move |request| answer(&request, &list)).await
        };
        let second = start(self.list(1, None)).await;
        let first = start(self.list(0, Some(second.addr()))).await;
        dir.write("ca.crt", ca.pem());
        let kubeconfig = format!(
            "current-context: a\n\
             contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
             clusters: [{{name: a, cluster: {{server: 'https://{}', certificate-authority: ca.crt}}}}]\n\
             users: [{{name: a, user: {{token: t}}}}]\n",
            first.addr()
        );
        let kubeconfig = dir.write("config", kubeconfig);
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        command
            .args(["check", "-ojson", "--kubernetes-dir=/none"])
            .arg(format!("--kubeconfig={}", kubeconfig.display()));
        Report::of(&run(&mut command).await, OK)
    }
}

fn answer(request: &RecordedRequest, list: &Value) -> Reply {
    let accept = request.header("accept").unwrap_or_default();
    match request.path() {
        "/apis" if accept.starts_with(SERVER_LIST) => document(SERVER_LIST, list),
        "/api" | "/apis" => {
            let apis = json!({"kind": "APIGroupDiscoveryList",
                "apiVersion": "apidiscovery.k8s.io/v2", "items": []});
            document(DISCOVERY, &apis)
        }
        path if path.ends_with("/configmaps") => Reply::json("{}").status(201),
        _ => Reply::json(r#"{"kind":"Status"}"#).status(404),
    }
}

fn document(media_type: &str, document: &Value) -> Reply {
    Reply::new(200)
        .header("Content-Type", media_type)
        .body(document.to_string())
}

#[tokio::test]
async fn bridges_have_one_version_and_servers_are_one_minor_version_apart() {
    const BRIDGES: &str = "all bridges have the same version";
    const SERVERS: &str = "kube-apiservers are at most one minor version apart";
    let [old, new] = [Some("0.1.0"), Some("0.2.0")];
    let supported = ["v1.35.8", "v1.36.4"];
    let rows = [
        ([new, new], supported, ["ok", "ok"]),
        ([old, new], supported, ["warning", "ok"]),
        ([new, None], supported, ["warning", "ok"]),
        ([None, None], supported, ["notKnown", "ok"]),
        ([new, new], ["v1.34.4", "v1.36.4"], ["ok", "warning"]),
    ];
    for (bridges, servers, expected) in rows {
        let report = Cluster { bridges, servers }.check().await;
        let found = [BRIDGES, SERVERS].map(|name| {
            let section = report.section("bridges");
            let finding = section.into_iter().find(|it| it["name"] == name);
            finding
                .unwrap_or_else(|| panic!("{name}: {:#}", report.0))
                .clone()
        });
        let outcomes = found.each_ref().map(|it| it["outcome"].as_str().unwrap());
        assert_eq!(outcomes, expected, "{bridges:?} {servers:?}: {found:#?}");
        for finding in found.iter().filter(|it| it["outcome"] == "warning") {
            assert!(finding["remedy"]["command"].is_string(), "{finding:#}");
        }
    }
}
