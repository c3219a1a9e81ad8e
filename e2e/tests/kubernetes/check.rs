//! `skewbridge check` on a good control plane, and on one with deliberate mistakes: each is found,
//! and its remedy, taken from `-o json`, makes the check pass.

mod layouts;
mod mistakes_of_a_cluster;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::PathBuf;

use serde_json::Value;
use skewbridge_e2e::{
    ControlPlane, Etcd, EtcdTls, Protocol, Request, ServerSpec, User, VersionSpecificApi, Via,
    old_and_new_versions, run_in_network_namespace,
};
use skewbridge_testkit::{Ca, Leaf, Validity, eventually};
use tokio::process::Command;

use crate::peer_pair::{NEW, OLD, PEER_DISCOVERY_TIMEOUT};

/// The port of all bridges, and of all kube-apiservers on loopback.
const PORT: u16 = 6443;

const NAMES: [&str; 3] = ["kubernetes.default.svc", "kubernetes", "127.0.0.1"];

/// The address of a node, in the namespace of the test only.
fn node(server: usize) -> IpAddr {
    [10, 78, 0, u8::try_from(server + 1).unwrap()].into()
}

/// The address of its kube-apiserver.
fn loopback(server: usize) -> SocketAddr {
    let last = u8::try_from(server + 2).unwrap();
    SocketAddr::new([127, 0, 0, last].into(), PORT)
}

/// The same port on two addresses: the bridge at that of the node, and kube-apiserver at loopback.
fn spec(server: usize, version: &str) -> ServerSpec {
    ServerSpec::of(version)
        .published_at(SocketAddr::new(node(server), PORT))
        .flag(&format!("--bind-address={}", loopback(server).ip()))
        .peer()
        .bridge_flag(&format!("--bind-address={}", node(server)))
        .bridge_flag(&format!("--secure-port={PORT}"))
        .bridge_flag(&format!("--upstream=https://{}", loopback(server)))
        .bridge_flag("--upstream-server-name=kubernetes")
        .bridge_flag("--bridge-user=skewbridge")
}

/// Two nodes whose bridges are peers.
async fn start(old: &str, new: &str) -> ControlPlane {
    let mut plane = ControlPlane::prepare(&[spec(OLD, old), spec(NEW, new)]);
    for server in [OLD, NEW] {
        plane.start_server(server);
    }
    for server in [OLD, NEW] {
        plane
            .wait_for_ready("a kube-apiserver", loopback(server))
            .await;
    }
    plane
}

fn start_bridges(plane: &mut ControlPlane) {
    for server in [OLD, NEW] {
        let host = plane.servers[server].host.clone();
        let pair = |suffix: &str| plane.directory().join(format!("{host}.{suffix}"));
        let files = [
            format!("--tls-cert-file={}", pair("crt").display()),
            format!("--tls-private-key-file={}", pair("key").display()),
        ];
        for flag in files {
            plane.add_bridge_flag(server, &flag);
        }
        let upstream = format!("--upstream=https://{}", plane.servers[server].address);
        plane.remove_bridge_flag(server, &upstream);
        plane.start_bridge(server);
    }
}

/// The report of a run.
struct Report {
    document: Value,
    code: Option<i32>,
}

impl Report {
    fn with(&self, outcome: &str) -> Vec<&Value> {
        let all = self.document["findings"].as_array().unwrap().iter();
        all.filter(|it| it["outcome"] == outcome).collect()
    }

    /// The failure with this text in its name.
    fn failure(&self, name: &str) -> &Value {
        let failures = self.with("failure");
        assert_eq!(self.code, Some(1), "{:#}", self.document);
        let found = failures
            .iter()
            .find(|it| it["name"].as_str().unwrap().contains(name));
        found.unwrap_or_else(|| panic!("no failure {name:?} in {failures:#?}"))
    }

    /// The names of the warnings but that for the versions of these tests, 1.34 and 1.36.
    fn warnings_but_for_the_versions(&self) -> Vec<&str> {
        let (versions, others): (Vec<_>, Vec<_>) = (self.with("warning").into_iter())
            .map(|it| it["name"].as_str().unwrap())
            .partition(|it| *it == "kube-apiservers are at most one minor version apart");
        assert_eq!(versions.len(), 1, "{:#}", self.document);
        others
    }

    #[track_caller]
    fn passes(&self) {
        let failures = self.with("failure");
        assert!(failures.is_empty(), "{failures:#?}");
        assert_eq!(self.code, Some(0));
    }
}

