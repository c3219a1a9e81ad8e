//! Who a request is from: proven to upstream, or not said at all.

use skewbridge_testkit::{
    ApiServer, Ca, ClientAuth, Leaf, Options, PATIENCE, Reply, Validity, eventually,
};

use crate::bed::Bed;
use crate::claims::{BEARER, FRONT_PROXY, Gateway, PLAIN, claims, configured, owned};

#[tokio::test]
async fn a_certificate_becomes_a_user_with_its_groups_in_order() {
    let gateway = Gateway::new().await;
    let alice = gateway.bed.user("alice", &["ops", "dev", "all"]);
    let expected = [
        ("x-remote-group", "ops"),
        ("x-remote-group", "dev"),
        ("x-remote-group", "all"),
        ("x-remote-user", "alice"),
    ];
    gateway
        .assert_arrives(&alice, &[], FRONT_PROXY, &expected)
        .await;

    let loner = gateway.bed.user("system:node:ünï", &[]);
    let expected = [("x-remote-user", "system:node:ünï")];
    gateway
        .assert_arrives(&loner, &[], FRONT_PROXY, &expected)
        .await;
}

#[tokio::test]
async fn a_certificate_wins_over_every_other_credential() {
    let gateway = Gateway::new().await;
    let alice = gateway.bed.user("alice", &["dev"]);
    let expected = [("x-remote-group", "dev"), ("x-remote-user", "alice")];
    for authorization in ["Bearer t0ken", "Basic YTpi", "Negotiate x"] {
        let headers = [("Authorization", authorization)];
        gateway
            .assert_arrives(&alice, &headers, FRONT_PROXY, &expected)
            .await;
    }
}

#[tokio::test]
async fn a_certificate_through_an_intermediate_is_believed() {
    let gateway = Gateway::new().await;
    let below = gateway.bed.client_ca.intermediate("users");
    let alice = gateway.bed.client().identity(&below.client("alice", &[]));
    gateway
        .assert_arrives(&alice, &[], FRONT_PROXY, &[("x-remote-user", "alice")])
        .await;
}

#[tokio::test]
async fn a_needless_certificate_in_the_chain_does_no_harm_however_old() {
    let gateway = Gateway::new().await;
    let mut leaf = gateway.bed.client_ca.client("alice", &[]);
    let old = Ca::new("other").client_valid("old", &[], Validity::Expired);
    leaf.chain_der.extend(old.chain_der);
    let client = gateway.bed.client().identity(&leaf);
    let mut h1 = client.http1(gateway.bridge.address()).await.unwrap();
    // Once judged, a connection is not judged again: the second request counts.
    for _ in 0..3 {
        h1.send("GET /api HTTP/1.1\r\nHost: k\r\n\r\n")
            .await
            .unwrap();
        assert_eq!(h1.read_response().await.unwrap().status, 200);
    }
    for seen in gateway.seen() {
        assert_eq!(claims(&seen), owned(&[("x-remote-user", "alice")]));
    }
}

#[tokio::test]
async fn tokens_and_nobody_go_up_as_they_came_without_a_certificate() {
    let gateway = Gateway::new().await;
    let client = gateway.bed.client();
    let subprotocol = "base64url.bearer.authorization.k8s.io.dDBrZW4, v4.channel.k8s.io";
    for headers in [
        &[][..],
        &[("authorization", "Bearer t0ken")],
        &[("authorization", "bEaReR  two words")],
        &[("authorization", "Basic YWxpY2U6cHc=")],
        &[("sec-websocket-protocol", subprotocol)],
    ] {
        gateway
            .assert_arrives(&client, headers, PLAIN, headers)
            .await;
    }
}

