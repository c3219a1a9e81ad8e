//! Authentication of clients: upstream gets an identity that was verified, or none.

use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Leaf, Options, Reply, TEST_TIMEOUT, Validity, eventually,
};

use crate::support::identity::{
    BEARER, FRONT_PROXY, IdentityFixture, PLAIN, custom_identity_headers, identity_headers, owned,
};
use crate::support::pki::PkiFixture;

#[tokio::test]
async fn a_certificate_becomes_a_user_with_its_groups_in_order() {
    let fixture = IdentityFixture::new().await;
    let alice = fixture.pki.user("alice", &["ops", "dev", "all"]);
    let expected = [
        ("x-remote-group", "ops"),
        ("x-remote-group", "dev"),
        ("x-remote-group", "all"),
        ("x-remote-user", "alice"),
    ];
    fixture
        .assert_arrives(&alice, &[], FRONT_PROXY, &expected)
        .await;

    let user_without_groups = fixture.pki.user("system:node:ünï", &[]);
    let expected = [("x-remote-user", "system:node:ünï")];
    fixture
        .assert_arrives(&user_without_groups, &[], FRONT_PROXY, &expected)
        .await;
}

#[tokio::test]
async fn a_certificate_takes_precedence_over_every_other_credential() {
    let fixture = IdentityFixture::new().await;
    let alice = fixture.pki.user("alice", &["dev"]);
    let expected = [("x-remote-group", "dev"), ("x-remote-user", "alice")];
    for authorization in ["Bearer t0ken", "Basic YTpi", "Negotiate x"] {
        let headers = [("Authorization", authorization)];
        fixture
            .assert_arrives(&alice, &headers, FRONT_PROXY, &expected)
            .await;
    }
}

#[tokio::test]
async fn a_certificate_below_an_intermediate_is_accepted() {
    let fixture = IdentityFixture::new().await;
    let below = fixture.pki.client_ca.intermediate("users");
    let alice = fixture.pki.client().identity(&below.client("alice", &[]));
    fixture
        .assert_arrives(&alice, &[], FRONT_PROXY, &[("x-remote-user", "alice")])
        .await;
}