/// The flags of a bridge that is to be installed on the first node, and how `check` is run.
struct Setup<'a> {
    plane: &'a ControlPlane,
    flags: BTreeMap<String, String>,
    /// Words before `skewbridge check`, such as `setpriv`.
    prefix: Vec<String>,
    mistakes: usize,
}

impl<'a> Setup<'a> {
    fn new(plane: &'a ControlPlane, etcd: &str) -> Self {
        let file = |name: &str| plane.directory().join(name).display().to_string();
        let host = &plane.servers[OLD].host;
        let flags = [
            ("bind-address", node(OLD).to_string()),
            ("secure-port", PORT.to_string()),
            ("admin-address", plane.servers[OLD].admin.to_string()),
            ("tls-cert-file", file(&format!("{host}.crt"))),
            ("tls-private-key-file", file(&format!("{host}.key"))),
            ("client-ca-file", file("ca.crt")),
            ("requestheader-client-ca-file", file("front-proxy-ca.crt")),
            (
                "requestheader-allowed-names",
                "front-proxy-client".to_owned(),
            ),
            ("proxy-client-cert-file", file("front-proxy-client.crt")),
            ("proxy-client-key-file", file("front-proxy-client.key")),
            ("upstream", format!("https://{}", loopback(OLD))),
            ("upstream-server-name", "kubernetes".to_owned()),
            ("upstream-ca-file", file("ca.crt")),
            ("peer-ca-file", file("ca.crt")),
            ("etcd-servers", etcd.to_owned()),
            ("bridge-user", "skewbridge".to_owned()),
            (
                "apiserver-identity",
                crate::peer_pair::identity(plane, OLD).to_string(),
            ),
        ];
        let flags = flags
            .into_iter()
            .map(|(flag, value)| (flag.to_owned(), value));
        Self {
            plane,
            flags: flags.collect(),
            prefix: Vec::new(),
            mistakes: 0,
        }
    }

    fn set(&mut self, flag: &str, value: &str) {
        self.flags.insert(flag.to_owned(), value.to_owned());
    }

    async fn check(&self) -> Report {
        self.check_with(&[]).await
    }

    /// After a remedy, which may take a moment to have effect.
    async fn corrected(&self) -> Report {
        self.check_with(&["--wait=20s"]).await
    }

    async fn check_with(&self, more: &[&str]) -> Report {
        let flags = self
            .flags
            .iter()
            .map(|(flag, value)| format!("--{flag}={value}"));
        let words = ["check".to_owned(), "-ojson".to_owned()]
            .into_iter()
            .chain(flags);
        let words = words.chain(more.iter().map(|&it| it.to_owned()));
        run(self.plane, &self.prefix, &words.collect::<Vec<_>>()).await
    }

    /// Writes a pair, and sets the flags to it.
    fn pair(&mut self, flags: [&str; 2], name: &str, leaf: &Leaf) {
        for (flag, suffix, pem) in [
            (flags[0], "crt", &leaf.cert_pem),
            (flags[1], "key", &leaf.key_pem),
        ] {
            let path = self.plane.file(&format!("{name}.{suffix}"), pem);
            self.set(flag, &path);
        }
    }

    /// Finds a mistake, and applies its remedy: a value to its flag, or a command; a file is
    /// replaced by `replace`.
    async fn correct(&mut self, name: &str, replace: impl FnOnce(&mut Self, &Value)) {
        let report = self.check().await;
        let remedy = report.failure(name)["remedy"].clone();
        println!("{name}: {}", remedy["text"]);
        if let Some(value) = remedy["value"].as_str() {
            let flag = remedy["flag"].as_str().unwrap().trim_start_matches("--");
            self.set(flag, value);
        } else {
            replace(self, &remedy);
        }
        self.corrected().await.passes();
        self.mistakes += 1;
    }

    /// The same with a command as the remedy.
    async fn correct_by_command(&mut self, name: &str) {
        let report = self.check().await;
        let command = report.failure(name)["remedy"]["command"]
            .as_str()
            .unwrap()
            .to_owned();
        println!("{name}: {command}");
        shell(self.plane, &command).await;
        self.corrected().await.passes();
        self.mistakes += 1;
    }
}

/// For mistakes whose remedy is a value of a flag: another remedy fails the test.
fn by_value(_: &mut Setup<'_>, remedy: &Value) {
    panic!("no value: {remedy:#}");
}

