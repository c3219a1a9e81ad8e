use skewbridge_k8s_api::request_info::DecodedPath;

use skewbridge_k8s_api::request_info::RequestInfo;

use super::*;

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";
const TEXT: &str = "base64.channel.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";

fn headers(text: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in text.lines() {
        let (name, value) = line.trim().split_once(": ").unwrap();
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, value.parse().unwrap());
    }
    headers
}

fn websocket(offers: &[&str]) -> UpgradeRequest {
    upgrade_request(offers).unwrap()
}

fn upgrade_request(offers: &[&str]) -> Option<UpgradeRequest> {
    let text = "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\n\
                Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    let mut headers = headers(text);
    if !offers.is_empty() {
        let offers = offers.join(", ").parse().unwrap();
        headers.insert("sec-websocket-protocol", offers);
    }
    UpgradeRequest::parse(&Method::GET, &headers)
}

fn spdy() -> UpgradeRequest {
    let text =
        "Connection: Upgrade\nUpgrade: SPDY/3.1\nX-Stream-Protocol-Version: v4.channel.k8s.io";
    UpgradeRequest::parse(&Method::POST, &headers(text)).unwrap()
}

fn version(minor: u16) -> UpstreamCaps {
    UpstreamCaps {
        version: Some(Version {
            major: 1,
            minor,
            patch: 0,
        }),
        ..UpstreamCaps::default()
    }
}

const RULES: TranslationRules = TranslationRules {
    translate: TranslateStreams::Auto,
    upstream: UpstreamStreams::Any,
    commands: true,
    port_forward: true,
};

/// The name of a plan.
fn plan_name(plan: &TranslationPlan) -> &'static str {
    match plan {
        TranslationPlan::Tunnel => "as it is",
        TranslationPlan::TunnelOrSpdy(_) => "or",
        TranslationPlan::Translate(_) => "translated",
    }
}

fn planned(
    kind: StreamKind,
    switch: &UpgradeRequest,
    rules: TranslationRules,
    known: UpstreamCaps,
) -> &'static str {
    plan_name(&plan(kind, switch.clone(), rules, known))
}

#[test]
fn auto_translates_only_streams_that_the_server_does_not_translate() {
    use StreamKind::{Attach, Exec, PortForward};
    type Row<'a> = (StreamKind, &'a [&'a str], UpstreamCaps, &'a str);

    let refused = |minor, protocol| UpstreamCaps {
        refused: RefusedProtocols::from_iter([protocol]),
        ..version(minor)
    };
    let command = |name| StreamProtocol::Command(Protocol::from_name(name).unwrap());
    let unknown = UpstreamCaps::default();
    let rows: &[Row<'_>] = &[
        (Exec, &[V5], version(28), "translated"),
        (Exec, &[V5], version(29), "translated"),
        (Exec, &[V5], version(30), "or"),
        (Exec, &[V5], version(36), "or"),
        (Exec, &[V5], refused(36, command(V5)), "translated"),
        (Exec, &[V5], unknown, "translated"),
        (Attach, &[V5], version(29), "translated"),
        (Attach, &[V5], version(30), "or"),
        // Servers of all versions relay it to the node.
        (Exec, &[V4], version(28), "or"),
        (Exec, &[TEXT], version(36), "or"),
        (Exec, &[], version(28), "or"),
        (Exec, &[V4], refused(36, command(V4)), "translated"),
        // A refusal does not concern other protocols.
        (Exec, &[V4], refused(36, command(V5)), "or"),
        (Exec, &[V5], refused(36, command(V4)), "or"),
        (Exec, &[V4], refused(28, command(TEXT)), "or"),
        (Exec, &[TEXT], refused(28, command(V4)), "or"),
        (Exec, &[V5], refused(36, StreamProtocol::PortForward), "or"),
        (Exec, &["x"], version(28), "as it is"),
        (PortForward, &[TUNNEL], version(30), "translated"),
        (PortForward, &[TUNNEL], version(31), "or"),
        (
            PortForward,
            &[TUNNEL],
            refused(31, StreamProtocol::PortForward),
            "translated",
        ),
        (PortForward, &[TUNNEL], refused(31, command(V5)), "or"),
        (PortForward, &[V4], version(28), "as it is"),
        (
            PortForward,
            &[],
            refused(28, StreamProtocol::PortForward),
            "as it is",
        ),
    ];
    for (kind, offers, known, expected) in rows {
        let got = planned(*kind, &websocket(offers), RULES, *known);
        assert_eq!(got, *expected, "{kind:?} {offers:?} {known:?}");
    }
}

