//! Headers that only peers may set are ignored or rejected from every other client, in any
//! spelling.

use http::{Request, Version};
use skewbridge_testkit::h2frames::{self, flag, kind};
use skewbridge_testkit::{Ca, TlsClient};
use tokio::io::AsyncWriteExt;

use crate::support::identity::{
    BEARER, FRONT_PROXY, IdentityFixture, PLAIN, custom_identity_headers, owned,
};
use crate::support::pki::PkiFixture;

/// Headers that only peers may set, in the spellings that other clients might try.
const SPOOFED_HEADERS: [&str; 29] = [
    "X-Remote-User",
    "x-remote-user",
    "X-REMOTE-USER",
    "x_remote_user",
    "X-Remote_User",
    "X_Remote-User",
    "X-Remote-Group",
    "X_REMOTE_GROUP",
    "X-Remote-Uid",
    "x_remote_uid",
    "X-Remote-Extra-Scopes",
    "x-remote-extra-acme.com%2Fproject",
    "X_Remote_Extra_Scopes",
    "X-Remote-Anything",
    "X-Proxy-User",
    "x_proxy_user",
    "X-OTHER-USER",
    "X-Proxy-Uid",
    "X-Other_Uid",
    "X-Proxy-Group",
    "x-other-group",
    "X-More-Scopes",
    "X_More_Scopes",
    "X-Other-Extra-A",
    "x_other-extra_a",
    "X-Kubernetes-Peer-Proxied",
    "x_kubernetes_peer_proxied",
    "X-KUBERNETES-APISERVER-REROUTED",
    "x_kubernetes-apiserver_rerouted",
];

/// A client that is not a peer: its credential, the client certificate that upstream gets, and the
/// identity headers that arrive.
struct NonPeer {
    client: TlsClient,
    sent_headers: &'static [(&'static str, &'static str)],
    certificate: Option<&'static str>,
    expected_headers: &'static [(&'static str, &'static str)],
}

fn non_peers(pki: &PkiFixture) -> [NonPeer; 3] {
    let other = |client, sent_headers, certificate, expected_headers| NonPeer {
        client,
        sent_headers,
        certificate,
        expected_headers,
    };
    [
        other(
            pki.user("alice", &["dev"]),
            &[],
            FRONT_PROXY,
            &[("x-proxy-group", "dev"), ("x-proxy-user", "alice")],
        ),
        other(
            pki.client(),
            &[BEARER],
            PLAIN,
            &[("authorization", "Bearer t0ken")],
        ),
        other(pki.client(), &[], PLAIN, &[]),
    ]
}

#[tokio::test]
async fn peer_headers_of_other_clients_are_not_forwarded_in_any_spelling() {
    let fixture =
        IdentityFixture::with(|config| config.callers.headers = custom_identity_headers()).await;
    for other in non_peers(&fixture.pki) {
        for name in SPOOFED_HEADERS {
            let twice = [(name, "evil"), (name, "evil,evil")];
            let headers = [&twice[..1], other.sent_headers, &twice[1..]].concat();
            fixture
                .assert_arrives(
                    &other.client,
                    &headers,
                    other.certificate,
                    other.expected_headers,
                )
                .await;
        }
        let all: Vec<_> = SPOOFED_HEADERS.iter().map(|name| (*name, "evil")).collect();
        let headers = [&all, other.sent_headers].concat();
        fixture
            .assert_arrives(
                &other.client,
                &headers,
                other.certificate,
                other.expected_headers,
            )
            .await;
    }
    for recorded in fixture.client_requests() {
        assert!(
            !format!("{:?}", recorded.headers).contains("evil"),
            "{recorded:#?}"
        );
    }
}

#[tokio::test]
async fn an_identity_header_listed_in_connection_is_rejected() {
    let fixture =
        IdentityFixture::with(|config| config.callers.headers = custom_identity_headers()).await;
    for other in non_peers(&fixture.pki) {
        for name in SPOOFED_HEADERS {
            for headers in [
                vec![("Connection", name)],
                vec![("Connection", name), (name, "evil")],
                vec![
                    (name, "evil"),
                    ("Upgrade", "SPDY/3.1"),
                    ("Connection", "Upgrade"),
                    ("Connection", name),
                ],
                vec![
                    (name, "evil"),
                    ("connection", "close"),
                    ("Connection", name),
                ],
            ] {
                let headers = [&headers, other.sent_headers].concat();
                let outcome = fixture
                    .send_request(&other.client, Version::HTTP_11, &headers)
                    .await;
                assert!(outcome.recorded.is_none(), "{headers:?}");
                assert_eq!(outcome.response.status, 400, "{headers:?}");
            }
        }
    }
}

