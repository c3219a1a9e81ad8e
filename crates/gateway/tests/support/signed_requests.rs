//! A bridge that verifies signed requests, keys of all algorithms, and requests before they are sent.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, Signatures};
use skewbridge_http_signature::{Content, Signer, SigningKey, random_nonce};
use skewbridge_testkit::{
    ApiServer, ClientAuth, Options, RecordedRequest, Reply, Response, TEST_TIMEOUT, TlsClient,
    eventually,
};
use tokio::sync::mpsc;

use crate::support::admin_client::scrape;
use crate::support::identity::{FRONT_PROXY, VERSIONS, identity_headers, owned};
use crate::support::pki::{PkiFixture, start};

pub(crate) const AUTHORITY: &str = "k";

const SECRET_BASE64: &str = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";

pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// Keys of all algorithms, and the file that assigns them to users.
pub(crate) struct Keys {
    pub(crate) ed25519: KeyPair,
    pub(crate) p256: KeyPair,
    pub(crate) p384: KeyPair,
}

impl Keys {
    pub(crate) fn new() -> Self {
        Self {
            ed25519: KeyPair::generate_for(&PKCS_ED25519).unwrap(),
            p256: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap(),
            p384: KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap(),
        }
    }

    pub(crate) fn file(&self) -> String {
        let public = |id: &str, algorithm: &str, key: &KeyPair| {
            let pem = key.public_key_pem().replace('\n', "\n      ");
            format!(
                "  {id}:\n    algorithm: {algorithm}\n    publicKey: |\n      {pem}\n    \
                 user: alice\n    groups: [dev, ops]\n    extra:\n      device: [{id}]\n"
            )
        };
        format!(
            "keys:\n{}{}{}  robot:\n    algorithm: hmac-sha256\n    secret: {SECRET_BASE64}\n    \
             user: bob\n",
            public("laptop", "ed25519", &self.ed25519),
            public("desktop", "ecdsa-p256-sha256", &self.p256),
            public("server", "ecdsa-p384-sha384", &self.p384),
        )
    }

    pub(crate) fn laptop(&self) -> Signer {
        signer(&self.ed25519, "laptop")
    }
}

pub(crate) fn signer(key: &KeyPair, id: &str) -> Signer {
    let key = SigningKey::from_pem(key.serialize_pem().as_bytes()).unwrap();
    Signer::new(key, id).unwrap().lifetime(None)
}

pub(crate) fn robot(secret: &[u8]) -> Signer {
    Signer::new(SigningKey::hmac(secret).unwrap(), "robot").unwrap()
}

/// A bridge that verifies signatures, in front of an upstream that answers every request and
/// accepts upgrades.
pub(crate) struct SignatureFixture {
    pub(crate) bridge: Handle,
    pub(crate) upstream: ApiServer,
    pub(crate) tunnels: mpsc::UnboundedReceiver<skewbridge_testkit::upstream::Upgrade>,
    pub(crate) keys: Keys,
    pub(crate) pki: PkiFixture,
}

