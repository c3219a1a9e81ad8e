//! Hop-by-hop headers, and headers that record previous hops.

use std::fmt::Write as _;
use std::net::IpAddr;

use http::header::{
    CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue, Version};

use crate::identity::{IdentityHeaders, has_prefix, same_name};

/// Headers with which a peer marks a request as already forwarded: the name that
/// kube-apiserver sends, and the name in KEP-4020.
pub const PEER_HOP_HEADERS: [&str; 2] = [
    "x-kubernetes-peer-proxied",
    "x-kubernetes-apiserver-rerouted",
];

/// The header with which a bridge marks a request that it sends to a peer, as kube-apiserver
/// does.
pub const PEER_PROXIED: HeaderName = HeaderName::from_static(PEER_HOP_HEADERS[0]);

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Removes hop-by-hop headers (RFC 9110, 7.6.1): everything that `Connection` lists, and
/// the fixed set. `TE: trailers` is kept because the proxy forwards trailers; `Trailer`,
/// which announces them, is kept.
pub fn remove_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        for name in listed_in_connection(headers) {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    let trailers = headers.contains_key(TE)
        && headers
            .get_all(TE)
            .iter()
            .flat_map(tokens)
            .any(|token| token.eq_ignore_ascii_case(b"trailers"));
    for name in [
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        HTTP2_SETTINGS,
    ] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Headers that `Connection` must not list: credentials, identities, framing, the origin of
/// the request and its signatures. Without one of them the request would have another
/// meaning, for example a request in the name of the proxy itself if `Impersonate-User` is
/// removed.
const PROTECTED: [&str; 7] = [
    "authorization",
    "cookie",
    "forwarded",
    "host",
    "via",
    PEER_HOP_HEADERS[0],
    PEER_HOP_HEADERS[1],
];

/// Prefixes of further protected headers. `Sec-WebSocket-Protocol` can carry a bearer token.
const PROTECTED_PREFIXES: [&str; 7] = [
    "content-",
    "impersonate-",
    "sec-websocket-",
    "signature",
    "x-forwarded-",
    "x-remote-",
    "x-skewbridge-",
];

/// The first protected header that `Connection` lists. Such a request has to be rejected
/// because the next hop would interpret it differently.
pub fn protected_header_in_connection(
    headers: &HeaderMap,
    identity: &IdentityHeaders,
) -> Option<HeaderName> {
    let mut listed = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(tokens)
        .filter_map(|token| HeaderName::from_bytes(token).ok());
    listed.find(|listed| {
        let name = listed.as_str();
        PROTECTED.iter().any(|it| same_name(name, it))
            || (PROTECTED_PREFIXES.iter()).any(|prefix| has_prefix(name, prefix))
            || identity.is_identity_header(listed)
    })
}

fn listed_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(tokens)
        .filter_map(|token| HeaderName::from_bytes(token).ok())
        // The sender must not remove Host, which identifies the target of the request.
        .filter(|name| *name != HOST)
        .collect()
}

fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value
        .as_bytes()
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
}

/// The protocol to which an HTTP/1.1 client requests an upgrade.
pub fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(tokens)
        .any(|token| token.eq_ignore_ascii_case(b"upgrade"))
        .then(|| protocol.clone())
}

/// Whether a peer has marked the request as forwarded. The mark is only valid from an
/// authenticated peer.
pub fn has_peer_hop(headers: &HeaderMap) -> bool {
    PEER_HOP_HEADERS.iter().any(|name| {
        let mut values = headers.get_all(*name).iter();
        values.any(|value| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"true"))
    })
}

/// Removes the headers that only a peer may set, in any spelling.
pub fn remove_peer_hop_headers(headers: &mut HeaderMap) {
    let names: Vec<_> = headers
        .keys()
        .filter(|name| {
            PEER_HOP_HEADERS
                .iter()
                .any(|hop| same_name(name.as_str(), hop))
        })
        .cloned()
        .collect();
    for name in names {
        headers.remove(name);
    }
}

/// The maximum length of `X-Forwarded-For` from previous hops: about 100 IPv6 addresses.
pub const MAX_FORWARDED_FOR_BYTES: usize = 4 * 1024;

/// Whether the hops in a client's `X-Forwarded-For` were kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardedFor {
    /// All hops were kept.
    All,
    /// The oldest hops were dropped.
    Shortened,
}

