//! `skewbridge run`: a command that knows nothing of plugins. The command, and the
//! plugin, are this test program.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use http::{Method, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use skewbridge_client::kubeconfig::Material;
use skewbridge_client::{Endpoint, Kubeconfig, Request};
use skewbridge_harness::forward::BoxFuture;
use skewbridge_harness::{Asked, Harness, IgnoredSignals, ModifyError, Outgoing, RequestModifier};
use skewbridge_testkit::{
    ApiServer, Ca, Options, PATIENCE, Reply, ScratchDir, Seen, Stopwatch, eventually,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::SignalKind;

/// More than any of it takes.
const PATIENT: Option<Duration> = Some(Duration::from_mins(1));

/// What the plugin adds to each request.
const BADGE: &str = "x-badge";

struct Stage {
    dir: ScratchDir,
    ca: Ca,
    server: ApiServer,
}

impl Stage {
    async fn new() -> Self {
        Self::with(|seen| {
            let header = |name| seen.header(name).unwrap_or("none").to_owned();
            Reply::json(format!(
                "{} {} {}",
                seen.target,
                header("authorization"),
                header(BADGE)
            ))
        })
        .await
    }

    async fn with(answer: impl Fn(Seen) -> Reply + Send + Sync + 'static) -> Self {
        let ca = Ca::new("cluster");
        let options = Options::new(ca.server(&["127.0.0.1"]));
        Self {
            dir: ScratchDir::new(),
            server: ApiServer::start(options, answer).await,
            ca,
        }
    }

    /// The plugin, as it stands in a kubeconfig.
    fn plugin(&self) -> Value {
        // The test program says things on its standard output; the plugin's is 3.
        let script = "exec \"$0\" --ignored --exact a_plugin --nocapture 3>&1 >/dev/null";
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script, std::env::current_exe().unwrap()],
            "env": [{"name": "PLUGIN_DIR", "value": self.dir.path()}],
            "interactiveMode": "Never",
            "provideClusterInfo": true,
        }})
    }

    fn kubeconfig(&self, user: &Value) -> PathBuf {
        let ca = self.dir.write("ca.crt", self.ca.pem());
        let config = json!({
            "current-context": "elsewhere",
            "contexts": [
                {"name": "elsewhere", "context": {"cluster": "none", "user": "none"}},
                {"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "shop"}},
            ],
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://{}/prefix", self.server.addr()),
                "certificate-authority": ca,
            }}],
            "users": [{"name": "u", "user": user}],
        });
        self.dir.write("kubeconfig", config.to_string())
    }

    /// `skewbridge run` as this user, and whatever follows.
    fn run(&self, user: &Value) -> Command {
        let runtime = self.dir.path().join("runtime");
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&runtime);
        let mut command = Command::new(env!("CARGO_BIN_EXE_skewbridge"));
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(self.kubeconfig(user))
            .arg("--context=c")
            .env("XDG_RUNTIME_DIR", runtime)
            .env("CHILD_DIR", self.dir.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null());
        command
    }

    /// The same, with a script as its command.
    fn script(&self, user: &Value, script: &str) -> Command {
        let mut command = self.run(user);
        command.args(["--", "sh", "-c", script]);
        command
    }

    /// The same, with this test program as its command, to do `what`.
    fn asking(&self, user: &Value, what: &str) -> Command {
        let mut command = self.run(user);
        command
            .arg("--")
            .arg(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "a_command"])
            .env("CHILD_ASKS", what);
        command
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    /// What is left of all that was made for commands and plugins.
    fn left(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("runtime"))
            .unwrap()
            .count()
    }
}

/// Runs it while the servers of this test run.
async fn output(mut command: Command) -> Output {
    let done = tokio::task::spawn_blocking(move || command.output());
    done.await.unwrap().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn token() -> Value {
    json!({"token": "secret-token"})
}

#[test]
#[ignore = "it is executed by the other tests"]
fn a_plugin() {
    struct Badge;
    impl RequestModifier for Badge {
        fn name(&self) -> &'static str {
            "badge"
        }
        fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
            Box::pin(async move {
                let badge = http::HeaderValue::from_static("4711");
                request.headers.insert(BADGE, badge);
                Ok(())
            })
        }
    }
    let Ok(dir) = std::env::var("PLUGIN_DIR") else {
        return;
    };
    let mut options = OpenOptions::new();
    let execs = options
        .create(true)
        .append(true)
        .open(Path::new(&dir).join("execs"));
    writeln!(execs.unwrap(), "{}", std::process::id()).unwrap();
    let pipe = OpenOptions::new()
        .write(true)
        .open("/proc/self/fd/3")
        .unwrap();
    rustix::stdio::dup2_stdout(pipe).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let asked = Asked::from_environment().unwrap();
    runtime
        .block_on(Harness::new().modifier(Badge).run(&asked))
        .unwrap();
    std::process::exit(0);
}