#[test]
fn always_and_never_apply_unless_a_gate_disables_translation() {
    use TranslateStreams::{Always, Auto, Never};

    let rules = |translate, on| TranslationRules {
        translate,
        commands: on,
        port_forward: on,
        ..RULES
    };
    for (kind, offer) in [
        (StreamKind::Exec, V5),
        (StreamKind::Attach, V4),
        (StreamKind::PortForward, TUNNEL),
    ] {
        let switch = websocket(&[offer]);
        for known in [UpstreamCaps::default(), version(28), version(36)] {
            let plan = |translate, on| planned(kind, &switch, rules(translate, on), known);
            assert_eq!(plan(Always, true), "translated");
            assert_eq!(plan(Never, true), "as it is");
            for translate in [Always, Auto, Never] {
                assert_eq!(plan(translate, false), "as it is");
            }
        }
    }
    let one = TranslationRules {
        port_forward: false,
        ..rules(Always, true)
    };
    let exec = planned(StreamKind::Exec, &websocket(&[V5]), one, version(28));
    assert_eq!(exec, "translated");
    let forward = planned(
        StreamKind::PortForward,
        &websocket(&[TUNNEL]),
        one,
        version(28),
    );
    assert_eq!(forward, "as it is");
}

#[test]
fn a_websocket_only_upstream_gets_only_websockets() {
    let narrow = TranslationRules {
        upstream: UpstreamStreams::WebSocket,
        ..RULES
    };
    for known in [version(28), version(36), UpstreamCaps::default()] {
        for kind in [
            StreamKind::Exec,
            StreamKind::Attach,
            StreamKind::PortForward,
        ] {
            assert_eq!(planned(kind, &spdy(), RULES, known), "as it is");
            assert_eq!(planned(kind, &spdy(), narrow, known), "translated");
            for offer in [V5, V4, TUNNEL] {
                let plan = planned(kind, &websocket(&[offer]), narrow, known);
                assert_eq!(plan, "as it is");
            }
        }
    }
}

#[test]
fn version_5_is_used_if_it_is_offered() {
    let plan = plan(
        StreamKind::Exec,
        websocket(&[V4, V5]),
        RULES,
        UpstreamCaps::default(),
    );
    let TranslationPlan::Translate(Translation::ToSpdy(ToSpdy { stream, .. })) = plan else {
        panic!("{plan:?}");
    };
    let agreement = negotiate(ServerKind::Translator, [V5]).unwrap();
    assert_eq!(stream, WebSocketStream::Command(agreement));
}

#[test]
fn streams_are_recognised_by_their_paths() {
    let rows = [
        ("/api/v1/namespaces/n/pods/p/exec", Some(StreamKind::Exec)),
        (
            "/api/v1/namespaces/n/pods/p/attach",
            Some(StreamKind::Attach),
        ),
        (
            "/api/v1/namespaces/n/pods/p/portforward",
            Some(StreamKind::PortForward),
        ),
        ("/api/v1/namespaces/n/pods/p/log", None),
        ("/api/v1/namespaces/n/pods/p", None),
        ("/api/v1/namespaces/n/services/p/exec", None),
        ("/apis/x.io/v1/namespaces/n/pods/p/exec", None),
        ("/api/v1/namespaces/n/pods/p/proxy/exec", None),
        ("/exec", None),
    ];
    for (path, expected) in rows {
        let path = DecodedPath::new(path).unwrap();
        let info = RequestInfo::parse(&Method::GET, &path, None);
        assert_eq!(StreamKind::of(&info), expected, "{path:?}");
    }
}

#[test]
fn a_browser_token_is_extracted_and_is_no_offer() {
    let offer = |text: &str| format!("{TOKEN_PREFIX}{}", BASE64_URL_SAFE_NO_PAD.encode(text));
    let token = |offers: &[&str]| match websocket(offers) {
        UpgradeRequest::WebSocket { offers, token, .. } => (
            offers,
            token.map(|token| token.to_str().unwrap().to_owned()),
        ),
        UpgradeRequest::Spdy { .. } => panic!(),
    };
    let (offers, found) = token(&[&offer("t"), V4]);
    assert_eq!(
        (offers, found.as_deref()),
        (vec![V4.to_owned()], Some("Bearer t"))
    );
    assert_eq!(token(&[V4]).1, None);
    // Upstream answers everything else.
    for bad in [
        &[&*offer("a"), &offer("b"), V4][..],
        &[&format!("{TOKEN_PREFIX}*"), V4],
        &[&offer("a\nb"), V4],
        &[&offer(""), V4],
    ] {
        assert!(upgrade_request(bad).is_none(), "{bad:?}");
    }
}

#[test]
fn other_upgrade_requests_are_ignored() {
    let read = |method, text| UpgradeRequest::parse(&method, &headers(text)).is_some();
    assert!(!read(Method::GET, "Upgrade: h2c\nConnection: Upgrade"));
    assert!(!read(
        Method::GET,
        "Upgrade: websocket\nConnection: Upgrade"
    ));
    assert!(!read(Method::POST, "Upgrade: SPDY/3.1"));
    assert!(!read(Method::GET, "Connection: Upgrade"));
    let spdy = "Upgrade: spdy/3.1\nConnection: upgrade";
    assert!(read(Method::POST, spdy) && read(Method::GET, spdy));
    assert!(!read(Method::DELETE, spdy));
}