/// Sets the `X-Forwarded-*` headers: client address, host and scheme. Addresses of previous
/// hops stay in front, as with other proxies: kube-apiserver writes all of them into its
/// audit log. Beyond [`MAX_FORWARDED_FOR_BYTES`] the oldest hops are dropped, because those
/// are the ones a client can forge.
pub fn set_forwarded_headers(headers: &mut HeaderMap, client: IpAddr) -> ForwardedFor {
    let mut hops = ForwardedFor::All;
    let mut newest = Vec::new();
    let mut room = MAX_FORWARDED_FOR_BYTES;
    let values = headers.get_all(&FORWARDED_FOR).iter().rev();
    for text in values.filter_map(|value| value.to_str().ok()) {
        if let Some(left) = room.checked_sub(text.len()) {
            newest.push(text);
            room = left;
            continue;
        }
        let tail = &text[text.len() - room..];
        newest.extend(tail.split_once(',').map(|(_, hops)| hops.trim_start()));
        hops = ForwardedFor::Shortened;
        break;
    }
    let mut chain = String::new();
    for value in newest.iter().rev() {
        chain.push_str(value);
        chain.push_str(", ");
    }
    // Writing to a String cannot fail, and the parts were valid header values.
    let _ = write!(chain, "{client}");
    if let Ok(value) = HeaderValue::try_from(chain) {
        headers.insert(FORWARDED_FOR, value);
    }
    if let Some(host) = headers.get(HOST).cloned() {
        headers.insert(FORWARDED_HOST, host);
    }
    headers.insert(FORWARDED_PROTO, HeaderValue::from_static("https"));
    hops
}

/// How the pseudonym of every bridge begins.
const BRIDGE_PSEUDONYM_PREFIX: &[u8] = b"skewbridge-";

/// Whether a bridge has forwarded the request. Clients can forge `Via`: the answer is only valid for
/// requests of an authenticated peer or front proxy.
pub fn has_passed_bridge(headers: &HeaderMap) -> bool {
    pseudonyms(headers).any(|by| by.starts_with(BRIDGE_PSEUDONYM_PREFIX))
}

/// The proxies that have forwarded the request.
fn pseudonyms(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let hops = headers.get_all(VIA).iter().flat_map(tokens);
    hops.filter_map(|hop| hop.split(u8::is_ascii_whitespace).nth(1))
}

/// The `Via` entry with which a bridge marks requests, to detect its own (RFC 9110, 7.6.3).
#[derive(Debug, Clone)]
pub struct ViaToken {
    number: u64,
    pseudonym: String,
    h1: HeaderValue,
    h2: HeaderValue,
}

impl ViaToken {
    /// Creates a token that is unique among bridges.
    pub fn new(random: u64) -> Self {
        let pseudonym = format!("skewbridge-{random:016x}");
        let value = |version: &str| {
            // Letters, digits and dashes are valid in a header value.
            HeaderValue::try_from(format!("{version} {pseudonym}"))
                .unwrap_or_else(|_| HeaderValue::from_static("skewbridge"))
        };
        Self {
            h1: value("1.1"),
            h2: value("2"),
            number: random,
            pseudonym,
        }
    }

    /// The random number that makes the token unique.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Marks a request that was received with this HTTP version.
    pub fn add(&self, headers: &mut HeaderMap, received: Version) {
        let value = if received == Version::HTTP_2 {
            &self.h2
        } else {
            &self.h1
        };
        headers.append(VIA, value.clone());
    }

