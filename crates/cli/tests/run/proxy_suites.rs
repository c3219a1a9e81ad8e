//! The suites of the HTTP engine, through `skewbridge run`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::json;
use skewbridge_client::Kubeconfig;
use skewbridge_testkit::proxy_suites::ProxyFixture;
use skewbridge_testkit::{Ca, Leaf, ScratchDir, TEST_TIMEOUT, TlsClient, eventually};
use tokio::process::{Child, Command};

pub(crate) struct RunProxyFixture {
    ca: Ca,
    dir: ScratchDir,
    running: Option<Running>,
}

struct Running {
    address: SocketAddr,
    client: TlsClient,
    /// The command reads its standard input to the end. It ends with this pipe, and `run` with it.
    _child: Child,
}

impl ProxyFixture for RunProxyFixture {
    fn new() -> Self {
        Self {
            ca: Ca::new("cluster"),
            dir: ScratchDir::new(),
            running: None,
        }
    }

    fn server_certificate(&self) -> Leaf {
        self.ca.server(&["localhost", "127.0.0.1"])
    }

    fn proxy_ca(&self) -> Option<&Ca> {
        None
    }

    async fn start(&mut self, server: SocketAddr) {
        let ca = self.dir.write("ca.crt", self.ca.pem());
        let config = json!({
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {
                "server": format!("https://{server}"),
                "certificate-authority": ca,
            }}],
            "users": [{"name": "u", "user": {"token": "secret-token"}}],
        });
        let config = self.dir.write("kubeconfig", config.to_string());
        let runtime = self.dir.path().join("runtime");
        std::fs::create_dir(&runtime).unwrap();
        let script = r#"cp "$KUBECONFIG" "$COPY.part" && mv "$COPY.part" "$COPY"; cat"#;
        let copy = self.dir.path().join("copy");
        let child = Command::new(env!("CARGO_BIN_EXE_skewbridge"))
            .arg("run")
            .arg("--kubeconfig")
            .arg(config)
            .args(["--", "sh", "-c", script])
            .env("XDG_RUNTIME_DIR", runtime)
            .env("COPY", &copy)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        eventually("a kubeconfig", TEST_TIMEOUT, async || copy.exists()).await;
        let copy = std::fs::read_to_string(copy).unwrap();
        let config = Kubeconfig::parse(&copy, Path::new("/nonexistent/x")).unwrap();
        let target = config.target(None).unwrap();
        let pem = |source: &Option<skewbridge_client::kubeconfig::PemSource>| {
            let secret = source.as_ref().unwrap().read().unwrap();
            String::from_utf8(secret.expose().to_vec()).unwrap()
        };
        let mut roots = RootCertStore::empty();
        let ca = pem(&target.cluster.certificate_authority);
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let identity = Leaf::from_pem(
            pem(&target.user.client_certificate),
            pem(&target.user.client_key),
        );
        let server: http::Uri = target.cluster.server.parse().unwrap();
        self.running = Some(Running {
            address: server.authority().unwrap().as_str().parse().unwrap(),
            client: TlsClient {
                roots,
                identity: Some(identity),
                alpn: Vec::new(),
                server_name: "127.0.0.1",
            },
            _child: child,
        });
    }

    fn address(&self) -> SocketAddr {
        self.running.as_ref().unwrap().address
    }

    fn client(&self) -> TlsClient {
        self.running.as_ref().unwrap().client.clone()
    }
}

skewbridge_testkit::proxy_suites!(RunProxyFixture);