#[tokio::test]
async fn an_unneeded_expired_certificate_in_the_chain_is_ignored() {
    let fixture = IdentityFixture::new().await;
    let mut leaf = fixture.pki.client_ca.client("alice", &[]);
    let old = Ca::new("other").client_valid("old", &[], Validity::Expired);
    leaf.chain_der.extend(old.chain_der);
    let client = fixture.pki.client().identity(&leaf);
    let mut h1 = client.http1(fixture.bridge.address()).await.unwrap();
    // The verdict is cached for the connection, so the second request is the one that matters.
    for _ in 0..3 {
        h1.send("GET /api HTTP/1.1\r\nHost: k\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(h1.read_response().await.unwrap().status, 200);
    }
    for recorded in fixture.client_requests() {
        assert_eq!(
            identity_headers(&recorded),
            owned(&[("x-remote-user", "alice")])
        );
    }
}

#[tokio::test]
async fn tokens_and_anonymous_requests_are_forwarded_unchanged_without_a_client_certificate() {
    let fixture = IdentityFixture::new().await;
    let client = fixture.pki.client();
    let subprotocol = "base64url.bearer.authorization.k8s.io.dDBrZW4, v4.channel.k8s.io";
    for headers in [
        &[][..],
        &[("authorization", "Bearer t0ken")],
        &[("authorization", "bEaReR  two words")],
        &[("authorization", "Basic YWxpY2U6cHc=")],
        &[("sec-websocket-protocol", subprotocol)],
    ] {
        fixture
            .assert_arrives(&client, headers, PLAIN, headers)
            .await;
    }
}

/// Certificates that do not authenticate a client.
fn invalid_certificates(pki: &PkiFixture) -> Vec<(&'static str, Leaf)> {
    let users = &pki.client_ca;
    vec![
        (
            "of an unknown CA",
            Ca::new("client-ca").client("alice", &["system:masters"]),
        ),
        (
            "expired",
            users.client_valid("alice", &[], Validity::Expired),
        ),
        (
            "not yet valid",
            users.client_valid("alice", &[], Validity::NotYetValid),
        ),
        ("without a common name", users.client("", &["dev"])),
        ("for servers", users.server(&["alice"])),
        (
            "of a front proxy with another name",
            pki.front_proxy_ca.client("other-proxy", &[]),
        ),
        (
            "of a front proxy that expired",
            pki.front_proxy_ca
                .client_valid("front-proxy-client", &[], Validity::Expired),
        ),
        (
            "of a front proxy of another CA",
            Ca::new("front-proxy-ca").client("front-proxy-client", &[]),
        ),
        (
            "that a header would change",
            users.client("alice\r\nX-Remote-Group: system:masters", &[]),
        ),
    ]
}

#[tokio::test]
async fn an_invalid_certificate_leaves_the_token_or_no_identity() {
    let fixture = IdentityFixture::new().await;
    for (what, leaf) in invalid_certificates(&fixture.pki) {
        println!("a certificate {what}");
        let client = fixture.pki.client().identity(&leaf);
        let asserted = [("X-Remote-User", "admin"), ("X-Remote-Group", "all")];
        fixture.assert_refused(&client, &[], 401).await;
        fixture.assert_refused(&client, &asserted, 401).await;
        let basic = [("Authorization", "Basic YTpi")];
        fixture.assert_refused(&client, &basic, 401).await;
        // Upstream reads only the first Authorization header, and would see an anonymous request.
        let second = [basic[0], BEARER];
        fixture.assert_refused(&client, &second, 401).await;
        let empty = [("Authorization", "Bearer  ")];
        fixture.assert_refused(&client, &empty, 401).await;
        let with_token = [asserted[0], BEARER, asserted[1]];
        let expected = [("authorization", "Bearer t0ken")];
        fixture
            .assert_arrives(&client, &with_token, PLAIN, &expected)
            .await;
    }
}

#[tokio::test]
async fn without_a_front_proxy_certificate_an_authenticated_user_does_not_become_anonymous() {
    let fixture = IdentityFixture::with(|config| config.upstream.front_proxy = None).await;
    let alice = fixture.pki.user("alice", &[]);
    fixture.assert_refused(&alice, &[], 500).await;
    fixture.assert_refused(&alice, &[BEARER], 500).await;
    let peer = fixture.pki.peer();
    let asserted = [("X-Remote-User", "bob")];
    fixture.assert_refused(&peer, &asserted, 500).await;
    let expected = [("authorization", "Bearer t0ken")];
    fixture
        .assert_arrives(&fixture.pki.client(), &[BEARER], PLAIN, &expected)
        .await;
}

#[tokio::test]
async fn the_identity_that_a_peer_asserts_is_forwarded_unchanged() {
    let fixture = IdentityFixture::new().await;
    let headers = [
        ("X-Remote-User", "bob"),
        ("X-Remote-Uid", "42"),
        ("X-Remote-Group", "b"),
        ("X-Remote-Group", "a"),
        ("X-Remote-Extra-Scopes", "two"),
        ("X-Remote-Extra-Scopes", "one"),
        ("X-Remote-Extra-Acme.com%2Fproject", "p"),
        ("X-Remote-Extra-100%25", "q"),
        ("X-Remote-Extra-%41bc", "an upper-case key"),
        ("Authorization", "Bearer is-the-peers-own"),
        ("X-Kubernetes-Peer-Proxied", "true"),
        ("X-Kubernetes-APIServer-Rerouted", "true"),
        ("Impersonate-User", "carol"),
    ];
    let expected = [
        ("impersonate-user", "carol"),
        ("x-kubernetes-apiserver-rerouted", "true"),
        ("x-kubernetes-peer-proxied", "true"),
        ("x-remote-extra-%41bc", "an upper-case key"),
        ("x-remote-extra-100%25", "q"),
        ("x-remote-extra-acme.com%2fproject", "p"),
        ("x-remote-extra-scopes", "two"),
        ("x-remote-extra-scopes", "one"),
        ("x-remote-group", "b"),
        ("x-remote-group", "a"),
        ("x-remote-uid", "42"),
        ("x-remote-user", "bob"),
    ];
    fixture
        .assert_arrives(&fixture.pki.peer(), &headers, FRONT_PROXY, &expected)
        .await;
}

#[tokio::test]
async fn a_peer_that_asserts_no_user_needs_a_token() {
    let fixture = IdentityFixture::new().await;
    let peer = fixture.pki.peer();
    for headers in [
        &[][..],
        &[("X-Remote-User", "")],
        &[("X-Remote-Group", "system:masters"), ("X-Remote-Uid", "1")],
        // It could only be forwarded under another key.
        &[("X-Remote-User", "bob"), ("X-Remote-Extra-%FF", "x")],
    ] {
        fixture.assert_refused(&peer, headers, 401).await;
    }
    let headers = [
        BEARER,
        ("X-Remote-Group", "system:masters"),
        ("X-Kubernetes-Peer-Proxied", "true"),
    ];
    let expected = [
        ("authorization", "Bearer t0ken"),
        ("x-kubernetes-peer-proxied", "true"),
    ];
    fixture
        .assert_arrives(&peer, &headers, PLAIN, &expected)
        .await;
}

#[tokio::test]
async fn without_allowed_names_any_front_proxy_certificate_is_a_peer() {
    let fixture = IdentityFixture::with(|config| {
        let request_header = config.callers.request_header.as_mut().unwrap();
        request_header.allowed_names.clear();
    })
    .await;
    for name in ["other-proxy", ""] {
        let leaf = fixture.pki.front_proxy_ca.client(name, &[]);
        let peer = fixture.pki.client().identity(&leaf);
        let headers = [("X-Remote-User", "bob")];
        let expected = [("x-remote-user", "bob")];
        fixture
            .assert_arrives(&peer, &headers, FRONT_PROXY, &expected)
            .await;
    }
}

#[tokio::test]
async fn with_one_ca_for_users_and_front_proxies_the_common_name_decides() {
    let fixture = IdentityFixture::with(|config| {
        let request_header = config.callers.request_header.as_ref().unwrap();
        config.callers.client_ca = Some(request_header.ca.clone());
    })
    .await;
    let named = |name| {
        let leaf = fixture.pki.front_proxy_ca.client(name, &[]);
        fixture.pki.client().identity(&leaf)
    };
    let (alice, proxy) = (named("alice"), named("front-proxy-client"));
    let asserted = [("X-Remote-User", "bob")];
    for (client, headers, name) in [
        (&alice, &[][..], "alice"),
        (&alice, &asserted, "alice"),
        (&proxy, &asserted, "bob"),
        (&proxy, &[], "front-proxy-client"),
    ] {
        fixture
            .assert_arrives(client, headers, FRONT_PROXY, &[("x-remote-user", name)])
            .await;
    }
}

#[tokio::test]
async fn configured_header_names_are_read_in_order_and_written_under_the_first() {
    let fixture =
        IdentityFixture::with(|config| config.callers.headers = custom_identity_headers()).await;
    let headers = [
        ("X-Other-User", "last"),
        ("X-Proxy-User", ""),
        ("X-Remote-User", "bob"),
        ("X-Other-Uid", "42"),
        ("X-Other-Group", "second"),
        ("X-Proxy-Group", "first"),
        ("X-Other-Extra-Acme.com%2fa", "1"),
        ("X-More-B", "2"),
        ("X-Remote-Extra-C", "not a configured prefix"),
        ("X-Remote-Group", "not a configured name"),
    ];
    let expected = [
        ("x-more-acme.com%2fa", "1"),
        ("x-more-b", "2"),
        ("x-proxy-group", "first"),
        ("x-proxy-group", "second"),
        ("x-proxy-uid", "42"),
        ("x-proxy-user", "bob"),
    ];
    fixture
        .assert_arrives(&fixture.pki.peer(), &headers, FRONT_PROXY, &expected)
        .await;

    let alice = fixture.pki.user("alice", &["dev"]);
    let expected = [("x-proxy-group", "dev"), ("x-proxy-user", "alice")];
    fixture
        .assert_arrives(&alice, &headers, FRONT_PROXY, &expected)
        .await;
}

#[tokio::test]
async fn impersonation_headers_are_forwarded_for_every_client() {
    let fixture = IdentityFixture::new().await;
    let recorded_requests = [
        ("Impersonate-User", "carol"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Extra-Scopes", "x"),
    ];
    let passed = [
        ("impersonate-extra-scopes", "x"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-uid", "7"),
        ("impersonate-user", "carol"),
    ];
    let token = ("authorization", "Bearer t0ken");
    let alice = fixture.pki.user("alice", &[]);
    let as_alice = [&passed[..], &[("x-remote-user", "alice")]].concat();
    fixture
        .assert_arrives(&alice, &recorded_requests, FRONT_PROXY, &as_alice)
        .await;
    let anonymous = fixture.pki.client();
    fixture
        .assert_arrives(&anonymous, &recorded_requests, PLAIN, &passed)
        .await;
    let (recorded_requests, passed) = (
        [&recorded_requests[..], &[BEARER]].concat(),
        [&[token], &passed[..]].concat(),
    );
    fixture
        .assert_arrives(&anonymous, &recorded_requests, PLAIN, &passed)
        .await;
}

/// kube-apiserver 1.32 and later writes the certificate that authenticated a user into its audit
/// log. Behind a bridge it gets the certificate only from a header.
#[tokio::test]
async fn newer_servers_get_the_id_of_the_client_certificate() {
    for (version, received) in [
        ("v1.31.9", false),
        ("v1.32.0", true),
        ("v1.34.4+k3s1", true),
    ] {
        for denied in [false, true] {
            let pki = PkiFixture::new();
            let options = Options::new(pki.upstream.clone())
                .clients(ClientAuth::Accept(&pki.front_proxy_ca))
                .alpn(&["h2", "http/1.1"]);
            let upstream = ApiServer::start(options, move |recorded| match recorded.path() {
                // Where anonymous requests may not read the version, the bridge reads it as its own
                // user.
                "/version" if denied && recorded.client.is_none() => Reply::new(401),
                "/version" => Reply::json(format!(r#"{{"gitVersion":"{version}"}}"#)),
                _ => Reply::json("{}"),
            })
            .await;
            let bridge = pki.start_bridge(upstream.addr());
            let alice = pki.client_ca.client("alice", &[]);
            let client = pki.client().identity(&alice);
            let name = "x-remote-extra-authentication.kubernetes.io%2fcredential-id";
            let send_request = async || {
                let mut h1 = client.http1(bridge.address()).await.unwrap();
                h1.send("GET /request-by-h1 HTTP/1.1\r\nHost: k\r\n\r\n")
                    .await
                    .unwrap();
                h1.read_response().await.unwrap();
                let recorded = upstream.requests();
                let recorded = recorded
                    .iter()
                    .rfind(|recorded| recorded.path() == "/request-by-h1")
                    .unwrap();
                recorded.header(name).map(str::to_owned)
            };
            eventually("the version is known", TEST_TIMEOUT, async || {
                let recorded_requests = upstream.requests();
                let mut recorded_requests = recorded_requests
                    .iter()
                    .filter(|recorded| recorded.path() == "/version");
                recorded_requests.any(|recorded| !denied || recorded.client.is_some())
            })
            .await;
            if received {
                eventually("the certificate is named", TEST_TIMEOUT, async || {
                    send_request().await.is_some()
                })
                .await;
            }
            let id = send_request().await;
            assert_eq!(id.is_some(), received, "{version}");
            assert!(id.is_none_or(|id| id.len() == 75 && id.starts_with("X509SHA256=")));
        }
    }
}