    /// Whether the request carries this token.
    pub fn is_present(&self, headers: &HeaderMap) -> bool {
        pseudonyms(headers).any(|by| by == self.pseudonym.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::identity::{IdentityHeaders, User};

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        map
    }

    fn names(map: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = map.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn headers_listed_in_connection_are_removed() {
        let mut map = headers(&[
            ("Connection", "x-a, X-B"),
            ("connection", " keep-alive ,,x-c"),
            ("x-a", "1"),
            ("x-b", "1"),
            ("x-c", "1"),
            ("x-d", "kept"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "x"),
            ("upgrade", "x"),
            ("transfer-encoding", "chunked"),
            ("trailer", "kept"),
        ]);
        remove_hop_by_hop(&mut map);
        assert_eq!(names(&map), ["trailer", "x-d"]);
    }

    #[test]
    fn connection_cannot_list_end_to_end_headers() {
        let configured = IdentityHeaders {
            username: vec![HeaderName::from_static("x-user")],
            extra_prefix: vec!["x-more-".to_owned()],
            ..IdentityHeaders::default()
        };
        let rows: [(&[&str], Option<&str>); 34] = [
            (&[], None),
            (&["close"], None),
            (&["keep-alive, Upgrade"], None),
            (&["Upgrade, HTTP2-Settings"], None),
            (&["TE, Trailer, Transfer-Encoding"], None),
            (&["X-Custom"], None),
            (&["keep-alive", "", ",,"], None),
            (&["impersonate"], None),
            (&["Authorization"], Some("authorization")),
            (&["AUTHORIZATION"], Some("authorization")),
            (&["  authorization\t"], Some("authorization")),
            (&["keep-alive,authorization"], Some("authorization")),
            (
                &["keep-alive", "close , Authorization"],
                Some("authorization"),
            ),
            (&["Impersonate-User"], Some("impersonate-user")),
            (&["impersonate-group"], Some("impersonate-group")),
            (
                &["Impersonate-Extra-scopes"],
                Some("impersonate-extra-scopes"),
            ),
            (&["impersonate_user"], Some("impersonate_user")),
            (&["X-Remote-User"], Some("x-remote-user")),
            (&["x-remote-extra-a"], Some("x-remote-extra-a")),
            (&["X-User"], Some("x-user")),
            (&["X-More-Scopes"], Some("x-more-scopes")),
            (&["X-Forwarded-For"], Some("x-forwarded-for")),
            (&["Forwarded"], Some("forwarded")),
            (&["Signature"], Some("signature")),
            (&["Signature-Input"], Some("signature-input")),
            (&["Content-Length"], Some("content-length")),
            (&["content-digest"], Some("content-digest")),
            (&["Content-Type"], Some("content-type")),
            (&["Host"], Some("host")),
            (&["Cookie"], Some("cookie")),
            (&["Via"], Some("via")),
            (
                &["x-kubernetes-peer-proxied"],
                Some("x-kubernetes-peer-proxied"),
            ),
            (&["Sec-WebSocket-Protocol"], Some("sec-websocket-protocol")),
            (
                &["x-skewbridge-not-processed"],
                Some("x-skewbridge-not-processed"),
            ),
        ];
        for (values, expected) in rows {
            let fields: Vec<_> = values.iter().map(|value| ("Connection", *value)).collect();
            let found = protected_header_in_connection(&headers(&fields), &configured);
            assert_eq!(
                found.as_ref().map(HeaderName::as_str),
                expected,
                "{values:?}"
            );
        }
    }

    #[test]
    fn connection_cannot_remove_host() {
        let mut map = headers(&[("connection", "host"), ("host", "k")]);
        remove_hop_by_hop(&mut map);
        assert_eq!(map["host"], "k");
    }

    #[test]
    fn te_keeps_trailers_and_no_other_coding() {
        let mut map = headers(&[("te", "gzip, trailers")]);
        remove_hop_by_hop(&mut map);
        assert_eq!(map["te"], "trailers");
        let mut map = headers(&[("te", "gzip")]);
        remove_hop_by_hop(&mut map);
        assert!(map.is_empty());
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        let both = headers(&[
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "SPDY/3.1"),
        ]);
        assert_eq!(requested_upgrade(&both).unwrap(), "SPDY/3.1");
        assert!(requested_upgrade(&headers(&[("upgrade", "websocket")])).is_none());
        assert!(requested_upgrade(&headers(&[("connection", "upgrade")])).is_none());
    }

    #[test]
    fn peer_hop_headers_are_removed_in_any_spelling() {
        let mut map = headers(&[
            ("X-Kubernetes-Peer-Proxied", "true"),
            ("x_kubernetes_peer_proxied", "true"),
            ("X-Kubernetes-APIServer-Rerouted", "true"),
            ("x-kubernetes-pf-flowschema-uid", "kept"),
        ]);
        remove_peer_hop_headers(&mut map);
        assert_eq!(names(&map), ["x-kubernetes-pf-flowschema-uid"]);
    }

    #[test]
    fn previous_hops_stay_in_front() {
        let mut map = headers(&[
            ("host", "k:6443"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-forwarded-for", "2.2.2.2, 3.3.3.3"),
            ("x-forwarded-proto", "http"),
        ]);
        set_forwarded_headers(&mut map, "::1".parse().unwrap());
        let chain: Vec<_> = map.get_all("x-forwarded-for").iter().collect();
        assert_eq!(chain, ["1.1.1.1, 2.2.2.2, 3.3.3.3, ::1"]);
        assert_eq!(map["x-forwarded-host"], "k:6443");
        assert_eq!(map["x-forwarded-proto"], "https");
    }

    #[test]
    fn the_newest_of_too_many_hops_are_kept() {
        let flood = "192.0.2.1, ".repeat(100_000);
        let mut map = headers(&[
            ("x-forwarded-for", &flood[..flood.len() - 2]),
            ("x-forwarded-for", "198.51.100.7"),
        ]);
        set_forwarded_headers(&mut map, "::1".parse().unwrap());
        let chain: Vec<_> = map.get_all("x-forwarded-for").iter().collect();
        assert_eq!(chain.len(), 1);
        let chain = chain[0].to_str().unwrap();
        assert!(chain.len() <= MAX_FORWARDED_FOR_BYTES + "198.51.100.7, ::1".len());
        assert!(chain.len() > MAX_FORWARDED_FOR_BYTES - 50);
        assert!(chain.starts_with("192.0.2.1, 192.0.2.1, "), "{chain}");
        assert!(chain.ends_with("192.0.2.1, 198.51.100.7, ::1"), "{chain}");
        // One value that exceeds the limit on its own and contains no separator.
        let mut map = headers(&[("x-forwarded-for", &"x".repeat(1 << 20))]);
        set_forwarded_headers(&mut map, "::1".parse().unwrap());
        assert_eq!(map["x-forwarded-for"], "::1");
    }

    #[test]
    fn a_bridge_detects_only_its_own_via_token() {
        let (mine, other) = (ViaToken::new(1), ViaToken::new(2));
        let mut map = headers(&[("via", "1.1 proxy, 1.0 fred (x)")]);
        mine.add(&mut map, Version::HTTP_2);
        assert!(mine.is_present(&map));
        assert!(!other.is_present(&map));
        assert!(!mine.is_present(&headers(&[("via", "skewbridge-0000000000000001")])));
    }

    #[test]
    fn every_bridge_is_detected_by_its_via_token() {
        for (via, expected) in [
            (None, false),
            (Some("1.1 proxy, 1.0 fred (x)"), false),
            (Some("1.1 proxy, 2 skewbridge-00000000000000aa"), true),
            (Some("1.1 skewbridge"), false),
            (Some("skewbridge-00000000000000aa"), false),
        ] {
            let fields: Vec<_> = via.iter().map(|value| ("via", *value)).collect();
            assert_eq!(has_passed_bridge(&headers(&fields)), expected, "{via:?}");
        }
        let mut map = HeaderMap::new();
        ViaToken::new(7).add(&mut map, Version::HTTP_11);
        assert!(has_passed_bridge(&map));
    }

    /// Header names that an attacker might send.
    fn hostile_name() -> impl Strategy<Value = String> {
        prop_oneof![
            prop::sample::select(vec![
                "x-remote-user",
                "X-Remote-User",
                "x_remote_user",
                "X_REMOTE-Group",
                "x-remote-extra-scopes",
                "x-remote-uid",
                "connection",
                "keep-alive",
                "te",
                "upgrade",
                "x-kubernetes-peer-proxied",
                "X-Kubernetes-APIServer-Rerouted",
                "authorization",
                "host",
                "accept",
                "x-other",
            ])
            .prop_map(str::to_owned),
            "[a-zA-Z_-]{1,16}",
        ]
    }

    fn nasty_field() -> impl Strategy<Value = (String, String)> {
        let value = prop_oneof![
            "[ -~]{0,20}",
            prop::collection::vec(hostile_name(), 0..4).prop_map(|names| names.join(", ")),
        ];
        (hostile_name(), value)
    }

    proptest! {
        #[test]
        fn only_the_proven_identity_passes(
            fields in prop::collection::vec(nasty_field(), 0..24),
        ) {
            let mut map = HeaderMap::new();
            for (name, value) in &fields {
                map.append(
                    HeaderName::from_bytes(name.as_bytes()).unwrap(),
                    HeaderValue::from_str(value).unwrap(),
                );
            }
            let before = map.clone();
            let user = User {
                name: "alice".to_owned(),
                groups: vec!["dev".to_owned()],
                ..User::default()
            };
            let names = IdentityHeaders::default();
            remove_hop_by_hop(&mut map);
            names.remove(&mut map);
            remove_peer_hop_headers(&mut map);
            names.write(&mut map, &user).unwrap();

            let listed: Vec<_> = listed_in_connection(&before);
            for name in map.keys() {
                let plain = name.as_str().replace('_', "-");
                if plain.starts_with("x-remote-") {
                    prop_assert!(name == "x-remote-user" || name == "x-remote-group", "{name}");
                    continue;
                }
                prop_assert!(!PEER_HOP_HEADERS.contains(&&*plain), "{name}");
                prop_assert!(name != CONNECTION && name != UPGRADE && name != KEEP_ALIVE, "{name}");
                if name == TE {
                    continue;
                }
                prop_assert!(!listed.contains(name), "{name} was listed in Connection");
                let kept: Vec<_> = map.get_all(name).iter().collect();
                let came: Vec<_> = before.get_all(name).iter().collect();
                prop_assert_eq!(kept, came);
            }
            prop_assert_eq!(map.get_all("x-remote-user").iter().collect::<Vec<_>>(), ["alice"]);
            prop_assert_eq!(map.get_all("x-remote-group").iter().collect::<Vec<_>>(), ["dev"]);
        }
    }
}
