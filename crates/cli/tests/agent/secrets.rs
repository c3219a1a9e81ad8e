//! What a plugin exposes: its arguments, its environment and its log.

use rustix::process::Signal;
use serde_json::{Value, json};
use skewbridge_testkit::ScratchDir;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

use crate::agent_fixture::{AgentFixture, Client, Plugin, get};

/// The visible data of a plugin.
pub(crate) struct ExposedData {
    pub(crate) arguments: String,
    /// Empty if only root can read it.
    pub(crate) environment: String,
    pub(crate) log: String,
}

/// Inspects a plugin, and ends it.
pub(crate) async fn inspect(mut plugin: Plugin) -> ExposedData {
    let process = format!("/proc/{}", plugin.child.id());
    let read = |name: &str| {
        let bytes = std::fs::read(format!("{process}/{name}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (arguments, environment) = (read("cmdline"), read("environ"));
    plugin.signal(Signal::TERM);
    assert!(plugin.ended().await.success());
    let mut log = String::new();
    let mut stderr = plugin.child.stderr.take().unwrap();
    std::io::Read::read_to_string(&mut stderr, &mut log).unwrap();
    ExposedData {
        arguments,
        environment,
        log,
    }
}

fn write_profile(dir: &ScratchDir) {
    std::fs::create_dir(dir.path().join(".aws")).unwrap();
    dir.write(
        ".aws/credentials",
        "[default]\naws_access_key_id = AKIDFILE\naws_secret_access_key = hunter-of-keys\n\
         aws_session_token = hunter-of-sessions\nregion = eu-west-1\n",
    );
}

#[tokio::test]
async fn aws_keys_and_proxy_passwords_are_not_printed() {
    let fixture = AgentFixture::new();
    write_profile(&fixture.dir);
    let client = Client::start(&fixture);
    // A proxy that refuses every request: the plugin reports that to the client and in the log.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let request = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let (mut request, mut line) = (String::new(), String::new());
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).await.unwrap();
            request.push_str(&line);
        }
        let refused = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n";
        stream.write_all(refused).await.unwrap();
        request
    });
    let info = fixture.info("https://cluster.example:6443", Some(&client.lock));
    let mut info: Value = serde_json::from_str(&info).unwrap();
    let url = format!("http://me:hunter-of-proxies@{proxy}");
    info["spec"]["cluster"]["proxy-url"] = json!(url);
    let mut command = fixture.agent(&info.to_string(), &["--v=10", "--signer=sigv4"]);
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"AWS_") {
            command.env_remove(name);
        }
    }
    let plugin = Plugin::start(command);
    let answer = get(&plugin.printed, "/api").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(
        answer.contains("requires a user and a password (407)"),
        "{answer}"
    );
    let request = request.await.unwrap();
    // "me:hunter-of-proxies"
    let expected = "Proxy-Authorization: Basic bWU6aHVudGVyLW9mLXByb3hpZXM=";
    assert!(request.contains(expected), "{request}");
    let exposed = inspect(plugin).await;
    assert!(
        exposed.log.contains("a request was not answered"),
        "{}",
        exposed.log
    );
    for text in [&answer, &exposed.arguments, &exposed.log] {
        assert!(!text.contains("hunter"), "{text}");
        assert!(!text.contains("bWU6aHVudGVy"), "{text}");
    }
    // The client has sent only the address of the proxy.
    let environment = exposed.environment.replace("hunter-of-proxies", "");
    assert!(!environment.contains("hunter"), "{environment}");
}

#[tokio::test]
async fn a_pin_in_a_uri_is_refused_and_printed_nowhere() {
    let fixture = AgentFixture::new();
    let client = Client::start(&fixture);
    let info = fixture.info("https://cluster.example:6443", Some(&client.lock));
    let uri = "pkcs11:token=jane?module-path=/x.so&pin-value=hunter-of-pins";
    let rows: [&[&str]; 5] = [
        &["--signer=pkcs11", "--pkcs11-uri", uri],
        &["--v=10", "--signer=pkcs11", "--shared", "--pkcs11-uri", uri],
        &[
            "--signer=pkcs11",
            "--pkcs11-uri=token=a&PIN-VALUE=hunter-of-pins",
        ],
        // Not a flag: clap repeats unexpected arguments.
        &["--signer=pkcs11", uri],
        &["--signer", uri],
    ];
    for args in rows {
        let ran = fixture.agent(&info, args).output().unwrap();
        let printed = [ran.stdout, ran.stderr].map(|it| String::from_utf8(it).unwrap());
        assert_eq!(ran.status.code(), Some(64), "{printed:?}");
        assert!(
            printed[1].contains("pin-source or --pkcs11-pin-file"),
            "{printed:?}"
        );
        assert!(!printed.concat().contains("hunter"), "{printed:?}");
    }
    assert!(
        fixture.remaining_files().is_empty(),
        "a shared instance was started"
    );
}
