//! The life of an agent, from its start to its end.

use std::fs::File;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use skewbridge_testkit::{Stopwatch, count_in_memory, eventually};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::agent_fixture::{AgentFixture, Client, FILE, Plugin, TEST_TIMEOUT, get, is_gone};

/// Time for a plugin to exit after its client has exited.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_plugin_ends_with_a_killed_client_and_leaves_nothing_behind() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let mut client = Client::start(&fixture);
    let mut plugin = fixture.start(server.addr(), &client, &[]);
    let socket = plugin.socket();
    let mode = |path: &Path| {
        std::fs::symlink_metadata(path)
            .unwrap()
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(&socket), 0o600);
    assert_eq!(mode(socket.parent().unwrap()), 0o700);
    let entries = std::fs::read_dir(socket.parent().unwrap()).unwrap().count();
    assert_eq!(entries, 1, "nothing but the socket is on disk");
    let answer = plugin.get("/whoami").await.unwrap();
    assert!(answer.contains("\njane\r\n"), "{answer}");
    let process = format!("/proc/{}", plugin.child.id());
    for secret in ["cmdline", "environ"] {
        // The files of a process that is not dumpable may be unreadable.
        let content = std::fs::read(format!("{process}/{secret}")).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&content).contains("PRIVATE KEY"));
    }
    let watch = Stopwatch::start();
    client.kill();
    plugin.ends_within(EXIT_TIMEOUT, &watch).await;
    assert!(
        fixture.remaining_files().is_empty(),
        "{:?}",
        fixture.remaining_files()
    );
    assert!(!client.lock.exists());
    assert!(!client.lock.parent().unwrap().exists());
}

/// From the release of the lock, which is shortly after the client's death.
#[tokio::test]
async fn a_plugin_ends_within_a_second_of_the_locks_release() {
    const DOCUMENTED_EXIT_TIMEOUT: Duration = Duration::from_secs(1);
    // A busy machine may exceed the time in some rounds, but not in all.
    const ROUNDS: usize = 5;
    let mut best = Duration::MAX;
    for round in 1..=ROUNDS {
        let fixture = AgentFixture::new();
        let server = fixture.server().await;
        let directory = fixture.dir.path().join("skewbridge-client");
        std::fs::create_dir(&directory).unwrap();
        let path = directory.join("lock");
        let lock = File::create(&path).unwrap();
        lock.lock().unwrap();
        let info = fixture.info(&format!("https://{}", server.addr()), Some(&path));
        let mut plugin = Plugin::start(fixture.agent(&info, &FILE));
        let socket = plugin.socket();
        assert!(plugin.get("/").await.unwrap().contains("\njane\r\n"));
        assert!(socket.exists());
        let released = Instant::now();
        lock.unlock().unwrap();
        eventually("the end of the socket", TEST_TIMEOUT, async || {
            !socket.exists()
        })
        .await;
        best = best.min(released.elapsed());
        println!(
            "round {round}: the socket was gone {:?} after the lock's release",
            released.elapsed()
        );
        assert!(plugin.ended().await.success());
        assert!(fixture.remaining_files().is_empty() && !directory.exists());
        if best <= DOCUMENTED_EXIT_TIMEOUT {
            return;
        }
    }
    panic!("it took {best:?} at best");
}

/// An empty pipe in place of a file.
fn pipe(fixture: &AgentFixture, name: &str) -> PathBuf {
    let pipe = fixture.dir.path().join(name);
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    pipe
}

/// The other end of the pipe: opening it waits for a reader.
fn writer(pipe: &Path) -> File {
    let (sender, opened) = std::sync::mpsc::channel();
    let pipe = pipe.to_owned();
    std::thread::spawn(move || sender.send(std::fs::OpenOptions::new().write(true).open(pipe)));
    let opened = opened.recv_timeout(TEST_TIMEOUT);
    opened.expect("no process reads it").unwrap()
}

