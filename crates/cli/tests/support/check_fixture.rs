//! `skewbridge check` with valid files and flags, in front of fake servers.

use std::collections::BTreeMap;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use skewbridge_testkit::{ApiServer, Ca, ClientAuth, Options, RecordedRequest, Reply, ScratchDir};
use tokio::process::Command;

/// Exit code: no check has failed.
pub(crate) const OK: Option<i32> = Some(0);

/// Exit code: a check has failed.
pub(crate) const FAILURE: Option<i32> = Some(1);

/// Exit code: the command line is wrong.
pub(crate) const USAGE: Option<i32> = Some(64);

/// A user that the fake servers permit nothing.
const WITHOUT_RIGHTS: &str = "without-rights";

/// Valid files and flags, with a working upstream and a working peer.
pub(crate) struct CheckFixture {
    pub(crate) dir: ScratchDir,
    pub(crate) flags: BTreeMap<String, String>,
    pub(crate) serving: Ca,
    pub(crate) front_proxies: Ca,
    pub(crate) upstream: ApiServer,
    pub(crate) peer: ApiServer,
    /// Whether the clock of upstream is wrong.
    pub(crate) clock_is_wrong: Arc<AtomicBool>,
}

impl CheckFixture {
    pub(crate) async fn new() -> Self {
        let dir = ScratchDir::new();
        let [serving, users, front_proxies] = ["serving", "users", "front-proxies"].map(Ca::new);
        let clock_is_wrong = Arc::new(AtomicBool::new(false));
        let published = [users.pem(), front_proxies.pem()];
        let server = |names: &[&str]| {
            let options = Options::new(serving.server(names));
            let (published, wrong) = (published.clone(), clock_is_wrong.clone());
            let options = options.clients(ClientAuth::Accept(&front_proxies));
            ApiServer::start(options, move |request| answer(&request, &published, &wrong))
        };
        let upstream = server(&["kubernetes.default.svc", "127.0.0.1"]).await;
        let peer = server(&["kubernetes.default.svc"]).await;
        let own = serving.server(&["kubernetes.default.svc", "127.0.0.1"]);
        let front_proxy = front_proxies.client("front-proxy-client", &[]);
        let mut fixture = Self {
            flags: BTreeMap::new(),
            dir,
            serving,
            front_proxies,
            clock_is_wrong,
            upstream,
            peer,
        };
        let upstream = fixture.upstream.addr();
        let peers = format!(
            "peers:\n- identity: apiserver-other\n  address: {}\n",
            fixture.peer.addr()
        );
        let ca = fixture.serving.pem();
        let front_proxies = fixture.front_proxies.pem();
        fixture.file("tls-cert-file", "serving.crt", &own.cert_pem);
        fixture.file("tls-private-key-file", "serving.key", &own.key_pem);
        fixture.file("proxy-client-cert-file", "proxy.crt", &front_proxy.cert_pem);
        fixture.file("proxy-client-key-file", "proxy.key", &front_proxy.key_pem);
        fixture.file("client-ca-file", "users.crt", &users.pem());
        fixture.file(
            "requestheader-client-ca-file",
            "proxies.crt",
            &front_proxies,
        );
        fixture.file("upstream-ca-file", "upstream.crt", &ca);
        fixture.file("peer-ca-file", "peers.crt", &ca);
        let path = fixture.dir.write("peers.yaml", peers);
        fixture.set("peer-registry", &format!("file:{}", path.display()));
        fixture.set("upstream", &format!("https://{upstream}"));
        fixture.set("apiserver-identity", "apiserver-own");
        fixture.set("bind-address", "127.0.0.1");
        fixture.set("secure-port", "0");
        fixture.set("admin-address", "127.0.0.1:0");
        fixture
    }

    pub(crate) fn set(&mut self, flag: &str, value: &str) {
        self.flags.insert(flag.to_owned(), value.to_owned());
    }

    pub(crate) fn file(&mut self, flag: &str, name: &str, text: &str) {
        let path = self.dir.write(name, text);
        self.set(flag, &path.display().to_string());
    }

