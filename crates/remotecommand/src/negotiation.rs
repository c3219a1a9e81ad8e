//! Negotiation of the subprotocol.

use crate::protocol::{Protocol, SpdyProtocol};

/// Which server answers a WebSocket request for a remote command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerKind {
    /// kube-apiserver from 1.30 on, which translates itself: version 5, if it is offered.
    Translator,
    /// A container runtime behind a kubelet and a kube-apiserver that relay the connection:
    /// versions 1 and 4, and requests without an offer. Everything else is answered with 403.
    Runtime,
    /// A bridge, which supports all versions.
    Bridge,
}

/// The result of a negotiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegotiatedProtocol {
    /// The protocol of the connection.
    pub protocol: Protocol,
    /// The offer to confirm in the response; `None` if the request had no offer.
    pub header: Option<&'static str>,
}

/// Takes the first offer that the server supports: the client's order counts.
///
/// Kubernetes reads only the first of several headers, and treats an empty list member as an
/// offer of the unnamed protocol. Here the list is parsed as RFC 6455 defines it.
pub fn negotiate<'a>(
    server: ServerKind,
    offers: impl IntoIterator<Item = &'a str>,
) -> Option<NegotiatedProtocol> {
    let mut offers = offers.into_iter().peekable();
    if offers.peek().is_none() {
        return (server != ServerKind::Translator).then_some(NegotiatedProtocol {
            protocol: Protocol::V1,
            header: None,
        });
    }
    let protocol = offers
        .filter_map(Protocol::from_name)
        .find(|protocol| server.supports(*protocol))?;
    Some(NegotiatedProtocol {
        protocol,
        header: Some(protocol.name()),
    })
}

impl ServerKind {
    fn supports(self, protocol: Protocol) -> bool {
        match self {
            Self::Translator => protocol == Protocol::V5,
            Self::Runtime => matches!(
                protocol,
                Protocol::V1 | Protocol::V1_BASE64 | Protocol::V4 | Protocol::V4_BASE64
            ),
            Self::Bridge => true,
        }
    }
}

/// Why an upgrade to SPDY is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpdyNegotiationError {
    /// 400: `X-Stream-Protocol-Version` is missing or empty.
    #[error("no stream protocol version is offered")]
    NoOffer,
    /// 403, with the supported versions in `X-Accepted-Stream-Protocol-Versions`.
    #[error("none of the offered stream protocol versions is supported")]
    NoneSupported,
}

/// What an SPDY client offers in `X-Stream-Protocol-Version`, each in a header of its own.
pub fn spdy_offers() -> impl Iterator<Item = &'static str> {
    SpdyProtocol::ALL.into_iter().map(SpdyProtocol::name)
}

/// Takes the first supported offer from the values of all headers `X-Stream-Protocol-Version`,
/// each of which may be a list.
pub fn negotiate_spdy<'a>(
    values: impl IntoIterator<Item = &'a str>,
) -> Result<SpdyProtocol, SpdyNegotiationError> {
    let mut offers = values
        .into_iter()
        .flat_map(|value| value.split(','))
        .map(|offer| offer.trim_matches(' '))
        .filter(|offer| !offer.is_empty())
        .peekable();
    if offers.peek().is_none() {
        return Err(SpdyNegotiationError::NoOffer);
    }
    offers
        .find_map(SpdyProtocol::from_name)
        .ok_or(SpdyNegotiationError::NoneSupported)
}

/// The protocol that a server confirmed in its 101. A response without the header means
/// version 1; `None` is an unknown version.
pub fn spdy_protocol_from_response(value: Option<&str>) -> Option<SpdyProtocol> {
    match value.map(str::trim) {
        None | Some("") => Some(SpdyProtocol::V1),
        Some(name) => SpdyProtocol::from_name(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_supported_offer_is_taken() {
        use ServerKind::{Bridge, Runtime, Translator};
        type Row<'a> = (ServerKind, &'a [&'a str], Option<Option<&'a str>>);

        const V1: &str = "channel.k8s.io";
        const V1_TEXT: &str = "base64.channel.k8s.io";
        const V3: &str = "v3.channel.k8s.io";
        const V4: &str = "v4.channel.k8s.io";
        const V4_TEXT: &str = "v4.base64.channel.k8s.io";
        const V5: &str = "v5.channel.k8s.io";
        let token = "base64url.bearer.authorization.k8s.io.dDBrZW4";

        let rows: &[Row<'_>] = &[
            (Translator, &[V5], Some(Some(V5))),
            (Translator, &[V4, V5, V1], Some(Some(V5))),
            (Translator, &[V4], None),
            (Translator, &[], None),
            (Runtime, &[V5], None),
            (Runtime, &[V5, V4, V1], Some(Some(V4))),
            (Runtime, &[V1, V4], Some(Some(V1))),
            (Runtime, &[V4_TEXT, V1], Some(Some(V4_TEXT))),
            (Runtime, &[V1_TEXT], Some(Some(V1_TEXT))),
            (Runtime, &[V3], None),
            (Runtime, &["v1.channel.k8s.io"], None),
            (Runtime, &[], Some(None)),
            (Runtime, &["x"], None),
            (Bridge, &[V4, V5], Some(Some(V4))),
            (Bridge, &[V3], Some(Some(V3))),
            (Bridge, &[token, V5], Some(Some(V5))),
            (Bridge, &[token], None),
            (Bridge, &[], Some(None)),
        ];
        for (server, offers, header) in rows {
            let got = negotiate(*server, offers.iter().copied());
            assert_eq!(got.map(|it| it.header), *header, "{server:?} {offers:?}");
        }
        let unnamed = negotiate(Runtime, []).unwrap();
        assert_eq!(unnamed.protocol, Protocol::V1);
    }

    #[test]
    fn spdy_negotiation_matches_kubelets() {
        let rows: &[(&[&str], Result<SpdyProtocol, SpdyNegotiationError>)] = &[
            (&[], Err(SpdyNegotiationError::NoOffer)),
            (&["", " , "], Err(SpdyNegotiationError::NoOffer)),
            (
                &["v5.channel.k8s.io"],
                Err(SpdyNegotiationError::NoneSupported),
            ),
            (
                &["v4.channel.k8s.io", "channel.k8s.io"],
                Ok(SpdyProtocol::V4),
            ),
            (
                &["v2.channel.k8s.io, v4.channel.k8s.io"],
                Ok(SpdyProtocol::V2),
            ),
            (&["x", "channel.k8s.io"], Ok(SpdyProtocol::V1)),
        ];
        for (values, expected) in rows {
            assert_eq!(
                negotiate_spdy(values.iter().copied()),
                *expected,
                "{values:?}"
            );
        }
        assert_eq!(negotiate_spdy(spdy_offers()), Ok(SpdyProtocol::V4));
        assert_eq!(spdy_protocol_from_response(None), Some(SpdyProtocol::V1));
        assert_eq!(
            spdy_protocol_from_response(Some("v3.channel.k8s.io")),
            Some(SpdyProtocol::V3)
        );
        assert_eq!(spdy_protocol_from_response(Some("v6.channel.k8s.io")), None);
    }
}