async fn run(plane: &ControlPlane, prefix: &[String], words: &[String]) -> Report {
    let admin = plane.skewbridge_command(OLD, Via::Server, User::Admin);
    let admin = admin.as_std();
    let program = admin.get_program().to_string_lossy().into_owned();
    let line = [prefix, &[program], words].concat();
    let mut command = Command::new(&line[0]);
    command
        .args(&line[1..])
        .env("HOME", "/none")
        .env_remove("KUBECONFIG");
    let output = command.kill_on_drop(true).output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let document = serde_json::from_slice(&output.stdout);
    let document = document.unwrap_or_else(|error| panic!("{error}: {text}{output:?}"));
    let code = output.status.code();
    Report { document, code }
}

/// Runs a command of a remedy with kubectl and skewbridge in PATH.
async fn shell(plane: &ControlPlane, line: &str) {
    let kubectl = plane.kubectl_command(NEW, Via::Server, User::Admin);
    let kubectl = kubectl.as_std();
    let programs = plane.directory().join("programs");
    std::fs::create_dir_all(&programs).unwrap();
    let bridge = plane.skewbridge_command(OLD, Via::Server, User::Admin);
    for (name, program) in [
        ("kubectl", kubectl.get_program()),
        ("skewbridge", bridge.as_std().get_program()),
    ] {
        let file = programs.join(name);
        let _ = std::fs::remove_file(&file);
        std::os::unix::fs::symlink(program, file).unwrap();
    }
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]);
    for (name, value) in bridge.as_std().get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    // There may be no bridge at the address of the node yet.
    shell.env(
        "KUBECONFIG",
        kubeconfig(plane, "direct.conf", loopback(NEW)),
    );
    let output = shell.env("PATH", path).output().await.unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
}

/// Runs the check of the cluster through the bridge of a server.
async fn cluster(plane: &ControlPlane, kubernetes_dir: &str, more: &[&str]) -> Report {
    let admin = kubeconfig(plane, "bridge-admin.conf", SocketAddr::new(node(OLD), PORT));
    let mut words = vec![
        "check".to_owned(),
        "-ojson".to_owned(),
        format!("--kubeconfig={admin}"),
        format!("--kubernetes-dir={kubernetes_dir}"),
        format!("--admin-address={}", plane.servers[OLD].admin),
    ];
    words.extend(more.iter().map(|&it| it.to_owned()));
    run(plane, &[], &words).await
}

/// The kubeconfig of the administrator for a server, in the directory of the plane.
fn kubeconfig(plane: &ControlPlane, name: &str, server: SocketAddr) -> String {
    let file = |name: &str| plane.directory().join(name).display().to_string();
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         contexts: [{{name: a, context: {{cluster: kubernetes, user: admin}}}}]\n\
         clusters: [{{name: kubernetes, cluster: {{server: 'https://{server}', \
         certificate-authority: '{}', tls-server-name: kubernetes}}}}]\n\
         users: [{{name: admin, user: {{client-certificate: '{}', client-key: '{}'}}}}]\n",
        file("ca.crt"),
        file("admin.crt"),
        file("admin.key"),
    );
    plane.file(name, &text)
}

async fn wait_until_peers(plane: &ControlPlane) {
    let special = VersionSpecificApi::POLICIES;
    eventually(
        "an API of the new server",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            // The published address of the old server is that of its bridge.
            plane.status(OLD, Via::Server, special.path).await == 200
        },
    )
    .await;
}

/// A kube-apiserver publishes its address some seconds after its start.
async fn wait_until_published(plane: &ControlPlane) {
    let path = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    eventually(
        "all servers are in the EndpointSlice",
        PEER_DISCOVERY_TIMEOUT,
        async || {
            let mut client = plane.http_client(OLD, Via::Server, Protocol::H1);
            let response = client.send(&Request::get(path)).await;
            let text = response.map(|it| it.text()).unwrap_or_default();
            [OLD, NEW].iter().all(|&server| {
                let address = format!("\"{}\"", node(server));
                text.contains(&address)
            })
        },
    )
    .await;
}

#[tokio::test]
async fn fifteen_mistakes_are_found_and_their_remedies_make_the_check_pass() {
    let Some([old, new]) = old_and_new_versions() else {
        return;
    };
    let test = "check::fifteen_mistakes_are_found_and_their_remedies_make_the_check_pass";
    if !run_in_network_namespace(test, &[node(OLD), node(NEW)]) {
        return;
    }
    let mut plane = start(&old, &new).await;
    let etcd = format!("http://{}", plane.etcd().address);
    let mistakes = before_the_start(&plane, &etcd).await;
    start_bridges(&mut plane);
    for server in [OLD, NEW] {
        let address = SocketAddr::new(node(server), PORT);
        plane.wait_for_ready("a bridge", address).await;
    }
    wait_until_peers(&plane).await;
    wait_until_published(&plane).await;
    // The ports are taken by the bridge that runs.
    let running = Setup::new(&plane, &etcd).check().await;
    running.passes();
    // The limits of the shell that runs the test are not those of a bridge.
    let mut warnings = running.with("warning");
    warnings.retain(|it| it["section"] != "kernel");
    assert!(warnings.is_empty(), "{warnings:#?}");
    let mistakes = mistakes + mistakes_of_a_cluster::of_the_cluster(&mut plane).await;
    assert!(mistakes >= 15, "{mistakes}");
}