#[test]
#[ignore = "it is executed by the other tests"]
fn a_command() {
    let Ok(asks) = std::env::var("CHILD_ASKS") else {
        return;
    };
    let dir = PathBuf::from(std::env::var("CHILD_DIR").unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let target = Kubeconfig::load(None).unwrap().target(None).unwrap();
        assert_eq!(target.context, "c");
        assert_eq!(target.namespace.as_deref(), Some("shop"));
        let endpoint = Endpoint::prepare(&target, PATIENT).await.unwrap();
        let mut connection = endpoint.connect().await.unwrap();
        if asks == "upgrade" {
            let request = Request::new(Method::POST, "/upgrade")
                .header("connection", "Upgrade")
                .header("upgrade", "SPDY/3.1");
            let answer = connection.send(&request).await.unwrap();
            assert_eq!(answer.status, StatusCode::SWITCHING_PROTOCOLS);
            let (mut stream, early) = connection.into_parts();
            assert!(early.is_empty());
            stream.write_all(b"ping").await.unwrap();
            stream.flush().await.unwrap();
            let mut heard = [0; 4];
            stream.read_exact(&mut heard).await.unwrap();
            assert_eq!(&heard, b"pong");
        }
        let mut connection = endpoint.connect().await.unwrap();
        if let Some(first) = asks.strip_prefix("first ") {
            let request = match first {
                "" => Request::get("/first"),
                path if path.starts_with('/') => Request::get(path),
                token => Request::get("/first").header("authorization", token),
            };
            let answer = connection.send(&request).await.unwrap();
            std::fs::write(dir.join("first"), answer.status.as_str()).unwrap();
        }
        let answer = connection.send(&Request::get("/asked")).await.unwrap();
        std::fs::write(dir.join("answer"), &answer.body).unwrap();
        std::fs::write(dir.join("server"), &target.cluster.server).unwrap();
    });
}

#[tokio::test]
async fn requests_go_through_the_proxy_of_the_plugin_and_nothing_is_left() {
    let stage = Stage::new().await;
    let ran = output(stage.asking(&stage.plugin(), "get")).await;
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(stage.read("answer"), "/prefix/asked none 4711");
    assert!(stage.read("server").starts_with("https://127.0.0.1:"));
    let plugin = stage.read("execs");
    assert_eq!(plugin.lines().count(), 1);
    eventually("the end of all that was made", PATIENCE, async || {
        stage.left() == 0 && is_gone(plugin.trim())
    })
    .await;
}

#[tokio::test]
async fn the_reference_plugin_needs_no_more_than_its_name() {
    let stage = Stage::new().await;
    let headers = stage
        .dir
        .write("headers", format!("{BADGE}: from-a-file\n"));
    std::fs::set_permissions(&headers, std::fs::Permissions::from_mode(0o600)).unwrap();
    let user = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": env!("CARGO_BIN_EXE_skewbridge"),
        "args": ["agent", "--signer=headers", "--headers-file", headers],
        "interactiveMode": "Never",
        "provideClusterInfo": true,
    }});
    let ran = output(stage.asking(&user, "get")).await;
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(stage.read("answer"), "/prefix/asked none from-a-file");
    eventually("the end of all that was made", PATIENCE, async || {
        stage.left() == 0
    })
    .await;
}

#[tokio::test]
async fn plain_credentials_go_straight_to_the_cluster_and_the_command_does_not_see_them() {
    let stage = Stage::new().await;
    let ran = output(stage.asking(&token(), "get")).await;
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(
        stage.read("answer"),
        "/prefix/asked Bearer secret-token none"
    );
    let script = "cat \"$KUBECONFIG\"; env; cat /proc/$PPID/cmdline";
    let ran = output(stage.script(&token(), script)).await;
    let seen = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(seen.contains("\"namespace\":\"shop\"") && seen.contains("SKEWBRIDGE_CONTEXT=c"));
    assert!(!seen.contains("secret-token"), "{seen}");
}

