//! Signed requests (RFC 9421): accepted as the user of their key, once, unaltered, and within their
//! time window.

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
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::support::admin_client::scrape;
use crate::support::identity::{FRONT_PROXY, PLAIN, VERSIONS, identity_headers, owned};
use crate::support::pki::{PkiFixture, start};

const AUTHORITY: &str = "k";
const PODS: &str = "/api/v1/namespaces/a/pods";
const SECRET_BASE64: &str = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// Keys of all algorithms, and the file that assigns them to users.
struct Keys {
    ed25519: KeyPair,
    p256: KeyPair,
    p384: KeyPair,
}

impl Keys {
    fn new() -> Self {
        Self {
            ed25519: KeyPair::generate_for(&PKCS_ED25519).unwrap(),
            p256: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap(),
            p384: KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap(),
        }
    }

    fn file(&self) -> String {
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

    fn laptop(&self) -> Signer {
        signer(&self.ed25519, "laptop")
    }
}

fn signer(key: &KeyPair, id: &str) -> Signer {
    let key = SigningKey::from_pem(key.serialize_pem().as_bytes()).unwrap();
    Signer::new(key, id).unwrap().lifetime(None)
}

fn robot(secret: &[u8]) -> Signer {
    Signer::new(SigningKey::hmac(secret).unwrap(), "robot").unwrap()
}

/// A bridge that verifies signatures, in front of an upstream that answers every request and
/// accepts upgrades.
struct Fixture {
    bridge: Handle,
    upstream: ApiServer,
    tunnels: mpsc::UnboundedReceiver<skewbridge_testkit::upstream::Upgrade>,
    keys: Keys,
    pki: PkiFixture,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
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

    fn client_requests(&self) -> Vec<RecordedRequest> {
        let mut recorded = self.upstream.requests();
        recorded.retain(|recorded| !recorded.is_probe());
        recorded
    }