// One mistake after the other, as a table.
#[allow(clippy::too_many_lines)]
async fn before_the_start(plane: &ControlPlane, etcd: &str) -> usize {
    let mut setup = Setup::new(plane, etcd);
    let good = setup.flags.clone();
    let serving = ["tls-cert-file", "tls-private-key-file"];
    let front_proxy = ["proxy-client-cert-file", "proxy-client-key-file"];
    let node = node(OLD).to_string();
    let names = [&NAMES[..], &[&node]].concat();
    let issue = || plane.ca().server(&names);

    // No rights: nothing has been applied yet.
    setup.correct_by_command("skewbridge has its rights").await;

    // The key of another certificate.
    let [one, other] = [issue(), issue()];
    setup.pair(serving, "mixed", &one);
    setup.set(
        "tls-private-key-file",
        &plane.file("other.key", &other.key_pem),
    );
    setup
        .correct("--tls-private-key-file", |_, remedy| {
            std::fs::write(remedy["file"].as_str().unwrap(), &one.key_pem).unwrap();
        })
        .await;

    // A certificate that has expired.
    setup.pair(
        serving,
        "expired",
        &plane.ca().server_valid(&names, Validity::Expired),
    );
    setup
        .correct("expired.crt is valid", |setup, remedy| {
            assert!(remedy["file"].as_str().unwrap().ends_with("expired.crt"));
            setup.pair(serving, "expired", &issue());
        })
        .await;

    // A certificate without the name that peers verify.
    setup.pair(
        serving,
        "nameless",
        &plane.ca().server(&["localhost", &node]),
    );
    setup
        .correct("is for kubernetes.default.svc", |setup, remedy| {
            assert!(remedy["file"].as_str().unwrap().ends_with("nameless.crt"));
            setup.pair(serving, "nameless", &issue());
        })
        .await;

    // The CA and the name of kube-apiserver.
    setup.flags = good.clone();
    setup.set("upstream-ca-file", &good["requestheader-client-ca-file"]);
    setup.correct("certificate is trusted", by_value).await;
    setup.set("upstream-server-name", "api.example.com");
    setup.correct("certificate is trusted", by_value).await;

    // A port where no kube-apiserver listens.
    setup.flags = good.clone();
    setup.set("upstream", "https://127.0.0.9:6443");
    setup
        .correct("is reached", |setup, remedy| {
            assert_eq!(remedy["flag"], "--upstream");
            setup.set("upstream", &good["upstream"]);
        })
        .await;

    // A front-proxy certificate of a CA that kube-apiserver does not know.
    let foreign = Ca::new("another").client("front-proxy-client", &[]);
    setup.pair(front_proxy, "foreign", &foreign);
    setup
        .correct("accepts users that the bridge asserts", |setup, remedy| {
            assert!(remedy["file"].as_str().unwrap().ends_with("foreign.crt"));
            let issued = plane.front_proxy_ca().client("front-proxy-client", &[]);
            setup.pair(front_proxy, "foreign", &issued);
        })
        .await;

    // A CA of users that may also sign front proxies.
    setup.flags = good.clone();
    let both = [&plane.front_proxy_ca().pem(), "\n", &plane.ca().pem()].concat();
    setup.set(
        "requestheader-client-ca-file",
        &plane.file("both.crt", &both),
    );
    setup.flags.remove("requestheader-allowed-names");
    setup
        .correct("--requestheader-client-ca-file", by_value)
        .await;

    // No such file.
    setup.flags = good.clone();
    setup.set("peer-ca-file", "/none/peer-ca.crt");
    setup.correct("--peer-ca-file", by_value).await;

    // A port that another program has.
    setup.flags = good.clone();
    let taken = TcpListener::bind((self::node(OLD), PORT)).unwrap();
    setup.correct("can be opened", by_value).await;
    drop(taken);

    // A file that the user of the bridge may not read.
    unreadable(&mut setup, &good, &issue()).await;

    // etcd: the wrong port, and a client certificate that it does not accept.
    setup.flags = good.clone();
    setup.set("etcd-servers", "http://127.0.0.1:1");
    setup
        .correct("is readable and writable", |setup, remedy| {
            assert_eq!(remedy["flag"], "--etcd-servers");
            setup.set("etcd-servers", &good["etcd-servers"]);
        })
        .await;
    certificate_for_etcd(&mut setup, &good).await;

    // A peer in the file that is gone.
    setup.flags = good.clone();
    let dead = "peers:\n- identity: apiserver-gone\n  address: 127.0.0.8:6443\n";
    let file = plane.file("peers.yaml", dead);
    setup.set("peer-registry", &format!("file:{file}"));
    setup
        .correct("apiserver-gone", |_, remedy| {
            assert_eq!(remedy["file"], file);
            std::fs::write(&file, "peers: []\n").unwrap();
        })
        .await;

    // Too few open files.
    setup.flags = good;
    setup.prefix = ["sh", "-c", "ulimit -n 2000; exec \"$@\"", "sh"]
        .map(str::to_owned)
        .to_vec();
    setup.correct("open files", by_value).await;
    setup.mistakes
}

