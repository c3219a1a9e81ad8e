//! Requests that are signed (RFC 9421): believed as their key's user, once, as they
//! were signed, and now.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::{Config, Signatures};
use skewbridge_http_signature::{Content, Signer, SigningKey, random_nonce};
use skewbridge_testkit::{
    ApiServer, ClientAuth, Options, PATIENCE, RecordedRequest, Reply, Response, TlsClient,
    eventually,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;

use crate::bed::{Bed, start};
use crate::claims::{FRONT_PROXY, PLAIN, VERSIONS, claims, owned};
use crate::plain::scrape;

const AUTHORITY: &str = "k";
const PODS: &str = "/api/v1/namespaces/a/pods";
const SECRET: &str = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_secs()
}

/// Keys of all kinds, and the file that says whose they are.
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
            "keys:\n{}{}{}  robot:\n    algorithm: hmac-sha256\n    secret: {SECRET}\n    \
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

/// A bridge that believes signatures, in front of an upstream that answers
/// everything, and upgrades what asks for it.
struct Gateway {
    bridge: Handle,
    upstream: ApiServer,
    tunnels: mpsc::UnboundedReceiver<skewbridge_testkit::upstream::Upgrade>,
    keys: Keys,
    bed: Bed,
}

impl Gateway {
    async fn new() -> Self {
        Self::with(|_| {}).await
    }

    async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let (bed, keys) = (Bed::new(), Keys::new());
        let (sender, tunnels) = mpsc::unbounded_channel();
        let options = Options::new(bed.upstream.clone())
            .clients(ClientAuth::Accept(&bed.front_proxy_ca))
            .alpn(&["h2", "http/1.1"]);
        let upstream = ApiServer::start(options, move |seen| {
            let Some(protocol) = seen.header("upgrade") else {
                return Reply::json("{}");
            };
            let (reply, upgrade) = Reply::upgrade(protocol);
            sender.send(upgrade).unwrap();
            reply.header("X-Stream-Protocol-Version", "v5.channel.k8s.io")
        })
        .await;
        let mut config = bed.config(upstream.addr());
        config.callers.signatures = Some(Signatures {
            keys: bed.dir.write("keys.yaml", keys.file()),
            authorities: vec![AUTHORITY.to_owned()],
            // No test is so slow.
            max_age: Duration::from_hours(1),
            // So that what is signed soon after the start will do.
            clock_skew: Duration::ZERO,
        });
        change(&mut config);
        let bridge = start(&config);
        if config.callers.signatures.is_some() {
            // The second of the start, rounded up, is not told from before.
            let started = now();
            eventually("signatures of now are new", PATIENCE, async || {
                now() > started + 1
            })
            .await;
        }
        Self {
            bridge,
            upstream,
            tunnels,
            keys,
            bed,
        }
    }

    fn seen(&self) -> Vec<RecordedRequest> {
        let mut seen = self.upstream.requests();
        seen.retain(|seen| !seen.is_probe());
        seen
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

    /// The message is refused with this code, says this, and never arrives.
    async fn assert_refused(&self, client: &TlsClient, message: &Message, code: u16, says: &str) {
        for version in VERSIONS {
            let before = self.seen().len();
            let response = self.send(client, version, message).await;
            let what = format!("{says} {version:?} {}", response.text());
            assert_eq!(response.status, code, "{what}");
            let status: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
            assert_eq!(status["kind"], "Status", "{what}");
            assert_eq!(status["code"], code, "{what}");
            assert!(status["message"].as_str().unwrap().contains(says), "{what}");
            assert_eq!(self.seen().len(), before, "{what}");
        }
    }

    /// The message arrives as this user's; it can be sent once.
    async fn assert_arrives(
        &self,
        client: &TlsClient,
        version: Version,
        message: &Message,
        expected: &[(&str, &str)],
    ) {
        let response = self.send(client, version, message).await;
        assert_eq!(response.status, 200, "{version:?} {}", response.text());
        let seen = self.seen().pop().unwrap();
        let presented = seen.client.as_ref().map(|it| it.common_name.as_str());
        assert_eq!(presented, FRONT_PROXY);
        assert_eq!(claims(&seen), owned(expected));
        assert_eq!(seen.method, message.method);
        assert_eq!(seen.target, message.target);
        assert_eq!(seen.body_len, message.body.len() as u64);
        for name in ["signature", "signature-input"] {
            assert_eq!(seen.header(name), None, "{name}");
        }
    }

    async fn judged(&self, result: &str) -> Option<f64> {
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
async fn a_signed_request_is_its_keys_users_whatever_the_key() {
    let gateway = Gateway::new().await;
    let client = gateway.bed.client();
    let keys = &gateway.keys;
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
                gateway
                    .assert_arrives(&client, version, &message, &expected)
                    .await;
            }
        }
        // What SECRET is in base64.
        let message = Message::get(PODS).signed(&robot(&b"secret".repeat(6)));
        gateway
            .assert_arrives(&client, version, &message, &[("x-remote-user", "bob")])
            .await;
        let message = Message::get(PODS).with("impersonate-user", "carol");
        let message = message.signed(&keys.laptop());
        let expected = [&[("impersonate-user", "carol")], &alice("laptop")[..]].concat();
        gateway
            .assert_arrives(&client, version, &message, &expected)
            .await;
    }
    assert_eq!(gateway.judged("accepted").await, Some(22.0));
}