/// A plugin that waits for its key.
fn start_with_pending_key(fixture: &AgentFixture, client: &Client) -> (Plugin, File) {
    let pipe = pipe(fixture, "key");
    let info = fixture.info("https://127.0.0.1:1", Some(&client.lock));
    let key = [
        "--signer=http-signature",
        "--http-signature-key-id=laptop",
        "--http-signature-secret=key",
    ];
    let plugin = Plugin::spawn(fixture.agent(&info, &key));
    let writer = writer(&pipe);
    (plugin, writer)
}

#[tokio::test]
async fn a_plugin_that_waits_for_a_secret_still_ends_with_its_client() {
    for kill in [true, false] {
        let fixture = AgentFixture::new();
        let mut client = Client::start(&fixture);
        let pipe = pipe(&fixture, "badge");
        let info = fixture.info("https://127.0.0.1:1", Some(&client.lock));
        let args = ["--signer=headers", "--headers-file=badge"];
        let mut plugin = Plugin::start(fixture.agent(&info, &args));
        let printed = plugin.printed.clone();
        let ending = async {
            let badge = tokio::task::spawn_blocking(move || writer(&pipe));
            let _badge = badge.await.unwrap();
            let watch = Stopwatch::start();
            if kill {
                client.kill();
            } else {
                plugin.signal(Signal::TERM);
            }
            plugin.ends_within(EXIT_TIMEOUT, &watch).await;
        };
        let (_, ()) = tokio::join!(get(&printed, "/"), ending);
        assert!(
            fixture.remaining_files().is_empty(),
            "{:?}",
            fixture.remaining_files()
        );
    }
}

#[tokio::test]
async fn a_plugin_that_is_starting_ends_with_a_killed_client() {
    let fixture = AgentFixture::new();
    let mut client = Client::start(&fixture);
    let (mut plugin, _writer) = start_with_pending_key(&fixture, &client);
    let watch = Stopwatch::start();
    client.kill();
    plugin.ends_within(EXIT_TIMEOUT, &watch).await;
    assert!(
        fixture.remaining_files().is_empty(),
        "{:?}",
        fixture.remaining_files()
    );
    assert!(!client.lock.parent().unwrap().exists());
}

#[tokio::test]
async fn a_plugin_that_is_starting_handles_signals_and_a_closed_pipe() {
    let fixture = AgentFixture::new();
    let client = Client::start(&fixture);
    let (mut plugin, writer) = start_with_pending_key(&fixture, &client);
    plugin.signal(Signal::INT);
    assert!(plugin.is_running());
    let watch = Stopwatch::start();
    plugin.signal(Signal::TERM);
    plugin.ends_within(EXIT_TIMEOUT, &watch).await;
    drop(writer);
    std::fs::remove_file(fixture.dir.path().join("key")).unwrap();
    let (mut plugin, _writer) = start_with_pending_key(&fixture, &client);
    let watch = Stopwatch::start();
    drop(plugin.child.stdout.take());
    plugin.ends_within(EXIT_TIMEOUT, &watch).await;
    assert!(client.lock.exists(), "the client still runs");
}

#[tokio::test]
async fn a_plugin_ends_after_the_idle_timeout() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let mut plugin = fixture.start(server.addr(), &client, &["--idle-timeout=200ms"]);
    assert!(plugin.ended().await.success());
    assert!(fixture.remaining_files().is_empty());
    assert!(client.lock.exists(), "the client still runs");
    let help = fixture.agent("", &["--help"]).output().unwrap().stdout;
    let help = String::from_utf8_lossy(&help).into_owned();
    let (_, idle) = help.split_once("--idle-timeout").unwrap();
    let (_, default) = idle.split_once("[default: ").unwrap();
    assert!(default.starts_with("5m]"), "{idle}");
}

#[tokio::test]
async fn a_signal_ends_the_plugin_and_an_interrupt_is_left_to_the_client() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let mut plugin = fixture.start(server.addr(), &client, &[]);
    plugin.signal(Signal::INT);
    plugin.signal(Signal::QUIT);
    assert!(plugin.get("/").await.unwrap().contains("\njane\r\n"));
    assert!(plugin.is_running());
    plugin.signal(Signal::TERM);
    assert!(plugin.ended().await.success());
    assert!(fixture.remaining_files().is_empty());
}

