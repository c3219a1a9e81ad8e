//! The static program serves from a directory that has nothing in it but the program and its
//! certificates, as an unprivileged user: what the container image contains.
//!
//! `cargo xtask dist` builds the program and names it in `SKEWBRIDGE_STATIC_PROGRAM`. Elsewhere the
//! test is skipped.
#![allow(clippy::unwrap_used)] // test helpers panic on failure

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Options, Reply, ScratchDir, TEST_TIMEOUT, eventually, get,
    unprivileged_user,
};

/// A directory that becomes the root of a process.
struct EmptyRoot {
    directory: ScratchDir,
    user: u32,
}

impl EmptyRoot {
    fn new(program: &Path, user: u32) -> Self {
        let directory = ScratchDir::new();
        let readable = Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), readable.clone()).unwrap();
        let installed = directory.path().join("skewbridge");
        fs::copy(program, &installed).unwrap();
        fs::set_permissions(installed, readable).unwrap();
        Self { directory, user }
    }

    fn write(&self, name: &str, content: &str) {
        self.directory.write(name, content);
        let path = self.directory.path().join(name);
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("chroot");
        command
            .arg(format!("--userspec={0}:{0}", self.user))
            .arg(self.directory.path())
            .arg("/skewbridge")
            .args(arguments)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

/// A process that ends with the test.
struct Owned(Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // A process that has ended already gets no signal.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fixture() -> Option<EmptyRoot> {
    let Some(program) = std::env::var_os("SKEWBRIDGE_STATIC_PROGRAM") else {
        eprintln!("skipped: `cargo xtask dist` names the static program");
        return None;
    };
    Some(EmptyRoot::new(Path::new(&program), unprivileged_user()?))
}

#[tokio::test]
async fn the_static_program_serves_from_an_empty_root() {
    let Some(root) = fixture() else { return };
    let [serving, users, front_proxies, upstream_ca] =
        ["serving", "users", "front-proxies", "upstream"].map(Ca::new);
    let leaf = serving.server(&["localhost", "127.0.0.1"]);
    root.write("serving.crt", &leaf.cert_pem);
    root.write("serving.key", &leaf.key_pem);
    let leaf = front_proxies.client("front-proxy", &[]);
    root.write("front-proxy.crt", &leaf.cert_pem);
    root.write("front-proxy.key", &leaf.key_pem);
    root.write("users-ca.crt", &users.pem());
    root.write("front-proxies-ca.crt", &front_proxies.pem());
    root.write("upstream-ca.crt", &upstream_ca.pem());
    let options = Options::new(upstream_ca.server(&["127.0.0.1"]))
        .clients(ClientAuth::Accept(&front_proxies));
    let upstream = ApiServer::start(options, |seen| Reply::json(format!("{:?}", seen.target)));
    let upstream = upstream.await;
    let mut serve = root.command(&[
        "serve",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--admin-address=127.0.0.1:0",
        &format!("--upstream=https://{}", upstream.addr()),
        "--upstream-ca-file=/upstream-ca.crt",
        "--tls-cert-file=/serving.crt",
        "--tls-private-key-file=/serving.key",
        "--client-ca-file=/users-ca.crt",
        "--requestheader-client-ca-file=/front-proxies-ca.crt",
        "--proxy-client-cert-file=/front-proxy.crt",
        "--proxy-client-key-file=/front-proxy.key",
    ]);
    let mut bridge = Owned(serve.stderr(Stdio::piped()).spawn().unwrap());
    let mut log = BufReader::new(bridge.0.stderr.take().unwrap()).lines();
    let mut seen = Vec::new();
    let addresses = loop {
        let Some(line) = log.next() else {
            panic!("the bridge has ended: {seen:#?}");
        };
        let line = line.unwrap();
        let field = |name: &str| {
            let (_, rest) = line.split_once(&format!(" {name}="))?;
            rest.split(' ')
                .next()
                .map(|it| it.trim_matches('"').to_owned())
        };
        if let (Some(address), Some(admin)) = (field("address"), field("admin_address")) {
            break (address, admin);
        }
        seen.push(line);
    };
    // The bridge logs until its end.
    let rest = std::thread::spawn(move || log.map_while(Result::ok).collect::<Vec<_>>());
    let (address, admin) = addresses;
    let response = get(address.parse().unwrap(), &serving, "/api/v1/nodes").await;
    assert_eq!(
        (response.status, response.text()),
        (200, "\"/api/v1/nodes\"".to_owned())
    );

    let health = format!("--admin-address={admin}");
    let output = root.run(&["health", &health]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("livez check passed"), "{text}");

    kill_process(Pid::from_child(&bridge.0), Signal::TERM).unwrap();
    let mut status = None;
    eventually("it exits", TEST_TIMEOUT, async || {
        status = bridge.0.try_wait().unwrap();
        status.is_some()
    })
    .await;
    assert_eq!(status.unwrap().code(), Some(0), "{:#?}", rest.join());
    let output = root.run(&["health", &health]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

#[test]
fn the_static_program_says_that_it_cannot_load_a_pkcs11_module() {
    let Some(root) = fixture() else { return };
    // The client of the plugin makes this file, as the same user.
    root.write("lock", "");
    let lock = root.directory.path().join("lock");
    std::os::unix::fs::chown(&lock, Some(root.user), Some(root.user)).unwrap();
    // A plugin whose client has exited exits with 0.
    let client = fs::File::open(lock).unwrap();
    client.lock().unwrap();
    let output = root
        .command(&["agent", "--signer=pkcs11", "--pkcs11-module=/module.so"])
        .env(
            "KUBERNETES_EXEC_INFO",
            r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",
                "spec":{"interactive":false,"lockFilePath":"/lock","cluster":{"server":"https://127.0.0.1:1"}}}"#,
        )
        .output()
        .unwrap();
    drop(client);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{stderr}");
    assert!(
        stderr.contains("this program is static, and cannot load a PKCS#11 module"),
        "{stderr}"
    );
}