/// Certificates that prove nothing here.
fn useless(bed: &Bed) -> Vec<(&'static str, Leaf)> {
    let users = &bed.client_ca;
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
            bed.front_proxy_ca.client("somebody", &[]),
        ),
        (
            "of a front proxy that expired",
            bed.front_proxy_ca
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
async fn a_certificate_that_proves_nothing_leaves_a_token_or_nothing() {
    let gateway = Gateway::new().await;
    for (what, leaf) in useless(&gateway.bed) {
        println!("a certificate {what}");
        let client = gateway.bed.client().identity(&leaf);
        let asserted = [("X-Remote-User", "admin"), ("X-Remote-Group", "all")];
        gateway.assert_refused(&client, &[], 401).await;
        gateway.assert_refused(&client, &asserted, 401).await;
        let basic = [("Authorization", "Basic YTpi")];
        gateway.assert_refused(&client, &basic, 401).await;
        // Upstream looks at the first only, and would find nobody.
        let second = [basic[0], BEARER];
        gateway.assert_refused(&client, &second, 401).await;
        let empty = [("Authorization", "Bearer  ")];
        gateway.assert_refused(&client, &empty, 401).await;
        let with_token = [asserted[0], BEARER, asserted[1]];
        let expected = [("authorization", "Bearer t0ken")];
        gateway
            .assert_arrives(&client, &with_token, PLAIN, &expected)
            .await;
    }
}

#[tokio::test]
async fn without_a_front_proxy_certificate_nobody_is_turned_into_anonymous() {
    let gateway = Gateway::with(|config| config.upstream.front_proxy = None).await;
    let alice = gateway.bed.user("alice", &[]);
    gateway.assert_refused(&alice, &[], 500).await;
    gateway.assert_refused(&alice, &[BEARER], 500).await;
    let peer = gateway.bed.peer();
    let asserted = [("X-Remote-User", "bob")];
    gateway.assert_refused(&peer, &asserted, 500).await;
    let expected = [("authorization", "Bearer t0ken")];
    gateway
        .assert_arrives(&gateway.bed.client(), &[BEARER], PLAIN, &expected)
        .await;
}

#[tokio::test]
async fn what_a_peer_asserts_is_passed_on_equal() {
    let gateway = Gateway::new().await;
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
    gateway
        .assert_arrives(&gateway.bed.peer(), &headers, FRONT_PROXY, &expected)
        .await;
}

#[tokio::test]
async fn a_peer_that_speaks_for_nobody_needs_a_token() {
    let gateway = Gateway::new().await;
    let peer = gateway.bed.peer();
    for headers in [
        &[][..],
        &[("X-Remote-User", "")],
        &[("X-Remote-Group", "system:masters"), ("X-Remote-Uid", "1")],
        // Could only be passed on as another key.
        &[("X-Remote-User", "bob"), ("X-Remote-Extra-%FF", "x")],
    ] {
        gateway.assert_refused(&peer, headers, 401).await;
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
    gateway
        .assert_arrives(&peer, &headers, PLAIN, &expected)
        .await;
}

#[tokio::test]
async fn without_allowed_names_any_front_proxy_is_a_peer() {
    let gateway = Gateway::with(|config| {
        let request_header = config.callers.request_header.as_mut().unwrap();
        request_header.allowed_names.clear();
    })
    .await;
    for name in ["somebody", ""] {
        let leaf = gateway.bed.front_proxy_ca.client(name, &[]);
        let peer = gateway.bed.client().identity(&leaf);
        let headers = [("X-Remote-User", "bob")];
        let expected = [("x-remote-user", "bob")];
        gateway
            .assert_arrives(&peer, &headers, FRONT_PROXY, &expected)
            .await;
    }
}

#[tokio::test]
async fn one_ca_for_users_and_front_proxies_tells_them_apart_by_name() {
    let gateway = Gateway::with(|config| {
        let request_header = config.callers.request_header.as_ref().unwrap();
        config.callers.client_ca = Some(request_header.ca.clone());
    })
    .await;
    let named = |name| {
        let leaf = gateway.bed.front_proxy_ca.client(name, &[]);
        gateway.bed.client().identity(&leaf)
    };
    let (alice, proxy) = (named("alice"), named("front-proxy-client"));
    let asserted = [("X-Remote-User", "bob")];
    for (client, headers, name) in [
        (&alice, &[][..], "alice"),
        (&alice, &asserted, "alice"),
        (&proxy, &asserted, "bob"),
        (&proxy, &[], "front-proxy-client"),
    ] {
        gateway
            .assert_arrives(client, headers, FRONT_PROXY, &[("x-remote-user", name)])
            .await;
    }
}

#[tokio::test]
async fn configured_names_are_read_in_their_order_and_written_under_the_first() {
    let gateway = Gateway::with(|config| config.callers.headers = configured()).await;
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
    gateway
        .assert_arrives(&gateway.bed.peer(), &headers, FRONT_PROXY, &expected)
        .await;

    let alice = gateway.bed.user("alice", &["dev"]);
    let expected = [("x-proxy-group", "dev"), ("x-proxy-user", "alice")];
    gateway
        .assert_arrives(&alice, &headers, FRONT_PROXY, &expected)
        .await;
}

#[tokio::test]
async fn impersonation_passes_for_everyone() {
    let gateway = Gateway::new().await;
    let asked = [
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
    let alice = gateway.bed.user("alice", &[]);
    let as_alice = [&passed[..], &[("x-remote-user", "alice")]].concat();
    gateway
        .assert_arrives(&alice, &asked, FRONT_PROXY, &as_alice)
        .await;
    let anybody = gateway.bed.client();
    gateway
        .assert_arrives(&anybody, &asked, PLAIN, &passed)
        .await;
    let (asked, passed) = (
        [&asked[..], &[BEARER]].concat(),
        [&[token], &passed[..]].concat(),
    );
    gateway
        .assert_arrives(&anybody, &asked, PLAIN, &passed)
        .await;
}

/// kube-apiserver from 1.32 on writes into its audit log by which certificate a
/// user was recognised; behind a bridge it cannot know unless it is told.
#[tokio::test]
async fn newer_servers_are_told_which_certificate_it_was() {
    for (version, told) in [
        ("v1.31.9", false),
        ("v1.32.0", true),
        ("v1.34.4+k3s1", true),
    ] {
        for denied in [false, true] {
            let bed = Bed::new();
            let options = Options::new(bed.upstream.clone())
                .clients(ClientAuth::Accept(&bed.front_proxy_ca))
                .alpn(&["h2", "http/1.1"]);
            let upstream = ApiServer::start(options, move |seen| match seen.path() {
                // Where the anonymous may not know, the bridge asks by name.
                "/version" if denied && seen.client.is_none() => Reply::new(401),
                "/version" => Reply::json(format!(r#"{{"gitVersion":"{version}"}}"#)),
                _ => Reply::json("{}"),
            })
            .await;
            let bridge = bed.bridge(upstream.addr());
            let alice = bed.client_ca.client("alice", &[]);
            let client = bed.client().identity(&alice);
            let name = "x-remote-extra-authentication.kubernetes.io%2fcredential-id";
            let ask = async || {
                let mut h1 = client.http1(bridge.address()).await.unwrap();
                h1.send("GET /asked HTTP/1.1\r\nHost: k\r\n\r\n")
                    .await
                    .unwrap();
                h1.read_response().await.unwrap();
                let seen = upstream.requests();
                let seen = seen.iter().rfind(|seen| seen.path() == "/asked").unwrap();
                seen.header(name).map(str::to_owned)
            };
            eventually("the version is known", PATIENCE, async || {
                let asked = upstream.requests();
                let mut asked = asked.iter().filter(|seen| seen.path() == "/version");
                asked.any(|seen| !denied || seen.client.is_some())
            })
            .await;
            if told {
                eventually("the certificate is named", PATIENCE, async || {
                    ask().await.is_some()
                })
                .await;
            }
            let id = ask().await;
            assert_eq!(id.is_some(), told, "{version}");
            assert!(id.is_none_or(|id| id.len() == 75 && id.starts_with("X509SHA256=")));
        }
    }
}