#[tokio::test]
async fn a_loopback_port_accepts_only_its_client() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let plugin = fixture.start(server.addr(), &client, &["--listen=tcp"]);
    assert!(
        plugin.url().starts_with("https://127.0.0.1:"),
        "{}",
        plugin.url()
    );
    assert!(plugin.get("/").await.unwrap().contains("\njane\r\n"));
    let elsewhere = AgentFixture::new();
    let other = Client::start(&elsewhere);
    let other = fixture.start(server.addr(), &other, &["--listen=tcp"]);
    let mut other_client = plugin.printed.clone();
    for field in ["clientCertificateData", "clientKeyData"] {
        other_client["status"][field] = other.printed["status"][field].clone();
    }
    let answer = get(&other_client, "/").await;
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn clients_of_one_configuration_share_an_instance_that_outlives_them() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let mut client = Client::start(&fixture);
    let mut first = fixture.start(server.addr(), &client, &["--shared"]);
    assert!(
        first.ended().await.success(),
        "the requesting process exits"
    );
    let mut second = fixture.start(server.addr(), &client, &["--shared"]);
    assert!(second.ended().await.success());
    assert_eq!(first.url(), second.url(), "one process");
    let certificate = |plugin: &Plugin| plugin.printed["status"]["clientCertificateData"].clone();
    assert_ne!(
        certificate(&first),
        certificate(&second),
        "each has its own"
    );
    let args = ["--shared", "--max-signed-body=1"];
    let mut other = fixture.start(server.addr(), &client, &args);
    assert!(other.ended().await.success());
    assert_ne!(
        first.url(),
        other.url(),
        "another configuration, another process"
    );
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let mut command = fixture.agent(&info, &[&FILE[..], &["--shared"]].concat());
    command.env("TOKEN_OF_SOME_TOOL", "joe");
    let mut other_client = Plugin::start(command);
    assert!(other_client.ended().await.success());
    assert_ne!(
        first.url(),
        other_client.url(),
        "another environment, perhaps another user"
    );
    client.kill();
    assert!(first.get("/").await.unwrap().contains("\njane\r\n"));
    assert!(second.get("/").await.unwrap().contains("\njane\r\n"));
    assert_eq!(server.connections(), 1);
    for plugin in [&first, &other, &other_client] {
        end_instance_at(plugin).await;
    }
    assert!(
        fixture.instance_files().is_empty(),
        "{:?}",
        fixture.instance_files()
    );
}

#[tokio::test]
async fn an_instance_that_cannot_be_started_leaves_nothing() {
    let fixture = AgentFixture::new();
    let client = Client::start(&fixture);
    let info = fixture.info("https://127.0.0.1:1", Some(&client.lock));
    let args = ["--shared", "--signer=headers"];
    let (ended, printed) = failed(fixture.agent(&info, &args));
    assert_eq!(ended, Some(1), "{printed}");
    assert!(
        printed.contains("requires one of --headers-file"),
        "{printed}"
    );
    assert!(
        printed.contains("it did not start: exit status: 64"),
        "{printed}"
    );
    assert!(
        fixture.instance_files().is_empty(),
        "{:?}",
        fixture.instance_files()
    );
}

#[tokio::test]
async fn concurrent_clients_start_one_instance() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let args = [&FILE[..], &["--shared"]].concat();
    let requesters: Vec<_> = (0..20)
        .map(|_| Plugin::spawn(fixture.agent(&info, &args)))
        .collect();
    let answered = tokio::task::spawn_blocking(|| {
        let answered = requesters.into_iter().map(Plugin::with_output);
        answered.collect::<Vec<_>>()
    });
    let answered = answered.await.unwrap();
    for requester in &answered {
        assert_eq!(requester.url(), answered[0].url());
    }
    assert!(answered[0].get("/").await.unwrap().contains("\njane\r\n"));
    // The directories of the lock and of the socket.
    assert_eq!(
        fixture.remaining_files().len(),
        2,
        "{:?}",
        fixture.remaining_files()
    );
    end_instance_at(&answered[0]).await;
}