    pub(crate) fn arguments(&self) -> Vec<String> {
        let flags = self
            .flags
            .iter()
            .map(|(flag, value)| format!("--{flag}={value}"));
        ["check".to_owned()].into_iter().chain(flags).collect()
    }

    pub(crate) async fn output(&self, more: &[&str]) -> Output {
        run(Command::new(env!("CARGO_BIN_EXE_skewbridge"))
            .args(self.arguments())
            .args(more))
        .await
    }

    /// The report, after a check of the exit code.
    pub(crate) async fn report(&self, code: Option<i32>) -> Report {
        Report::of(&self.output(&["-ojson"]).await, code)
    }

    /// The only failure. Its remedy is applied by `apply`; then the check passes.
    pub(crate) async fn is_found_and_corrected(
        &mut self,
        name: &str,
        apply: impl FnOnce(&mut Self, &Value),
    ) {
        let report = self.report(FAILURE).await;
        let failure = report.only_failure();
        let found = failure["name"].as_str().unwrap();
        assert!(found.contains(name), "{failure:#}");
        apply(self, &failure["remedy"]);
        self.report(OK).await;
    }

    /// Sets the flag of a remedy to its value.
    pub(crate) fn set_flag(&mut self, remedy: &Value) {
        let text = |key: &str| remedy[key].as_str().unwrap_or_else(|| panic!("{remedy:#}"));
        let flag = text("flag").strip_prefix("--").unwrap().to_owned();
        self.set(&flag, text("value"));
    }
}

/// The fake servers run in the runtime of the test.
pub(crate) async fn run(command: &mut Command) -> Output {
    command.env_remove("KUBECONFIG").env("HOME", "/none");
    command.stdin(Stdio::null());
    command.kill_on_drop(true).output().await.unwrap()
}

/// The JSON document.
pub(crate) struct Report(pub(crate) Value);

impl Report {
    pub(crate) fn of(output: &Output, code: Option<i32>) -> Self {
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), code, "{text}{output:?}");
        Self(serde_json::from_slice(&output.stdout).unwrap())
    }

    pub(crate) fn with(&self, outcome: &str) -> Vec<&Value> {
        let all = self.0["findings"].as_array().unwrap().iter();
        all.filter(|it| it["outcome"] == outcome).collect()
    }

    pub(crate) fn section(&self, section: &str) -> Vec<&Value> {
        let all = self.0["findings"].as_array().unwrap().iter();
        all.filter(|it| it["section"] == section).collect()
    }

    pub(crate) fn only_failure(&self) -> &Value {
        let failures = self.with("failure");
        assert_eq!(failures.len(), 1, "{failures:#?}");
        failures[0]
    }
}

/// A kube-apiserver that believes front proxies.
fn answer(request: &RecordedRequest, published: &[String; 2], wrong_clock: &AtomicBool) -> Reply {
    let reply = match request.path() {
        "/version" => Reply::json(r#"{"gitVersion":"v1.36.4"}"#),
        "/readyz" => Reply::new(200).body("ok"),
        path if path.ends_with("/selfsubjectreviews") => {
            let user = request
                .header("x-remote-user")
                .unwrap_or("system:anonymous");
            let groups = request.all("x-remote-group");
            let review = json!({"status": {"userInfo": {"username": user, "groups": groups}}});
            Reply::json(review.to_string()).status(201)
        }
        path if path.ends_with("/selfsubjectaccessreviews") => {
            let user = request.header("x-remote-user").unwrap_or_default();
            let allowed = user != WITHOUT_RIGHTS;
            let review = json!({"status": {"allowed": allowed}});
            Reply::json(review.to_string()).status(201)
        }
        path if path.ends_with("/extension-apiserver-authentication") => {
            let map = json!({"kind": "ConfigMap", "data": {"client-ca-file": published[0],
                "requestheader-client-ca-file": published[1]}});
            Reply::json(map.to_string())
        }
        _ => Reply::new(404).body("404 page not found"),
    };
    if wrong_clock.load(Ordering::Relaxed) {
        reply.header("date", "Sun, 06 Nov 1994 08:49:37 GMT")
    } else {
        reply
    }
}
