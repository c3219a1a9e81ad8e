//! Signed requests (RFC 9421): accepted as the user of their key, once, unaltered, and within their
//! time window.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Version};
use rcgen::{KeyPair, PKCS_ED25519};
use skewbridge_http_signature::Signer;
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::admin_client::scrape;
use crate::support::identity::{PLAIN, VERSIONS, identity_headers, owned};
use crate::support::signed_requests::{
    AUTHORITY, Keys, Message, SignatureFixture, alice, now, robot, signer,
};

const PODS: &str = "/api/v1/namespaces/a/pods";

#[tokio::test]
async fn a_signed_request_is_authenticated_as_the_user_of_its_key_for_every_algorithm() {
    let fixture = SignatureFixture::new().await;
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
    let fixture = SignatureFixture::new().await;
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
    let fixture = SignatureFixture::new().await;
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
    let fixture = SignatureFixture::new().await;
    let client = fixture.pki.client();
    let laptop = fixture.keys.laptop();
    let untrusted = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let get = || Message::get(PODS);
    let mut elsewhere = get();
    elsewhere.authority = "other.example";
    let rows = [
        (get().signed_at(&laptop, now() - 10_000), "has expired"),
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
            get().signed(&signer(&untrusted, "unlisted")),
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
    let fixture = SignatureFixture::new().await;
    let message = Message::get(PODS).signed_at(&fixture.keys.laptop(), before);
    let client = fixture.pki.client();
    fixture
        .assert_refused(&client, &message, 503, "before this server started")
        .await;
    let response = fixture.send(&client, Version::HTTP_11, &message).await;
    assert_eq!(response.header("retry-after"), Some("1"));

    // A request signed now may have been accepted before, if clocks differ that much.
    let fixture = SignatureFixture::with(|config| {
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
    let fixture = SignatureFixture::new().await;
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
    let fixture = SignatureFixture::new().await;
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
    let fixture = SignatureFixture::new().await;
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
    let fixture = SignatureFixture::new().await;
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
    let fixture = SignatureFixture::with(|config| config.callers.signatures = None).await;
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
    let mut fixture = SignatureFixture::new().await;
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