#[tokio::test]
async fn a_starting_instance_ends_with_its_client() {
    let fixture = AgentFixture::new();
    let mut client = Client::start(&fixture);
    let pipe = fixture.dir.path().join("key");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let info = fixture.info("https://127.0.0.1:1", Some(&client.lock));
    let args = [
        "--shared",
        "--signer=http-signature",
        "--http-signature-key-id=laptop",
        "--http-signature-secret=key",
    ];
    let mut requester = Plugin::spawn(fixture.agent(&info, &args));
    let has_reader = || {
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
        let mut options = std::fs::OpenOptions::new();
        options.write(true).custom_flags(nonblocking).open(&pipe)
    };
    eventually("the instance", TEST_TIMEOUT, async || has_reader().is_ok()).await;
    let watch = Stopwatch::start();
    client.kill();
    // The exit status of the client is not checked: the instance may have ended before.
    let gone = async || !requester.is_running() && has_reader().is_err();
    watch.within(EXIT_TIMEOUT, "the end of both", gone).await;
}

/// The instance is not a child process: it is found by its socket, and ended by its pid.
async fn end_instance_at(plugin: &Plugin) {
    let socket = std::os::unix::net::UnixStream::connect(plugin.socket()).unwrap();
    let peer = rustix::net::sockopt::socket_peercred(&socket).unwrap();
    drop(socket);
    rustix::process::kill_process(peer.pid, Signal::TERM).unwrap();
    eventually("the end of an instance", TEST_TIMEOUT, async || {
        is_gone(peer.pid.as_raw_nonzero().get())
    })
    .await;
    assert!(!plugin.socket().exists());
}

#[tokio::test]
async fn the_proxy_of_the_environment_is_used() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let connects = Arc::new(AtomicUsize::new(0));
    let (count, to) = (connects.clone(), server.addr());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            stream.read_line(&mut line).await.unwrap();
            assert!(line.starts_with("CONNECT cluster.example:6443 "), "{line}");
            while line != "\r\n" {
                line.clear();
                stream.read_line(&mut line).await.unwrap();
            }
            count.fetch_add(1, Ordering::Relaxed);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            let mut upstream = TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move {
                let _ = copy_bidirectional(&mut stream, &mut upstream).await;
            });
        }
    });
    let info = fixture.info("https://cluster.example:6443", Some(&client.lock));
    let mut command = fixture.agent(&info, &FILE);
    command.env("HTTPS_PROXY", format!("http://{proxy}"));
    let plugin = Plugin::start(command);
    assert!(plugin.get("/").await.unwrap().contains("\njane\r\n"));
    assert_eq!(connects.load(Ordering::Relaxed), 1);
    // A non-loopback address of this machine, for which the proxy is used.
    let info = fixture.info(
        &format!("https://0.0.0.0:{}", server.addr().port()),
        Some(&client.lock),
    );
    let mut command = fixture.agent(&info, &FILE);
    command
        .env("HTTPS_PROXY", format!("http://{proxy}"))
        .env("NO_PROXY", "other.example,0.0.0.0");
    let plugin = Plugin::start(command);
    assert!(plugin.get("/").await.unwrap().contains("\njane\r\n"));
    assert_eq!(connects.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_output_has_the_api_version_of_the_input() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    for version in ["v1", "v1beta1"] {
        let version = format!("client.authentication.k8s.io/{version}");
        let info = fixture.info(&format!("https://{}", server.addr()), Some(&client.lock));
        let mut info: serde_json::Value = serde_json::from_str(&info).unwrap();
        info["apiVersion"] = version.clone().into();
        let plugin = Plugin::start(fixture.agent(&info.to_string(), &FILE));
        assert_eq!(plugin.printed["apiVersion"], *version);
        assert!(plugin.get("/").await.unwrap().contains("\njane\r\n"));
    }
}

