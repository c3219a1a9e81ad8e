//! The certificates and configuration of a bridge in front of a fake upstream.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::Path;
use std::time::Duration;

use rustls_pki_types::ServerName;
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::KeyPairFiles;
use skewbridge_gateway::config::{
    Admin, ApiServerIdentity, AuthenticationConfig, BridgeUser, Config, Egress, Etcd, Features,
    Guards, Limits, Listen, LogFormat, Logs, Peers, RegistryKind, RequestHeader, ServingTls,
    Shutdown, Streams, TlsVersion, TranslateStreams, Upstream, UpstreamStreams,
};

use skewbridge_gateway::field_guard::FieldGuard;
use skewbridge_k8s_api::identity::IdentityHeaders;
use skewbridge_testkit::{Ca, Leaf, ScratchDir, TlsClient};

/// A PKI for client, bridge and upstream, and the files that the bridge reads.
pub(crate) struct PkiFixture {
    pub(crate) dir: ScratchDir,
    /// Signs the bridge's serving certificate.
    pub(crate) serving_ca: Ca,
    /// Signs upstream's serving certificate.
    pub(crate) upstream_ca: Ca,
    /// Signs client certificates of users.
    pub(crate) client_ca: Ca,
    /// Signs front-proxy certificates.
    pub(crate) front_proxy_ca: Ca,
    /// The serving certificate of upstream.
    pub(crate) upstream: Leaf,
}

impl PkiFixture {
    pub(crate) fn new() -> Self {
        let pki = Self {
            dir: ScratchDir::new(),
            serving_ca: Ca::new("serving-ca"),
            upstream_ca: Ca::new("upstream-ca"),
            client_ca: Ca::new("client-ca"),
            front_proxy_ca: Ca::new("front-proxy-ca"),
            upstream: Ca::new("unused").server(&["unused"]),
        };
        let upstream = pki.upstream_ca.server(&["localhost", "127.0.0.1"]);
        let serving = pki.serving_ca.server(&["localhost", "127.0.0.1"]);
        let front_proxy = pki.front_proxy_ca.client("front-proxy-client", &[]);
        for (name, text) in [
            ("serving.crt", &serving.cert_pem),
            ("serving.key", &serving.key_pem),
            ("front-proxy.crt", &front_proxy.cert_pem),
            ("front-proxy.key", &front_proxy.key_pem),
            ("upstream-ca.crt", &pki.upstream_ca.pem()),
            ("client-ca.crt", &pki.client_ca.pem()),
            ("front-proxy-ca.crt", &pki.front_proxy_ca.pem()),
        ] {
            pki.dir.write(name, text);
        }
        Self { upstream, ..pki }
    }

    /// The configuration of a bridge in front of this address; tests may change it.
    pub(crate) fn config(&self, upstream: SocketAddr) -> Config {
        let file = |name: &str| self.dir.path().join(name);
        let pair = |name: &str| KeyPairFiles {
            cert: file(&format!("{name}.crt")),
            key: file(&format!("{name}.key")),
        };
        let loopback = [127, 0, 0, 1].into();
        Config {
            listen: Listen {
                bind_address: loopback,
                secure_port: 0,
                advertise_address: None,
                proxy_protocol_cidrs: Vec::new(),
            },
            serving: ServingTls {
                key_pair: pair("serving"),
                min_version: TlsVersion::Tls12,
            },
            callers: AuthenticationConfig {
                client_ca: Some(file("client-ca.crt")),
                request_header: Some(RequestHeader {
                    ca: file("front-proxy-ca.crt"),
                    allowed_names: vec!["front-proxy-client".to_owned()],
                }),
                headers: IdentityHeaders::default(),
                signatures: None,
            },
            upstream: Upstream {
                host: upstream.ip().to_string(),
                port: upstream.port(),
                ca: file("upstream-ca.crt"),
                server_name: ServerName::try_from("localhost").unwrap(),
                others: Vec::new(),
                endpoints: None,
                front_proxy: Some(pair("front-proxy")),
                bridge_user: BridgeUser::default(),
            },
            peers: Peers {
                identity: ApiServerIdentity::Auto,
                registry: RegistryKind::Etcd,
                endpoints: false,
                ca: None,
                advertise_ip: None,
                advertise_port: None,
                cidrs: Vec::new(),
                // The fake servers have no OpenAPI schemas: all writes would go to the newest one.
                guards: Guards {
                    fields: FieldGuard::Off,
                    ..Guards::default()
                },
                state_dir: None,
                etcd: Etcd::default(),
                egress: Egress::Direct,
            },
            streams: Streams {
                translate: TranslateStreams::Auto,
                upstream: UpstreamStreams::Any,
                ping_interval: Duration::from_secs(10),
                idle_timeout: Duration::from_hours(4),
            },
            features: Features::default(),
            limits: Limits::default(),
            admin: Admin {
                address: (loopback, 0).into(),
                secure_address: None,
                watch_target: None,
                flags: BTreeMap::new(),
            },
            shutdown: Shutdown {
                delay: Duration::ZERO,
                drain: Duration::from_secs(5),
            },
            logs: Logs {
                verbosity: 2,
                format: LogFormat::Text,
            },
            workers: NonZeroUsize::MIN,
        }
    }

    /// Starts a bridge in front of this address.
    pub(crate) fn start_bridge(&self, upstream: SocketAddr) -> Handle {
        start(&self.config(upstream))
    }

    /// A client of the bridge, without a certificate.
    pub(crate) fn client(&self) -> TlsClient {
        TlsClient::new(&self.serving_ca)
    }

    /// A client of the bridge with a certificate of the client CA.
    pub(crate) fn user(&self, name: &str, groups: &[&str]) -> TlsClient {
        self.client().identity(&self.client_ca.client(name, groups))
    }

    /// A client of the bridge with a front-proxy certificate, which may assert identities.
    pub(crate) fn peer(&self) -> TlsClient {
        self.client()
            .identity(&self.front_proxy_ca.client("front-proxy-client", &[]))
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Starts a bridge.
pub(crate) fn start(config: &Config) -> Handle {
    skewbridge_gateway::start(config).expect("the bridge starts")
}
