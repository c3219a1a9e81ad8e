//! A fixture: a cluster that accepts one client key, a plugin that has it, and a kubeconfig
//! with the plugin.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use skewbridge_client::api_server::Timeouts;
use skewbridge_client::{Endpoint, Error, Kubeconfig, Request, Target};
use skewbridge_testkit::{ApiServer, Ca, ClientAuth, Options, RecordedRequest, Reply, ScratchDir};

/// Timeouts for plugins that are expected to answer: generous for slow machines.
pub(crate) const TIMEOUTS: Timeouts = Timeouts {
    request: Some(Duration::from_secs(30)),
    plugin: Duration::from_mins(1),
};

/// The common name of the certificate that only the plugin has.
pub(crate) const KEY_OWNER: &str = "key-owner";

/// The kind of plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PluginKind {
    /// The process is the proxy, and keeps running.
    Itself,
    /// It starts a proxy, and exits.
    Starter,
    /// It is the proxy if there is none; otherwise it returns the existing one, and exits.
    Finder,
}

/// Where the proxy listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Socket {
    Unix,
    Tcp,
}

pub(crate) struct Fixture {
    pub(crate) dir: ScratchDir,
    pub(crate) cluster_ca: Ca,
    pub(crate) server: ApiServer,
    pub(crate) kind: PluginKind,
    pub(crate) socket: Socket,
    /// What the plugin returns beside the proxy.
    pub(crate) extra: Value,
}

impl Fixture {
    /// A cluster that responds with the client's name and the requested path.
    pub(crate) async fn new(kind: PluginKind) -> Self {
        Self::with(kind, |seen| {
            let name = seen
                .client
                .as_ref()
                .map(|client| client.common_name.clone());
            Reply::json(format!("{} {}", name.unwrap_or_default(), seen.target))
        })
        .await
    }

    pub(crate) async fn with(
        kind: PluginKind,
        answer: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let dir = ScratchDir::new();
        let cluster_ca = Ca::new("cluster");
        let options = Options::new(cluster_ca.server(&["127.0.0.1"]))
            .clients(ClientAuth::Require(&cluster_ca));
        let server = ApiServer::start(options, answer).await;
        let key = cluster_ca.client(KEY_OWNER, &[]);
        let plugin_ca = Ca::new("plugin");
        let listener = plugin_ca.server(&["plugin.invalid", "127.0.0.1"]);
        let client = plugin_ca.client("client-of-the-plugin", &[]);
        for (name, text) in [
            ("cluster-ca.crt", &cluster_ca.pem()),
            ("key.crt", &key.cert_pem),
            ("key.key", &key.key_pem),
            ("plugin-ca.crt", &plugin_ca.pem()),
            ("listener.crt", &listener.cert_pem),
            ("listener.key", &listener.key_pem),
            ("client.crt", &client.cert_pem),
            ("client.key", &client.key_pem),
            ("upstream", &server.addr().to_string()),
        ] {
            dir.write(name, text);
        }
        Self {
            dir,
            cluster_ca,
            server,
            kind,
            socket: Socket::Unix,
            extra: json!({}),
        }
    }

    /// The plugin's kubeconfig entry.
    pub(crate) fn plugin(&self) -> Value {
        let kind = match self.kind {
            PluginKind::Itself => "itself",
            PluginKind::Starter => "starter",
            PluginKind::Finder => "finder",
        };
        let socket = match self.socket {
            Socket::Unix => "unix",
            Socket::Tcp => "tcp",
        };
        // The test program prints to stdout; the plugin's output is file descriptor 3.
        let script = "exec \"$0\" --ignored --exact plugin_process::a_plugin --nocapture 3>&1 \
                      >/dev/null";
        let variable = |name: &str, value: &str| json!({"name": name, "value": value});
        json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script, std::env::current_exe().unwrap()],
            "env": [
                variable("PLUGIN_DIR", self.dir.path().to_str().unwrap()),
                variable("PLUGIN_KIND", kind),
                variable("PLUGIN_SOCKET", socket),
                variable("PLUGIN_EXTRA", &self.extra.to_string()),
            ],
            "interactiveMode": "Never",
            "provideClusterInfo": true,
        })
    }

    /// A plugin that is a shell script.
    pub(crate) fn script(script: &str) -> Value {
        json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "interactiveMode": "Never",
        })
    }

    pub(crate) fn kubeconfig(&self, user: &str, exec: &Value) -> String {
        let cluster = json!({
            "server": format!("https://{}", self.server.addr()),
            "certificate-authority-data": STANDARD.encode(self.cluster_ca.pem()),
            "proxy-url": "http://proxy.invalid:3128",
        });
        let config = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": user}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": user, "user": {"exec": exec}}],
        });
        config.to_string()
    }

    pub(crate) fn target_of(&self, user: &str, exec: &Value) -> Target {
        let text = self.kubeconfig(user, exec);
        let config = Kubeconfig::parse(&text, Path::new("/nonexistent/config")).unwrap();
        config.target(None).unwrap()
    }

    pub(crate) fn target(&self) -> Target {
        self.target_of("u", &self.plugin())
    }

    pub(crate) async fn endpoint(&self) -> Endpoint {
        Endpoint::prepare_with_timeouts(&self.target(), TIMEOUTS)
            .await
            .unwrap()
    }

    /// How often the plugin has been executed.
    pub(crate) fn execs(&self) -> usize {
        self.recorded("execs").lines().count()
    }

    /// What the plugin has recorded in a file.
    pub(crate) fn recorded(&self, file: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(file)).unwrap_or_default()
    }

    /// The process ID of the proxy.
    pub(crate) fn proxy(&self) -> i32 {
        self.recorded("pid").trim().parse().unwrap()
    }

    pub(crate) fn socket_path(&self) -> PathBuf {
        self.dir.path().join("run/s")
    }

    /// The lock file path that the plugin got.
    pub(crate) fn lock(&self) -> PathBuf {
        let exec_info: Value = serde_json::from_str(&self.recorded("exec-info")).unwrap();
        exec_info["spec"]["lockFilePath"].as_str().unwrap().into()
    }
}

pub(crate) async fn get(endpoint: &Endpoint, path: &str) -> Result<String, Error> {
    let mut connection = endpoint.connect().await?;
    let answer = connection.send(&Request::get(path)).await?;
    Ok(String::from_utf8_lossy(&answer.body).into_owned())
}

/// Whether a process has ended, even if it was not reaped.
pub(crate) fn is_gone(process: i32) -> bool {
    match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Err(_) => true,
        Ok(stat) => {
            let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
            state.is_none_or(|state| state.starts_with(['Z', 'X']))
        }
    }
}