#[tokio::test]
async fn nothing_secret_is_in_arguments_environment_or_log() {
    let fixture = AgentFixture::new();
    let server = fixture.server().await;
    let client = Client::start(&fixture);
    fixture.dir.write("badge", "X-Badge: hunter-of-badges\n");
    fixture
        .dir
        .write("secret", "hunter-of-secrets-0123456789abcdef");
    let args = [
        "--v=10",
        "--signer=headers",
        "--headers-file=badge",
        "--signer=http-signature",
        "--http-signature-secret=secret",
        "--http-signature-key-id=laptop",
    ];
    let mut plugin = fixture.start(server.addr(), &client, &args);
    let key = plugin.printed["status"]["clientKeyData"].as_str().unwrap();
    let key = key.lines().nth(1).unwrap().to_owned();
    let path = "/api?token=hunter-of-queries";
    assert!(plugin.get(path).await.unwrap().starts_with("HTTP/1.1 200"));
    let of_jane = std::fs::read_to_string(fixture.dir.path().join("jane.key")).unwrap();
    let of_jane = of_jane.lines().nth(1).unwrap();
    let in_memory = |text: &str| count_in_memory(plugin.child.id(), text.as_bytes());
    // A process that is not dumpable can be inspected only by root.
    let socket = in_memory(plugin.socket().to_str().unwrap());
    assert!(socket.is_none_or(|found| found > 0));
    for (whose, line) in [("the client's", &*key), ("jane's", of_jane)] {
        let found = in_memory(line);
        assert!(
            matches!(found, None | Some(0)),
            "{whose} key is left: {found:?}"
        );
    }
    // And a message to print.
    std::fs::remove_file(fixture.dir.path().join("jane.key")).unwrap();
    server.kill_connections().await;
    eventually("a refusal", TEST_TIMEOUT, async || {
        let answer = plugin.get(path).await.unwrap();
        answer.starts_with("HTTP/1.1 503")
    })
    .await;
    let process = format!("/proc/{}", plugin.child.id());
    let read = |name: &str| match std::fs::read(format!("{process}/{name}")) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        // For a process that is not dumpable, only root can read its environment.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            "KUBERNETES_EXEC_INFO=".to_owned()
        }
        Err(error) => panic!("{name}: {error}"),
    };
    let (mut content, environment) = (read("cmdline"), read("environ"));
    assert!(content.contains("--signer=headers"), "{content}");
    assert!(
        environment.contains("KUBERNETES_EXEC_INFO="),
        "{environment}"
    );
    content.push_str(&environment);
    plugin.signal(Signal::TERM);
    assert!(plugin.ended().await.success());
    let mut stderr = plugin.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut content).unwrap();
    assert!(content.contains("a request was not answered"), "{content}");
    for secret in ["hunter", "PRIVATE KEY", &*key] {
        assert!(!content.contains(secret), "{secret}: {content}");
    }
}

fn failed(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty());
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), printed)
}

#[test]
fn missing_inputs_are_reported_with_advice() {
    let fixture = AgentFixture::new();
    let with_lock = fixture.info(
        "https://127.0.0.1:1",
        Some(&fixture.dir.path().join("none")),
    );
    let without = fixture.info("https://127.0.0.1:1", None);
    let client = Client::start(&fixture);
    let plain = fixture.info("http://127.0.0.1:1", Some(&client.lock));
    let no_cluster = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}"#;
    let rows: [(&str, &[&str], i32, &str); 9] = [
        ("", &FILE, 1, "KUBERNETES_EXEC_INFO"),
        (no_cluster, &FILE, 1, "set provideClusterInfo: true"),
        (&without, &FILE, 1, "run it under `skewbridge run"),
        (&with_lock, &FILE, 1, "none: No such file"),
        (&plain, &FILE, 1, "is not https"),
        (&plain, &[], 64, "--signer"),
        (
            &plain,
            &["--signer=file"],
            64,
            "requires --client-certificate",
        ),
        (
            &plain,
            &["--signer=headers", "--client-key=x", "--headers-file=x"],
            64,
            "--client-key: requires --signer=file",
        ),
        (
            &plain,
            &["--signer=http-signature", "--http-signature-key=jane.key"],
            64,
            "requires --http-signature-key-id",
        ),
    ];
    for (info, args, code, expected) in rows {
        let (ended, printed) = failed(fixture.agent(info, args));
        assert_eq!(ended, Some(code), "{args:?}: {printed}");
        assert!(printed.contains(expected), "{args:?}: {printed}");
    }
}