    async fn send(&self, client: &TlsClient, version: Version, message: &Message) -> Response {
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
    async fn assert_refused(
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
    async fn assert_arrives(
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

    async fn verification_count(&self, result: &str) -> Option<f64> {
        let scrape = scrape(self.bridge.admin_address()).await;
        scrape.value("skewbridge_http_signatures_total", &[("result", result)])
    }
}

fn alice(device: &str) -> [(&str, &str); 4] {
    [
        ("x-remote-extra-device", device),
        ("x-remote-group", "dev"),
        ("x-remote-group", "ops"),
        ("x-remote-user", "alice"),
    ]
}

/// A request before it is sent.
#[derive(Clone)]
struct Message {
    method: Method,
    authority: &'static str,
    target: String,
    headers: HeaderMap,
    body: Bytes,
}

impl Message {
    fn get(target: &str) -> Self {
        Self {
            method: Method::GET,
            authority: AUTHORITY,
            target: target.to_owned(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    fn post(target: &str, body: impl Into<Bytes>) -> Self {
        Self {
            method: Method::POST,
            body: body.into(),
            ..Self::get(target)
        }
        .with("content-type", "application/json")
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        let value = HeaderValue::from_str(value).unwrap();
        self.headers.append(HeaderName::from_static(name), value);
        self
    }

    fn signed(self, signer: &Signer) -> Self {
        self.signed_at(signer, now())
    }

    fn signed_at(mut self, signer: &Signer, created: u64) -> Self {
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

    fn wire(&self) -> Vec<u8> {
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

#[tokio::test]
async fn a_signed_request_is_authenticated_as_the_user_of_its_key_for_every_algorithm() {
    let fixture = Fixture::new().await;
    let client = fixture.pki.client();
    let keys = &fixture.keys;
    for version in VERSIONS {
        for (signer, id) in [
            (keys.laptop(), "laptop"),
            (signer(&keys.p256, "desktop"), "desktop"),
            (signer(&keys.p384, "server"), "server"),
        ] {
            for message in [
                Message::get(PODS),
                Message::get(&format!("{PODS}?limit=5&labelSelector=a%3Db")),
                Message::post(PODS, r#"{"kind":"Pod"}"#),
            ] {
                let message = message.signed(&signer);
                let expected = alice(id);
                fixture
                    .assert_arrives(&client, version, &message, &expected)
                    .await;
            }
        }
        // The decoded value of SECRET_BASE64.
        let message = Message::get(PODS).signed(&robot(&b"secret".repeat(6)));
        fixture
            .assert_arrives(&client, version, &message, &[("x-remote-user", "bob")])
            .await;
        let message = Message::get(PODS).with("impersonate-user", "carol");
        let message = message.signed(&keys.laptop());
        let expected = [&[("impersonate-user", "carol")], &alice("laptop")[..]].concat();
        fixture
            .assert_arrives(&client, version, &message, &expected)
            .await;
    }
    assert_eq!(fixture.verification_count("accepted").await, Some(22.0));
}

#[tokio::test]
async fn a_replayed_request_is_rejected() {
    let fixture = Fixture::new().await;
    let client = fixture.pki.client();
    for message in [Message::get(PODS), Message::post(PODS, "{}")] {
        let message = message.signed(&fixture.keys.laptop());
        fixture
            .assert_arrives(&client, Version::HTTP_11, &message, &alice("laptop"))
            .await;
        fixture
            .assert_refused(&client, &message, 401, "has been used before")
            .await;
    }
    assert_eq!(fixture.verification_count("replayed").await, Some(4.0));
}

#[tokio::test]
async fn an_altered_request_is_rejected() {
    let fixture = Fixture::new().await;
    let client = fixture.pki.client();
    let laptop = fixture.keys.laptop();
    let signed = || Message::post(&format!("{PODS}?dryRun=All"), "{}").signed(&laptop);
    let mut altered = Vec::new();
    let mut alter = |change: &dyn Fn(&mut Message), expected_text| {
        let mut message = signed();
        change(&mut message);
        altered.push((message, expected_text));
    };
    let set = |message: &mut Message, name: &'static str, value: &'static str| {
        message
            .headers
            .insert(name, HeaderValue::from_static(value));
    };
    alter(&|it| it.method = Method::PUT, "does not match the request");
    alter(
        &|it| it.target = format!("{PODS}?dryRun="),
        "does not match the request",
    );
    alter(
        &|it| it.target = "/api/v1/namespaces/b/pods?dryRun=All".to_owned(),
        "does not match the request",
    );
    alter(
        &|it| set(it, "content-type", "application/yaml"),
        "does not match the request",
    );
    alter(&|it| set(it, "content-encoding", "gzip"), "does not cover");
    alter(
        &|it| set(it, "impersonate-user", "system:admin"),
        "does not cover",
    );
    alter(
        &|it| set(it, "signature", "sig1=:AAAA:"),
        "does not match the request",
    );
    alter(&|it| set(it, "signature", "garbage"), "cannot be read");
    alter(&|it| drop(it.headers.remove("signature")), "cannot be read");
    alter(
        &|it| drop(it.headers.remove("signature-input")),
        "cannot be read",
    );
    alter(
        &|it| drop(it.headers.remove("content-digest")),
        "does not match the request",
    );
    for (message, expected_text) in altered {
        fixture
            .assert_refused(&client, &message, 401, expected_text)
            .await;
    }
    for version in VERSIONS {
        for body in ["{ }", "", "{}{}"] {
            let mut message = signed();
            message.body = Bytes::from(body);
            let response = fixture.send(&client, version, &message).await;
            assert_eq!(response.status, 401);
            let expected_text = "does not match its signed digest";
            assert!(
                response.text().contains(expected_text),
                "{}",
                response.text()
            );
        }
    }
    assert!(fixture.client_requests().is_empty());
}

#[tokio::test]
async fn a_wrong_time_key_or_server_is_rejected() {
    let fixture = Fixture::new().await;
    let client = fixture.pki.client();
    let laptop = fixture.keys.laptop();
    let untrusted = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let get = || Message::get(PODS);
    let mut elsewhere = get();
    elsewhere.authority = "other.example";
    let rows = [
        (get().signed_at(&laptop, now() - 10_000), "has run out"),
        (get().signed_at(&laptop, now() + 10_000), "in the future"),
        (
            get().signed(&signer(&untrusted, "laptop")),
            "does not match",
        ),
        (
            get().signed(&signer(&fixture.keys.p256, "laptop")),
            "does not match",
        ),
        (
            get().signed(&signer(&untrusted, "stranger")),
            "not known here",
        ),
        (get().signed(&robot(&[7; 32])), "does not match"),
        (elsewhere.signed(&laptop), "for another server"),
    ];
    for (message, expected_text) in rows {
        fixture
            .assert_refused(&client, &message, 401, expected_text)
            .await;
    }
    for (result, count) in [
        ("late", 2.0),
        ("early", 2.0),
        ("unknown-key", 2.0),
        ("mismatch", 6.0),
        ("wrong-authority", 2.0),
        ("accepted", 0.0),
    ] {
        assert_eq!(
            fixture.verification_count(result).await,
            Some(count),
            "{result}"
        );
    }
}

#[tokio::test]
async fn a_request_signed_before_the_start_is_503_and_has_to_be_signed_again() {
    // An earlier process may have accepted it already.
    let before = now() - 20;
    let fixture = Fixture::new().await;
    let message = Message::get(PODS).signed_at(&fixture.keys.laptop(), before);
    let client = fixture.pki.client();
    fixture
        .assert_refused(&client, &message, 503, "before this server started")
        .await;
    let response = fixture.send(&client, Version::HTTP_11, &message).await;
    assert_eq!(response.header("retry-after"), Some("1"));

    // A request signed now may have been accepted before, if clocks differ that much.
    let fixture = Fixture::with(|config| {
        let signatures = config.callers.signatures.as_mut().unwrap();
        signatures.clock_skew = Duration::from_mins(10);
    })
    .await;
    let message = Message::get(PODS).signed(&fixture.keys.laptop());
    let client = fixture.pki.client();
    let response = fixture.send(&client, Version::HTTP_11, &message).await;
    assert_eq!(response.status, 503, "{}", response.text());
    let after: u32 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((2..=601).contains(&after), "{after}");
    assert_eq!(fixture.verification_count("before-start").await, Some(1.0));
}

#[tokio::test]
async fn a_body_that_is_too_long_to_be_buffered_is_rejected() {
    const MAX_BODY_BYTES: usize = 3 * 1024 * 1024;
    let fixture = Fixture::new().await;
    let client = fixture.pki.client();
    let laptop = fixture.keys.laptop();
    for version in VERSIONS {
        let message = Message::post(PODS, vec![b' '; MAX_BODY_BYTES]).signed(&laptop);
        fixture
            .assert_arrives(&client, version, &message, &alice("laptop"))
            .await;
    }
    let h2 = client.http2(fixture.bridge.address()).await.unwrap();
    let message = Message::post(PODS, vec![b' '; MAX_BODY_BYTES + 1]).signed(&laptop);
    let mut request = Request::post(format!("https://{AUTHORITY}{PODS}"))
        .body(())
        .unwrap();
    *request.headers_mut() = message.headers.clone();
    let response = h2.request(request, message.body.clone()).await.unwrap();
    assert_eq!(response.status, 413, "{}", response.text());
    assert!(response.text().contains("RequestEntityTooLarge"));

    // Rejected at once if the length is announced, without waiting for the body.
    let mut message = Message::post(PODS, vec![b' '; MAX_BODY_BYTES + 1]).signed(&laptop);
    message.body = Bytes::new();
    let message = message.with("content-length", &(MAX_BODY_BYTES + 1).to_string());
    let mut h1 = client.http1(fixture.bridge.address()).await.unwrap();
    h1.send(message.wire()).await.unwrap();
    assert_eq!(h1.read_response().await.unwrap().status, 413);
    assert_eq!(fixture.verification_count("too-large").await, Some(2.0));
}

#[tokio::test]
async fn keys_are_replaced_when_their_file_changes() {
    let fixture = Fixture::new().await;
    let client = fixture.pki.client();
    let (old, new) = (fixture.keys.laptop(), Keys::new());
    let code = async |signer: &Signer| {
        let message = Message::get(PODS).signed(signer);
        let response = fixture.send(&client, Version::HTTP_11, &message).await;
        response.status
    };
    assert_eq!(code(&old).await, 200);
    fixture.pki.dir.write("keys.yaml", "keys: [broken");
    eventually("the invalid file is reported", TEST_TIMEOUT, async || {
        let scrape = scrape(fixture.bridge.admin_address()).await;
        let labels = [("flag", "--http-signature-keys"), ("result", "failed")];
        let failed = scrape.value("skewbridge_file_reloads_total", &labels);
        failed.is_some_and(|count| count > 0.0)
    })
    .await;
    assert_eq!(code(&old).await, 200);
    fixture.pki.dir.write("keys.yaml", new.file());
    eventually("the new key is accepted", TEST_TIMEOUT, async || {
        code(&new.laptop()).await == 200
    })
    .await;
    assert_eq!(code(&old).await, 401);
}

#[tokio::test]
async fn another_credential_must_belong_to_the_same_user() {
    let fixture = Fixture::new().await;
    let laptop = fixture.keys.laptop();
    let anonymous = fixture.pki.client();
    let bearer = || Message::get(PODS).with("authorization", "Bearer t0ken");
    let expected_text = "has another credential";
    fixture
        .assert_refused(&anonymous, &bearer().signed(&laptop), 401, expected_text)
        .await;
    let in_protocol = Message::get(PODS).with(
        "sec-websocket-protocol",
        "base64url.bearer.authorization.k8s.io.dDBrZW4",
    );
    fixture
        .assert_refused(&anonymous, &in_protocol.signed(&laptop), 401, expected_text)
        .await;
    let other = fixture.pki.user("mallory", &["dev"]);
    let message = Message::get(PODS).signed(&laptop);
    fixture
        .assert_refused(&other, &message, 401, expected_text)
        .await;

    for version in VERSIONS {
        // The groups of the key are used, not those of the certificate.
        let same = fixture.pki.user("alice", &["system:masters"]);
        let message = Message::get(PODS).signed(&laptop);
        fixture
            .assert_arrives(&same, version, &message, &alice("laptop"))
            .await;
        // Credentials that upstream would ignore are not sent.
        let message = Message::get(PODS).with("authorization", "Basic YTpi");
        let message = message.signed(&laptop);
        fixture
            .assert_arrives(&anonymous, version, &message, &alice("laptop"))
            .await;
        // A front proxy asserts its clients' identity, and their signatures are for the front
        // proxy.
        let peer = fixture.pki.peer();
        let message = Message::get(PODS).with("x-remote-user", "bob");
        let mut message = message.signed(&laptop);
        message
            .headers
            .insert("signature", HeaderValue::from_static("garbage"));
        fixture
            .assert_arrives(&peer, version, &message, &[("x-remote-user", "bob")])
            .await;
    }
}

#[tokio::test]
async fn unsigned_requests_are_authenticated_as_usual() {
    let fixture = Fixture::new().await;
    let client = fixture.pki.client();
    for version in VERSIONS {
        for authorization in [None, Some("Bearer t0ken")] {
            let mut message = Message::get(PODS);
            if let Some(value) = authorization {
                message = message.with("authorization", value);
            }
            let response = fixture.send(&client, version, &message).await;
            assert_eq!(response.status, 200);
            let recorded = fixture.client_requests().pop().unwrap();
            let presented = recorded.client.as_ref().map(|it| it.common_name.as_str());
            assert_eq!(presented, PLAIN);
            assert_eq!(recorded.header("authorization"), authorization);
        }
    }
    assert_eq!(fixture.verification_count("accepted").await, Some(0.0));
}

#[tokio::test]
async fn without_configured_keys_signatures_are_forwarded_unverified() {
    let fixture = Fixture::with(|config| config.callers.signatures = None).await;
    let message = Message::get(PODS).signed(&fixture.keys.laptop());
    let client = fixture.pki.client();
    let response = fixture.send(&client, Version::HTTP_11, &message).await;
    assert_eq!(response.status, 200);
    let recorded = fixture.client_requests().pop().unwrap();
    assert!(recorded.header("signature").is_some() && recorded.client.is_none());
    assert_eq!(fixture.verification_count("accepted").await, None);
}

#[tokio::test]
async fn a_signed_exec_request_becomes_a_tunnel() {
    let mut fixture = Fixture::new().await;
    let message = Message {
        method: Method::POST,
        ..Message::get("/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true")
    };
    let message = message.with("x-stream-protocol-version", "v5.channel.k8s.io");
    let mut message = message.signed(&fixture.keys.laptop());
    // Hop-by-hop headers, which are never covered.
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "SPDY/3.1"),
        ("content-length", "0"),
    ] {
        message = message.with(name, value);
    }
    let client = fixture.pki.client();
    let mut h1 = client.http1(fixture.bridge.address()).await.unwrap();
    h1.send(message.wire()).await.unwrap();
    assert_eq!(h1.read_head().await.unwrap().status, 101);
    let mut local_io = h1.into_connection();
    let mut remote_io = fixture.tunnels.recv().await.unwrap().connection().await;
    let mut received_bytes = [0; 4];
    for _ in 0..2 {
        local_io.write_all(b"ping").await.unwrap();
        local_io.flush().await.unwrap();
        remote_io.read_exact(&mut received_bytes).await.unwrap();
        assert_eq!(&received_bytes, b"ping");
        std::mem::swap(&mut local_io, &mut remote_io);
    }
    let recorded = fixture.client_requests().pop().unwrap();
    assert_eq!(identity_headers(&recorded), owned(&alice("laptop")));
    assert_eq!(recorded.header("signature"), None);
}