impl SignatureFixture {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (pki, keys) = (PkiFixture::new(), Keys::new());
        let (sender, tunnels) = mpsc::unbounded_channel();
        let options = Options::new(pki.upstream.clone())
            .clients(ClientAuth::Accept(&pki.front_proxy_ca))
            .alpn(&["h2", "http/1.1"]);
        let upstream = ApiServer::start(options, move |recorded| {
            let Some(protocol) = recorded.header("upgrade") else {
                return Reply::json("{}");
            };
            let (reply, upgrade) = Reply::upgrade(protocol);
            sender.send(upgrade).unwrap();
            reply.header("X-Stream-Protocol-Version", "v5.channel.k8s.io")
        })
        .await;
        let mut config = pki.config(upstream.addr());
        config.callers.signatures = Some(Signatures {
            keys: pki.dir.write("keys.yaml", keys.file()),
            authorities: vec![AUTHORITY.to_owned()],
            // No test is that slow.
            max_age: Duration::from_hours(1),
            // So that requests signed soon after the start are accepted.
            clock_skew: Duration::ZERO,
        });
        change(&mut config);
        let bridge = start(&config);
        if config.callers.signatures.is_some() {
            // The start time is rounded up to a second, within which signatures count as older than
            // the start.
            let started = now();
            eventually(
                "signatures made now are newer than the start",
                TEST_TIMEOUT,
                async || now() > started + 1,
            )
            .await;
        }
        Self {
            bridge,
            upstream,
            tunnels,
            keys,
            pki,
        }
    }

    pub(crate) fn client_requests(&self) -> Vec<RecordedRequest> {
        let mut recorded = self.upstream.requests();
        recorded.retain(|recorded| !recorded.is_probe());
        recorded
    }

    pub(crate) async fn send(
        &self,
        client: &TlsClient,
        version: Version,
        message: &Message,
    ) -> Response {
        let address = self.bridge.address();
        if version == Version::HTTP_2 {
            let h2 = client.http2(address).await.unwrap();
            let uri = format!("https://{}{}", message.authority, message.target);
            let mut request = Request::new(());
            *request.method_mut() = message.method.clone();
            *request.uri_mut() = uri.parse().unwrap();
            *request.headers_mut() = message.headers.clone();
            let answer = h2.request(request, message.body.clone()).await;
            answer.unwrap()
        } else {
            let mut h1 = client.http1(address).await.unwrap();
            h1.send(message.wire()).await.unwrap();
            h1.read_response().await.unwrap()
        }
    }

    /// The message is rejected with this code and this text, and never arrives.
    pub(crate) async fn assert_refused(
        &self,
        client: &TlsClient,
        message: &Message,
        code: u16,
        expected_text: &str,
    ) {
        for version in VERSIONS {
            let before = self.client_requests().len();
            let response = self.send(client, version, message).await;
            let what = format!("{expected_text} {version:?} {}", response.text());
            assert_eq!(response.status, code, "{what}");
            let status: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
            assert_eq!(status["kind"], "Status", "{what}");
            assert_eq!(status["code"], code, "{what}");
            assert!(
                status["message"].as_str().unwrap().contains(expected_text),
                "{what}"
            );
            assert_eq!(self.client_requests().len(), before, "{what}");
        }
    }

    /// The message arrives as a request of this user; it can be sent once.
    pub(crate) async fn assert_arrives(
        &self,
        client: &TlsClient,
        version: Version,
        message: &Message,
        expected: &[(&str, &str)],
    ) {
        let response = self.send(client, version, message).await;
        assert_eq!(response.status, 200, "{version:?} {}", response.text());
        let recorded = self.client_requests().pop().unwrap();
        let presented = recorded.client.as_ref().map(|it| it.common_name.as_str());
        assert_eq!(presented, FRONT_PROXY);
        assert_eq!(identity_headers(&recorded), owned(expected));
        assert_eq!(recorded.method, message.method);
        assert_eq!(recorded.target, message.target);
        assert_eq!(recorded.body_len, message.body.len() as u64);
        for name in ["signature", "signature-input"] {
            assert_eq!(recorded.header(name), None, "{name}");
        }
    }

    pub(crate) async fn verification_count(&self, result: &str) -> Option<f64> {
        let scrape = scrape(self.bridge.admin_address()).await;
        scrape.value("skewbridge_http_signatures_total", &[("result", result)])
    }
}

pub(crate) fn alice(device: &str) -> [(&str, &str); 4] {
    [
        ("x-remote-extra-device", device),
        ("x-remote-group", "dev"),
        ("x-remote-group", "ops"),
        ("x-remote-user", "alice"),
    ]
}

/// A request before it is sent.
#[derive(Clone)]
pub(crate) struct Message {
    pub(crate) method: Method,
    pub(crate) authority: &'static str,
    pub(crate) target: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Message {
    pub(crate) fn get(target: &str) -> Self {
        Self {
            method: Method::GET,
            authority: AUTHORITY,
            target: target.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    pub(crate) fn post(target: &str, body: impl Into<Bytes>) -> Self {
        Self {
            method: Method::POST,
            body: body.into(),
            ..Self::get(target)
        }
        .with("content-type", "application/json")
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).unwrap();
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    pub(crate) fn signed(self, signer: &Signer) -> Self {
        self.signed_at(signer, now())
    }

    pub(crate) fn signed_at(mut self, signer: &Signer, created: u64) -> Self {
        let uri = format!("https://{}{}", self.authority, self.target);
        let uri = uri.parse().unwrap();
        let request =
            skewbridge_http_signature::Request::of("https", &self.method, &uri, &self.headers);
        let content = if self.body.is_empty() {
            Content::None
        } else {
            Content::Bytes(&self.body)
        };
        let nonce = random_nonce().unwrap();
        let to_set = signer.sign(&request.unwrap(), content, created, &nonce);
        for (name, value) in to_set.unwrap() {
            self.headers.insert(name, value);
        }
        self
    }

    pub(crate) fn wire(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        write!(head, "Host: {}\r\n", self.authority).unwrap();
        for (name, value) in &self.headers {
            write!(head, "{name}: {}\r\n", value.to_str().unwrap()).unwrap();
        }
        if !self.body.is_empty() {
            write!(head, "Content-Length: {}\r\n", self.body.len()).unwrap();
        }
        head += "\r\n";
        [head.as_bytes(), &self.body].concat()
    }
}