/// A user whose plugin gives `token-1`, `token-2` and so on.
fn tokens(stage: &Stage, status: &str) -> Value {
    let script = format!(
        "cd {}; echo x >> count; n=$(wc -l < count | tr -d ' '); \
         echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\
         \"status\":{{{status}\"token\":\"token-'$n'\"}}}}'",
        stage.dir.path().display()
    );
    json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", script],
    }})
}

#[tokio::test]
async fn what_had_expired_when_it_came_costs_one_exec_for_each_request() {
    let stage = Stage::new().await;
    let user = tokens(&stage, "\"expirationTimestamp\":\"2001-01-01T00:00:00Z\",");
    let ran = output(stage.asking(&user, "get")).await;
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(stage.read("answer"), "/prefix/asked Bearer token-1 none");
    assert_eq!(stage.read("count").lines().count(), 1);
    let ran = output(stage.asking(&user, "first ")).await;
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(stage.read("answer"), "/prefix/asked Bearer token-3 none");
    assert_eq!(stage.read("count").lines().count(), 3);
}

#[tokio::test]
async fn after_401_the_plugin_is_asked_again_unless_the_command_had_its_own_token() {
    const WORKLOAD: &str = "first /api/v1/namespaces/shop/services/web/proxy/login";
    let rows = [
        ("first ", "/prefix/asked Bearer token-2", 2),
        ("first Bearer its-own", "/prefix/asked Bearer token-1", 1),
        // Nor if it was a workload that said so.
        (WORKLOAD, "/prefix/asked Bearer token-1", 1),
    ];
    for (asks, answer, execs) in rows {
        let stage = Stage::with(move |seen| {
            let token = seen.header("authorization").unwrap_or("none");
            let is_refused = match asks {
                "first " => token == "Bearer token-1",
                WORKLOAD => seen.path().ends_with("/proxy/login"),
                _ => token == "Bearer its-own",
            };
            if is_refused {
                return Reply::new(401);
            }
            Reply::json(format!("{} {token}", seen.target))
        })
        .await;
        let user = tokens(&stage, "");
        let ran = output(stage.asking(&user, asks)).await;
        assert!(ran.status.success(), "{}", said(&ran));
        assert_eq!(
            (&*stage.read("first"), &*stage.read("answer")),
            ("401", answer)
        );
        assert_eq!(stage.read("count").lines().count(), execs);
    }
}

#[tokio::test]
async fn streams_are_carried_and_so_is_what_they_say() {
    let (reply, stream) = Reply::upgrade("SPDY/3.1");
    let reply = std::sync::Mutex::new(Some(reply));
    let stage = Stage::with(move |seen| match seen.path() {
        "/prefix/upgrade" => reply.lock().unwrap().take().unwrap(),
        _ => Reply::json("done"),
    })
    .await;
    let far = tokio::spawn(async move {
        let mut far = stream.connection().await;
        let mut heard = [0; 4];
        far.read_exact(&mut heard).await.unwrap();
        far.write_all(b"pong").await.unwrap();
        far.flush().await.unwrap();
        far
    });
    let ran = output(stage.asking(&stage.plugin(), "upgrade")).await;
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(stage.read("answer"), "done");
    far.await.unwrap();
}

#[tokio::test]
async fn the_exit_code_is_the_commands() {
    let stage = Stage::new().await;
    for (script, code) in [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137)] {
        let ran = output(stage.script(&token(), script)).await;
        assert_eq!(ran.status.code(), Some(code), "{script}");
        assert_eq!(said(&ran), "");
    }
    let mut absent = stage.run(&token());
    absent.args(["--", "/nonexistent/kubectl"]);
    let ran = output(absent).await;
    assert_eq!(ran.status.code(), Some(127));
    assert_eq!(
        said(&ran),
        "skewbridge: /nonexistent/kubectl: command not found\n"
    );
    let mut none = stage.run(&token());
    none.args(["--", "/"]);
    assert_eq!(output(none).await.status.code(), Some(126));
    let ran = output(stage.run(&token())).await;
    assert_eq!(ran.status.code(), Some(64));
    let failing = json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
        "command": "sh", "args": ["-c", "echo no card >&2; exit 1"],
    }});
    let ran = output(stage.script(&failing, "echo ran")).await;
    assert_eq!(ran.status.code(), Some(125));
    assert_eq!(
        said(&ran),
        "skewbridge: getting credentials: exec: sh (user \"u\"): failed with exit status: 1; it \
         said: no card\n"
    );
    assert!(ran.stdout.is_empty());
}

