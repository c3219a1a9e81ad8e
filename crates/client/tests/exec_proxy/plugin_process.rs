//! The plugin: this test program, executed by the client. It forwards its clients' bytes to the
//! cluster, over TLS with a key that the clients do not have.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The maximum lifetime of the process.
const MAX_LIFETIME: Duration = Duration::from_mins(5);

#[test]
#[ignore = "the other tests execute it"]
fn a_plugin() {
    let Ok(dir) = std::env::var("PLUGIN_DIR") else {
        return;
    };
    let plugin = Plugin { dir: dir.into() };
    match std::env::var("PLUGIN_KIND").unwrap().as_str() {
        "starter" => plugin.start_proxy_process(),
        "finder" if plugin.socket().exists() => {
            let url = format!("unix://{}", plugin.socket().display());
            plugin.print_credential(&mut plugin.output_pipe(), &url);
        }
        "itself" | "finder" => plugin.serve(&mut plugin.output_pipe()),
        "started" => plugin.serve(&mut File::create(plugin.dir.join("output")).unwrap()),
        other => panic!("{other}"),
    }
    std::process::exit(0);
}

struct Plugin {
    dir: PathBuf,
}

impl Plugin {
    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap()
    }

    fn record(&self, name: &str, text: &str) {
        let mut options = OpenOptions::new();
        let mut file = options
            .create(true)
            .append(true)
            .open(self.dir.join(name))
            .unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn output_pipe(&self) -> File {
        self.record_exec();
        OpenOptions::new()
            .write(true)
            .open("/proc/self/fd/3")
            .unwrap()
    }

    fn record_exec(&self) {
        self.record("execs", &format!("{}\n", std::process::id()));
        let exec_info = std::env::var("KUBERNETES_EXEC_INFO").unwrap();
        fs::write(self.dir.join("exec-info"), exec_info).unwrap();
        fs::write(
            self.dir.join("https_proxy"),
            std::env::var("HTTPS_PROXY").unwrap_or_default(),
        )
        .unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.dir.join("run/s")
    }

    fn lock(&self) -> Option<PathBuf> {
        let exec_info: Value = serde_json::from_str(&self.read("exec-info")).unwrap();
        exec_info["spec"]["lockFilePath"]
            .as_str()
            .map(PathBuf::from)
    }

    /// Starts a proxy process, and exits when it listens.
    fn start_proxy_process(&self) {
        let mut pipe = self.output_pipe();
        let _ = fs::remove_file(self.dir.join("output"));
        let mut proxy = Command::new(std::env::current_exe().unwrap());
        proxy
            .args(std::env::args_os().skip(1))
            .env("PLUGIN_KIND", "started")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        // The child outlives this process.
        drop(proxy.spawn().unwrap());
        let output = (0..6000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            let text = fs::read_to_string(self.dir.join("output")).ok()?;
            text.ends_with('\n').then_some(text)
        });
        pipe.write_all(output.unwrap().as_bytes()).unwrap();
    }

    fn serve(&self, output: &mut File) {
        let is_held = self.watch_lock();
        self.record("lock-was-held", &format!("{is_held}\n"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let acceptor = TlsAcceptor::from(self.server_config());
            fs::write(self.dir.join("pid"), std::process::id().to_string()).unwrap();
            if std::env::var("PLUGIN_SOCKET").unwrap() == "tcp" {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                fs::write(self.dir.join("address"), address.to_string()).unwrap();
                self.print_credential(output, &format!("https://{address}"));
                let serving = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        self.forward(&acceptor, stream);
                    }
                };
                let _: Result<(), _> = tokio::time::timeout(MAX_LIFETIME, serving).await;
            } else {
                let run = self.dir.join("run");
                let _ = DirBuilder::new().mode(0o700).create(&run);
                let path = self.socket();
                let _ = fs::remove_file(&path);
                let listener = UnixListener::bind(&path).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
                self.print_credential(output, &format!("unix://{}", path.display()));
                let serving = async {
                    loop {
                        let (stream, _) = listener.accept().await.unwrap();
                        self.forward(&acceptor, stream);
                    }
                };
                let _: Result<(), _> = tokio::time::timeout(MAX_LIFETIME, serving).await;
            }
        });
    }

    fn print_credential(&self, output: &mut File, url: &str) {
        let mut status = json!({
            "clientCertificateData": self.read("client.crt"),
            "clientKeyData": self.read("client.key"),
            "proxyConfig": {
                "url": url,
                "certificate-authority-data": STANDARD.encode(self.read("plugin-ca.crt")),
            },
        });
        let extra: Value = serde_json::from_str(&std::env::var("PLUGIN_EXTRA").unwrap()).unwrap();
        for (name, value) in extra.as_object().unwrap() {
            status[name] = value.clone();
        }
        let exec_info: Value = serde_json::from_str(&self.read("exec-info")).unwrap();
        let document = json!({
            "kind": "ExecCredential",
            "apiVersion": exec_info["apiVersion"],
            "status": status,
        });
        // In two writes: a pipe may deliver a document in parts.
        let document = format!("{document}\n");
        let (first, second) = document.split_at(document.len() / 2);
        output.write_all(first.as_bytes()).unwrap();
        output.write_all(second.as_bytes()).unwrap();
    }

    /// KEP-2718, "Proxy Shutdown": quits if it ever takes the lock.
    fn watch_lock(&self) -> bool {
        let Some(path) = self.lock() else {
            return false;
        };
        let file = File::open(&path).unwrap();
        let is_held = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
        let run = self.dir.join("run");
        std::thread::spawn(move || {
            file.lock().unwrap();
            remove_files_and_exit(&path, &run);
        });
        is_held
    }

    fn server_config(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let roots = Arc::new(self.roots("plugin-ca.crt"));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(self.chain("listener.crt"), self.key("listener.key"))
            .unwrap();
        Arc::new(config)
    }

    fn forward(
        &self,
        acceptor: &TlsAcceptor,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots("cluster-ca.crt"))
            .with_client_auth_cert(self.chain("key.crt"), self.key("key.key"))
            .unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let (acceptor, upstream) = (acceptor.clone(), self.read("upstream"));
        tokio::spawn(async move {
            let mut client = acceptor.accept(stream).await?;
            let tcp = TcpStream::connect(upstream).await?;
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let mut cluster = connector.connect(name, tcp).await?;
            tokio::io::copy_bidirectional(&mut client, &mut cluster).await
        });
    }

    fn roots(&self, name: &str) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.chain(name));
        roots
    }

    fn chain(&self, name: &str) -> Vec<CertificateDer<'static>> {
        let pem = self.read(name);
        CertificateDer::pem_slice_iter(pem.as_bytes())
            .map(Result::unwrap)
            .collect()
    }

    fn key(&self, name: &str) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.read(name).as_bytes()).unwrap()
    }
}

fn remove_files_and_exit(lock: &Path, run: &Path) {
    let _ = fs::remove_dir_all(run);
    let _ = fs::remove_file(lock);
    let _ = fs::remove_dir(lock.parent().unwrap());
    std::process::exit(0);
}