/// Without `Impersonate-User` a request would have all permissions of the proxy that sent it.
#[tokio::test]
async fn security_relevant_headers_listed_in_connection_are_rejected() {
    let fixture = IdentityFixture::new().await;
    let (pki, h1) = (&fixture.pki, Version::HTTP_11);
    let untrusted = pki
        .client()
        .identity(&Ca::new("other").client("alice", &[]));
    for client in [
        pki.client(),
        untrusted,
        pki.user("alice", &["system:masters"]),
        pki.peer(),
    ] {
        for (listed, headers) in [
            ("keep-alive, AUTHORIZATION", &[BEARER][..]),
            ("Impersonate-User", &[("Impersonate-User", "bob")]),
            ("impersonate_group", &[("Impersonate-Group", "dev")]),
            ("X-Remote-User", &[("X-Remote-User", "bob")]),
            ("X-Forwarded-For", &[("X-Forwarded-For", "192.0.2.1")]),
            ("Signature-Input", &[("Signature-Input", "sig1=()")]),
            ("content-length", &[("Content-Length", "0")]),
            ("Host", &[]),
        ] {
            let headers = [headers, &[("Connection", listed)]].concat();
            let outcome = fixture.send_request(&client, h1, &headers).await;
            assert!(outcome.recorded.is_none(), "{listed}");
            assert_eq!(outcome.response.status, 400, "{listed}");
            let text = outcome.response.text();
            assert!(text.contains("must not list"), "{text}");
        }
    }
}

#[tokio::test]
async fn peer_headers_in_trailers_are_not_forwarded() {
    let fixture =
        IdentityFixture::with(|config| config.callers.headers = custom_identity_headers()).await;
    let address = fixture.bridge.address();
    for other in non_peers(&fixture.pki) {
        let trailers = SPOOFED_HEADERS
            .map(|name| format!("{name}: evil\r\n"))
            .concat();
        let mut h1 = other.client.http1(address).await.unwrap();
        h1.send(format!(
            "POST /api HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n\
             1\r\nx\r\n0\r\n{trailers}X-Checksum: good\r\n\r\n"
        ))
        .await
        .unwrap();
        assert_eq!(h1.read_response().await.unwrap().status, 200);

        let h2 = other.client.http2(address).await.unwrap();
        let request = Request::post("https://k/api").body(()).unwrap();
        let mut stream = h2.stream(request).await.unwrap();
        stream.send("x").await.unwrap();
        let mut trailers = owned(&SPOOFED_HEADERS.map(|name| (name, "evil")));
        trailers.push(("x-checksum".to_owned(), "good".to_owned()));
        stream.finish_with(&trailers).unwrap();
        assert_eq!(stream.head().await.unwrap().status, 200);
    }
    assert_eq!(fixture.client_requests().len(), 6);
    for recorded in fixture.client_requests() {
        let mut trailers = recorded.trailers;
        trailers[0].0.make_ascii_lowercase();
        assert_eq!(trailers, owned(&[("x-checksum", "good")]));
    }
}

#[tokio::test]
async fn an_identity_in_a_malformed_http1_header_is_rejected() {
    let fixture = IdentityFixture::new().await;
    for lines in [
        "X-Remote-User : evil",
        "X-Remote-User\t: evil",
        " X-Remote-User: evil",
        "X-A: a\r\n X-Remote-User: evil",
        "X-A: a\r\n\tX-Remote-User: evil",
        "X-A: a\rX-Remote-User: evil",
        "X-A: a\0X-Remote-User: evil",
        "X-Remote-User\0: evil",
        "X-Remote-Üser: evil",
        "X-A\r\nX-Remote-User: evil",
        "X-A: a\nX-Remote-User: evil",
    ] {
        let client = fixture.pki.client();
        let mut h1 = client.http1(fixture.bridge.address()).await.unwrap();
        h1.send(format!("GET /api HTTP/1.1\r\nHost: k\r\n{lines}\r\n\r\n"))
            .await
            .unwrap();
        let status = h1.read_response().await.unwrap().status;
        assert_eq!(status, 400, "{lines:?}");
    }
    assert!(fixture.client_requests().is_empty());
}

#[tokio::test]
async fn an_identity_in_a_malformed_http2_header_is_rejected() {
    let fixture = IdentityFixture::new().await;
    let client = fixture.pki.client().alpn(&["h2"]);
    for (name, value) in [
        ("X-Remote-User", "evil"),
        ("connection", "x-remote-user"),
        ("x-a", "a\r\nx-remote-user: evil"),
        ("x-a", "a\0evil"),
        ("x-a\r\nx-remote-user", "evil"),
        ("x-a: a\nx-remote-user", "evil"),
        ("x-remote-user ", "evil"),
        (":x-remote-user", "evil"),
    ] {
        let address = fixture.bridge.address();
        let mut io = client.connect(address, "localhost").await.unwrap();
        h2frames::open(&mut io, &[]).await.unwrap();
        let block = [
            h2frames::request_block("GET", "k", "/api"),
            h2frames::literal(name, value),
        ]
        .concat();
        let flags = flag::END_HEADERS | flag::END_STREAM;
        let frame = h2frames::headers(1, flags, &block);
        io.write_all(&frame).await.unwrap();
        io.flush().await.unwrap();
        loop {
            match h2frames::read_frame(&mut io).await.map(|it| it.header.kind) {
                Ok(kind::SETTINGS | kind::WINDOW_UPDATE | kind::PING) => {}
                Ok(kind::RST_STREAM | kind::GOAWAY) | Err(_) => break,
                Ok(other) => panic!("{name:?}: {value:?} was answered with frame {other}"),
            }
        }
    }
    assert!(fixture.client_requests().is_empty());
}