#[tokio::test]
async fn a_replayed_request_is_refused() {
    let gateway = Gateway::new().await;
    let client = gateway.bed.client();
    for message in [Message::get(PODS), Message::post(PODS, "{}")] {
        let message = message.signed(&gateway.keys.laptop());
        gateway
            .assert_arrives(&client, Version::HTTP_11, &message, &alice("laptop"))
            .await;
        gateway
            .assert_refused(&client, &message, 401, "has been used before")
            .await;
    }
    assert_eq!(gateway.judged("replayed").await, Some(4.0));
}

#[tokio::test]
async fn an_altered_request_is_refused() {
    let gateway = Gateway::new().await;
    let client = gateway.bed.client();
    let laptop = gateway.keys.laptop();
    let signed = || Message::post(&format!("{PODS}?dryRun=All"), "{}").signed(&laptop);
    let mut altered = Vec::new();
    let mut alter = |change: &dyn Fn(&mut Message), says| {
        let mut message = signed();
        change(&mut message);
        altered.push((message, says));
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
    for (message, says) in altered {
        gateway.assert_refused(&client, &message, 401, says).await;
    }
    for version in VERSIONS {
        for body in ["{ }", "", "{}{}"] {
            let mut message = signed();
            message.body = Bytes::from(body);
            let response = gateway.send(&client, version, &message).await;
            assert_eq!(response.status, 401);
            let says = "does not match its signed digest";
            assert!(response.text().contains(says), "{}", response.text());
        }
    }
    assert!(gateway.seen().is_empty());
}

#[tokio::test]
async fn the_wrong_time_key_or_server_is_refused() {
    let gateway = Gateway::new().await;
    let client = gateway.bed.client();
    let laptop = gateway.keys.laptop();
    let stranger = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let get = || Message::get(PODS);
    let mut elsewhere = get();
    elsewhere.authority = "other.example";
    let rows = [
        (get().signed_at(&laptop, now() - 10_000), "has run out"),
        (get().signed_at(&laptop, now() + 10_000), "in the future"),
        (get().signed(&signer(&stranger, "laptop")), "does not match"),
        (
            get().signed(&signer(&gateway.keys.p256, "laptop")),
            "does not match",
        ),
        (
            get().signed(&signer(&stranger, "stranger")),
            "not known here",
        ),
        (get().signed(&robot(&[7; 32])), "does not match"),
        (elsewhere.signed(&laptop), "for another server"),
    ];
    for (message, says) in rows {
        gateway.assert_refused(&client, &message, 401, says).await;
    }
    for (result, count) in [
        ("late", 2.0),
        ("early", 2.0),
        ("unknown-key", 2.0),
        ("mismatch", 6.0),
        ("wrong-authority", 2.0),
        ("accepted", 0.0),
    ] {
        assert_eq!(gateway.judged(result).await, Some(count), "{result}");
    }
}

#[tokio::test]
async fn what_was_signed_before_the_start_has_to_be_signed_again() {
    // Remembered by a bridge that is gone, perhaps.
    let before = now() - 20;
    let gateway = Gateway::new().await;
    let message = Message::get(PODS).signed_at(&gateway.keys.laptop(), before);
    let client = gateway.bed.client();
    gateway
        .assert_refused(&client, &message, 503, "before this server started")
        .await;
    let response = gateway.send(&client, Version::HTTP_11, &message).await;
    assert_eq!(response.header("retry-after"), Some("1"));

    // What is signed now may have been accepted before, if clocks differ so much.
    let gateway = Gateway::with(|config| {
        let signatures = config.callers.signatures.as_mut().unwrap();
        signatures.clock_skew = Duration::from_mins(10);
    })
    .await;
    let message = Message::get(PODS).signed(&gateway.keys.laptop());
    let client = gateway.bed.client();
    let response = gateway.send(&client, Version::HTTP_11, &message).await;
    assert_eq!(response.status, 503, "{}", response.text());
    let after: u32 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((2..=601).contains(&after), "{after}");
    assert_eq!(gateway.judged("before-start").await, Some(1.0));
}

#[tokio::test]
async fn a_body_that_is_too_long_to_be_held_is_refused() {
    const LONGEST: usize = 3 * 1024 * 1024;
    let gateway = Gateway::new().await;
    let client = gateway.bed.client();
    let laptop = gateway.keys.laptop();
    for version in VERSIONS {
        let message = Message::post(PODS, vec![b' '; LONGEST]).signed(&laptop);
        gateway
            .assert_arrives(&client, version, &message, &alice("laptop"))
            .await;
    }
    let h2 = client.http2(gateway.bridge.address()).await.unwrap();
    let message = Message::post(PODS, vec![b' '; LONGEST + 1]).signed(&laptop);
    let mut request = Request::post(format!("https://{AUTHORITY}{PODS}"))
        .body(())
        .unwrap();
    *request.headers_mut() = message.headers.clone();
    let response = h2.request(request, message.body.clone()).await.unwrap();
    assert_eq!(response.status, 413, "{}", response.text());
    assert!(response.text().contains("RequestEntityTooLarge"));

    // Told at once, where the length is: nobody waits for the body.
    let mut message = Message::post(PODS, vec![b' '; LONGEST + 1]).signed(&laptop);
    message.body = Bytes::new();
    let message = message.with("content-length", &(LONGEST + 1).to_string());
    let mut h1 = client.http1(gateway.bridge.address()).await.unwrap();
    h1.send(message.wire()).await.unwrap();
    assert_eq!(h1.read_response().await.unwrap().status, 413);
    assert_eq!(gateway.judged("too-large").await, Some(2.0));
}

#[tokio::test]
async fn new_keys_count_when_their_file_changes_and_old_ones_no_more() {
    let gateway = Gateway::new().await;
    let client = gateway.bed.client();
    let (old, new) = (gateway.keys.laptop(), Keys::new());
    let code = async |signer: &Signer| {
        let message = Message::get(PODS).signed(signer);
        let response = gateway.send(&client, Version::HTTP_11, &message).await;
        response.status
    };
    assert_eq!(code(&old).await, 200);
    gateway.bed.dir.write("keys.yaml", "keys: [broken");
    eventually("the broken file is noticed", PATIENCE, async || {
        let scrape = scrape(gateway.bridge.admin_address()).await;
        let labels = [("flag", "--http-signature-keys"), ("result", "failed")];
        let failed = scrape.value("skewbridge_file_reloads_total", &labels);
        failed.is_some_and(|count| count > 0.0)
    })
    .await;
    assert_eq!(code(&old).await, 200);
    gateway.bed.dir.write("keys.yaml", new.file());
    eventually("the new key counts", PATIENCE, async || {
        code(&new.laptop()).await == 200
    })
    .await;
    assert_eq!(code(&old).await, 401);
}

#[tokio::test]
async fn another_credential_has_to_be_the_same_users() {
    let gateway = Gateway::new().await;
    let laptop = gateway.keys.laptop();
    let nobody = gateway.bed.client();
    let bearer = || Message::get(PODS).with("authorization", "Bearer t0ken");
    let says = "has another credential";
    gateway
        .assert_refused(&nobody, &bearer().signed(&laptop), 401, says)
        .await;
    let in_protocol = Message::get(PODS).with(
        "sec-websocket-protocol",
        "base64url.bearer.authorization.k8s.io.dDBrZW4",
    );
    gateway
        .assert_refused(&nobody, &in_protocol.signed(&laptop), 401, says)
        .await;
    let other = gateway.bed.user("mallory", &["dev"]);
    let message = Message::get(PODS).signed(&laptop);
    gateway.assert_refused(&other, &message, 401, says).await;

    for version in VERSIONS {
        // The key's groups count, not the certificate's.
        let same = gateway.bed.user("alice", &["system:masters"]);
        let message = Message::get(PODS).signed(&laptop);
        gateway
            .assert_arrives(&same, version, &message, &alice("laptop"))
            .await;
        // What upstream would not look at is not sent there.
        let message = Message::get(PODS).with("authorization", "Basic YTpi");
        let message = message.signed(&laptop);
        gateway
            .assert_arrives(&nobody, version, &message, &alice("laptop"))
            .await;
        // A front proxy speaks for its clients, and what they signed was for it.
        let peer = gateway.bed.peer();
        let message = Message::get(PODS).with("x-remote-user", "bob");
        let mut message = message.signed(&laptop);
        message
            .headers
            .insert("signature", HeaderValue::from_static("garbage"));
        gateway
            .assert_arrives(&peer, version, &message, &[("x-remote-user", "bob")])
            .await;
    }
}

#[tokio::test]
async fn without_a_signature_all_is_as_before() {
    let gateway = Gateway::new().await;
    let client = gateway.bed.client();
    for version in VERSIONS {
        for authorization in [None, Some("Bearer t0ken")] {
            let mut message = Message::get(PODS);
            if let Some(value) = authorization {
                message = message.with("authorization", value);
            }
            let response = gateway.send(&client, version, &message).await;
            assert_eq!(response.status, 200);
            let seen = gateway.seen().pop().unwrap();
            let presented = seen.client.as_ref().map(|it| it.common_name.as_str());
            assert_eq!(presented, PLAIN);
            assert_eq!(seen.header("authorization"), authorization);
        }
    }
    assert_eq!(gateway.judged("accepted").await, Some(0.0));
}

#[tokio::test]
async fn without_keys_signatures_are_somebody_elses_business() {
    let gateway = Gateway::with(|config| config.callers.signatures = None).await;
    let message = Message::get(PODS).signed(&gateway.keys.laptop());
    let client = gateway.bed.client();
    let response = gateway.send(&client, Version::HTTP_11, &message).await;
    assert_eq!(response.status, 200);
    let seen = gateway.seen().pop().unwrap();
    assert!(seen.header("signature").is_some() && seen.client.is_none());
    assert_eq!(gateway.judged("accepted").await, None);
}

#[tokio::test]
async fn a_signed_exec_becomes_a_tunnel() {
    let mut gateway = Gateway::new().await;
    let message = Message {
        method: Method::POST,
        ..Message::get("/api/v1/namespaces/a/pods/b/exec?command=sh&stdin=true")
    };
    let message = message.with("x-stream-protocol-version", "v5.channel.k8s.io");
    let mut message = message.signed(&gateway.keys.laptop());
    // For this hop only, and so never covered.
    for (name, value) in [
        ("connection", "Upgrade"),
        ("upgrade", "SPDY/3.1"),
        ("content-length", "0"),
    ] {
        message = message.with(name, value);
    }
    let client = gateway.bed.client();
    let mut h1 = client.http1(gateway.bridge.address()).await.unwrap();
    h1.send(message.wire()).await.unwrap();
    assert_eq!(h1.read_head().await.unwrap().status, 101);
    let mut near = h1.into_connection();
    let mut far = gateway.tunnels.recv().await.unwrap().connection().await;
    let mut got = [0; 4];
    for _ in 0..2 {
        near.write_all(b"ping").await.unwrap();
        near.flush().await.unwrap();
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"ping");
        std::mem::swap(&mut near, &mut far);
    }
    let seen = gateway.seen().pop().unwrap();
    assert_eq!(claims(&seen), owned(&alice("laptop")));
    assert_eq!(seen.header("signature"), None);
}