#[tokio::test]
async fn signals_reach_the_command() {
    let stage = Stage::new().await;
    let ignored = IgnoredSignals::now();
    for (signal, kind, name) in [
        (Signal::TERM, SignalKind::terminate(), "TERM"),
        (Signal::HUP, SignalKind::hangup(), "HUP"),
        (Signal::INT, SignalKind::interrupt(), "INT"),
    ] {
        // By whoever runs this test, in the background or with nohup.
        if ignored.contains(kind) {
            continue;
        }
        let ready = stage.dir.path().join("ready");
        let _ = std::fs::remove_file(&ready);
        let script = format!(
            "trap 'exit 33' {name}; echo $$ > {}; while :; do sleep 0.1; done",
            ready.display()
        );
        let command = stage.script(&token(), &script);
        // In a session of its own there is no terminal whose keys it could be.
        let run = started_by(&["setsid", "--wait"], &command).spawn().unwrap();
        eventually("the command", PATIENCE * 2, async || {
            stage.read("ready").ends_with('\n')
        })
        .await;
        let command: i32 = stage.read("ready").trim().parse().unwrap();
        let bridge = parent_of(command);
        kill_process(Pid::from_raw(bridge).unwrap(), signal).unwrap();
        let ended = tokio::task::spawn_blocking(move || run.wait_with_output());
        let ended = ended.await.unwrap().unwrap();
        assert_eq!(ended.status.code(), Some(33), "{name}");
    }
}

#[tokio::test]
async fn a_signal_while_the_plugin_runs_ends_both_and_nothing_is_left() {
    let stage = Stage::new().await;
    let ignored = IgnoredSignals::now();
    for (signal, kind, code) in [
        (Signal::TERM, SignalKind::terminate(), 143),
        (Signal::HUP, SignalKind::hangup(), 129),
        (Signal::INT, SignalKind::interrupt(), 130),
    ] {
        // By whoever runs this test, in the background or with nohup.
        if ignored.contains(kind) {
            continue;
        }
        let hangs = stage.dir.path().join("hangs");
        let _ = std::fs::remove_file(&hangs);
        let script = format!("echo $$ > {}; exec sleep 300", hangs.display());
        let plugin = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "interactiveMode": "Never",
        }});
        let run = stage.script(&plugin, "true").spawn().unwrap();
        eventually("the plugin", PATIENCE * 2, async || {
            stage.read("hangs").ends_with('\n')
        })
        .await;
        assert_eq!(stage.left(), 1, "the lock");
        kill_process(Pid::from_child(&run), signal).unwrap();
        let ended = tokio::task::spawn_blocking(move || run.wait_with_output());
        let ended = ended.await.unwrap().unwrap();
        assert_eq!(ended.status.code(), Some(code));
        let plugin = stage.read("hangs").trim().to_owned();
        eventually("its end", PATIENCE, async || is_gone(&plugin)).await;
        assert_eq!(stage.left(), 0);
    }
}

/// The same command, as what these words start.
fn started_by(words: &[&str], command: &Command) -> Command {
    let mut started = Command::new(words[0]);
    started
        .args(&words[1..])
        .arg(command.get_program())
        .args(command.get_args())
        .stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => started.env(name, value),
            None => started.env_remove(name),
        };
    }
    started
}