/// The check runs as the user of the bridge, in a group that may read its files.
async fn unreadable(setup: &mut Setup<'_>, good: &BTreeMap<String, String>, leaf: &Leaf) {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = std::env::temp_dir().join(format!("skewbridge-check-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let permit = |path: &PathBuf, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    permit(&directory, 0o755);
    setup.flags = good.clone();
    let program = setup
        .plane
        .skewbridge_command(OLD, Via::Server, User::Admin);
    let copy = directory.join("skewbridge");
    std::fs::copy(program.as_std().get_program(), &copy).unwrap();
    for value in setup.flags.values_mut() {
        let from = PathBuf::from(&value);
        if let (true, Some(name)) = (from.is_absolute(), from.file_name()) {
            let to = directory.join(name);
            std::fs::copy(&from, &to).unwrap();
            permit(&to, 0o644);
            *value = to.display().to_string();
        }
    }
    let key = directory.join("unreadable.key");
    std::fs::write(&key, &leaf.key_pem).unwrap();
    permit(&key, 0o600);
    let cert = directory.join("unreadable.crt");
    std::fs::write(&cert, &leaf.cert_pem).unwrap();
    setup.set("tls-cert-file", &cert.display().to_string());
    setup.set("tls-private-key-file", &key.display().to_string());
    // The program of the prefix is replaced by the copy, which this user may run.
    let script = format!(
        "shift; exec setpriv --reuid=65534 --regid=65534 --clear-groups {} \"$@\"",
        copy.display()
    );
    setup.prefix = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    setup.correct_by_command("unreadable.key").await;
    setup.prefix.clear();
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Another etcd, which accepts only clients with a certificate of its CA.
async fn certificate_for_etcd(setup: &mut Setup<'_>, good: &BTreeMap<String, String>) {
    let plane = setup.plane;
    let ca = Ca::new("etcd-ca");
    let serving = ca.server(&["127.0.0.1", "localhost"]);
    let file = |name: &str, text: &str| plane.file(name, text);
    let tls = EtcdTls {
        ca: file("etcd-ca.crt", &ca.pem()).into(),
        certificate: file("etcd.crt", &serving.cert_pem).into(),
        key: file("etcd.key", &serving.key_pem).into(),
    };
    let directory = plane.directory().join("etcd-tls");
    std::fs::create_dir_all(&directory).unwrap();
    let etcd = Etcd::start_tls(&directory, &tls);
    setup.flags = good.clone();
    setup.set("etcd-servers", &format!("https://{}", etcd.address));
    setup.set("etcd-cafile", &tls.ca.display().to_string());
    let flags = ["etcd-certfile", "etcd-keyfile"];
    setup.pair(flags, "etcd-client", &ca.client("skewbridge", &[]));
    eventually("etcd answers", PEER_DISCOVERY_TIMEOUT, async || {
        setup.check().await.code == Some(0)
    })
    .await;
    setup.pair(
        flags,
        "etcd-foreign",
        &Ca::new("another").client("skewbridge", &[]),
    );
    setup
        .correct("is readable and writable", |setup, remedy| {
            assert_eq!(remedy["flag"], "--etcd-certfile");
            assert!(
                remedy["file"]
                    .as_str()
                    .unwrap()
                    .ends_with("etcd-foreign.crt")
            );
            setup.pair(flags, "etcd-foreign", &ca.client("skewbridge", &[]));
        })
        .await;
}