/// Whether a process has ended, be it that nobody has asked how.
fn is_gone(process: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

fn parent_of(process: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    rest.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn only_the_command_has_what_the_listener_asks_for() {
    let stage = Stage::new().await;
    let script = "stat -c '%a %u' \"$KUBECONFIG\" \"$(dirname \"$KUBECONFIG\")\"; \
                  cp \"$KUBECONFIG\" \"$CHILD_DIR/copy\"; read line < \"$CHILD_DIR/go\"";
    let go = stage.dir.path().join("go");
    assert!(Command::new("mkfifo").arg(&go).status().unwrap().success());
    let command = stage.script(&token(), script);
    let running = tokio::spawn(output(command));
    eventually("a copy", PATIENCE * 2, async || {
        stage.read("copy").ends_with('}')
    })
    .await;
    let config = Kubeconfig::parse(&stage.read("copy"), Path::new("/nonexistent/x")).unwrap();
    let mut target = config.target(None).unwrap();
    let get = async |target: &skewbridge_client::Target| {
        let endpoint = Endpoint::prepare(target, PATIENT).await?;
        let mut connection = endpoint.connect().await?;
        connection.send(&Request::get("/")).await
    };
    let asked = stage.server.requests().len();
    assert!(get(&target).await.is_ok());
    openssl_would_not_take_it_for_self_signed(&target).await;
    target.user.client_certificate = None;
    target.user.client_key = None;
    assert!(get(&target).await.is_err());
    let stranger = Ca::new("client").client("client", &[]);
    let data = |text: &str| {
        let secret = skewbridge_client::Secret::new(text);
        Some(Material::Data(secret))
    };
    target.user.client_certificate = data(&stranger.cert_pem);
    target.user.client_key = data(&stranger.key_pem);
    assert!(get(&target).await.is_err());
    assert_eq!(stage.server.requests().len(), asked + 1);
    let me = std::fs::metadata(stage.dir.path()).unwrap().uid();
    std::fs::write(&go, "go\n").unwrap();
    let ran = running.await.unwrap();
    let modes = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(modes, format!("600 {me}\n700 {me}\n"));
    assert_eq!(stage.left(), 0);
}

/// Python's clients, and others on OpenSSL, take a certificate whose issuer is called as
/// its owner for one that is signed by itself, and refuse it.
async fn openssl_would_not_take_it_for_self_signed(target: &skewbridge_client::Target) {
    let pem = |material: &Option<Material>| match material {
        Some(Material::Data(pem)) => pem.expose().to_vec(),
        other => panic!("{other:?}"),
    };
    let authority = pem(&target.cluster.certificate_authority);
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_slice(&authority).unwrap())
        .unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = target.cluster.server.strip_prefix("https://").unwrap();
    let (server, _) = server.split_once('/').unwrap();
    let stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let stream = connector.connect(name, stream).await.unwrap();
    let shown = stream.get_ref().1.peer_certificates().unwrap();
    let (_, shown) = x509_parser::parse_x509_certificate(&shown[0]).unwrap();
    assert_ne!(shown.subject(), shown.issuer());
}

#[tokio::test]
async fn a_bridge_that_is_killed_takes_its_plugin_along() {
    let stage = Stage::new().await;
    let script = "echo $$ > \"$CHILD_DIR/ready\"; exec sleep 300";
    let mut run = stage.script(&stage.plugin(), script).spawn().unwrap();
    eventually("the command", PATIENCE * 2, async || {
        stage.read("ready").ends_with('\n')
    })
    .await;
    let plugin = stage.read("execs").trim().to_owned();
    let watch = Stopwatch::start();
    run.kill().unwrap();
    run.wait().unwrap();
    let limit = Duration::from_secs(2);
    let gone = async || is_gone(&plugin);
    watch.within(limit, "the end of the plugin", gone).await;
    let command = stage.read("ready").trim().parse().unwrap();
    kill_process(Pid::from_raw(command).unwrap(), Signal::KILL).unwrap();
    // Its own directory is worthless now, and the next one removes it.
    let ran = output(stage.script(&token(), "true")).await;
    assert!(ran.status.success());
    assert_eq!(stage.left(), 0);
}

#[tokio::test]
async fn what_is_ignored_at_the_start_stays_ignored() {
    let stage = Stage::new().await;
    let run = stage.script(&token(), "kill -HUP $$ && kill -HUP $PPID && echo alive");
    let nohup = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"];
    let ran = output(started_by(&nohup, &run)).await;
    assert!(ran.status.success(), "{}", said(&ran));
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "alive\n");
}

#[tokio::test]
async fn a_shell_has_the_kubeconfig_and_a_hint() {
    let stage = Stage::new().await;
    let shell = stage.dir.write_program(
        "shell",
        "#!/bin/sh\necho \"$PS1\"; test -r \"$KUBECONFIG\"\n",
    );
    let mut command = stage.run(&token());
    command.arg("--shell").env("SHELL", shell);
    let ran = output(command).await;
    assert!(ran.status.success());
    let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert_eq!(printed, "($SKEWBRIDGE_CONTEXT) $ \n");
    assert!(
        said(&ran).contains("a shell for the context \"c\""),
        "{}",
        said(&ran)
    );
}
