//! Which streams are translated, and how: a pure function of the request, the configuration
//! and the capabilities of the upstream server.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::UPGRADE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use skewbridge_k8s_api::version::Version;
use skewbridge_remotecommand::{NegotiatedProtocol, Protocol, ServerKind, negotiate, port_forward};
use skewbridge_websocket as websocket;

use super::refusal_cache::{RefusedProtocols, StreamProtocol};
use crate::config::{TranslateStreams, UpstreamStreams};
use crate::stream_kind::StreamKind;

/// The header with the offered SPDY protocols, and with the accepted one.
pub(crate) const STREAM_PROTOCOL_HEADER: HeaderName =
    HeaderName::from_static("x-stream-protocol-version");

/// The upgrade token of SPDY.
pub(crate) const SPDY_UPGRADE: &str = "SPDY/3.1";

/// Browsers cannot set headers on a WebSocket: their token is a subprotocol offer.
const TOKEN_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// The protocol that a client requests to switch to.
#[derive(Debug, Clone)]
pub(crate) enum UpgradeRequest {
    WebSocket {
        request: websocket::Request,
        offers: Vec<String>,
        /// The bearer token of a browser.
        token: Option<HeaderValue>,
    },
    Spdy {
        offers: Vec<String>,
    },
}

impl UpgradeRequest {
    /// Parsed while the hop-by-hop headers are still there. Invalid requests are left for
    /// upstream to answer.
    pub(crate) fn parse(method: &Method, headers: &HeaderMap) -> Option<Self> {
        let upgrade = headers.get(UPGRADE)?;
        if upgrade
            .as_bytes()
            .eq_ignore_ascii_case(SPDY_UPGRADE.as_bytes())
        {
            skewbridge_k8s_api::forwarding_headers::requested_upgrade(headers)?;
            if !matches!(*method, Method::POST | Method::GET) {
                return None;
            }
            let values = headers.get_all(STREAM_PROTOCOL_HEADER).into_iter();
            let offers = values.filter_map(|value| value.to_str().ok());
            return Some(Self::Spdy {
                offers: offers.map(str::to_owned).collect(),
            });
        }
        let request = websocket::parse_upgrade_request(method, headers).ok()?;
        let token = token(headers).ok()?;
        let offers =
            websocket::subprotocols(headers).filter(|offer| !offer.starts_with(TOKEN_PREFIX));
        Some(Self::WebSocket {
            request,
            offers: offers.map(str::to_owned).collect(),
            token,
        })
    }

    /// The metric label.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::WebSocket { .. } => "websocket",
            Self::Spdy { .. } => "spdy",
        }
    }
}

/// Several tokens, or an invalid one: upstream answers that.
struct BadToken;

/// The token that upstream would find in the offers, if any.
fn token(headers: &HeaderMap) -> Result<Option<HeaderValue>, BadToken> {
    let mut tokens =
        websocket::subprotocols(headers).filter_map(|offer| offer.strip_prefix(TOKEN_PREFIX));
    let Some(encoded) = tokens.next() else {
        return Ok(None);
    };
    let token = BASE64_URL_SAFE_NO_PAD.decode(encoded);
    let token = token.map_err(|_| BadToken)?;
    if tokens.next().is_some() || token.is_empty() {
        return Err(BadToken);
    }
    let value = HeaderValue::from_bytes(&[b"Bearer ", &token[..]].concat());
    let mut value = value.map_err(|_| BadToken)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// The configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TranslationRules {
    /// `--translate-streams`
    pub(crate) translate: TranslateStreams,
    /// `--upstream-streams`
    pub(crate) upstream: UpstreamStreams,
    /// The feature gate `TranslateStreamCloseWebsocketRequests`.
    pub(crate) commands: bool,
    /// The feature gate `PortForwardWebsockets`.
    pub(crate) port_forward: bool,
}

/// What is known about the upstream server.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UpstreamCaps {
    pub(crate) version: Option<Version>,
    /// The protocols that it refused recently over WebSocket and accepted over SPDY.
    pub(crate) refused: RefusedProtocols,
}

/// How a stream is relayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TranslationPlan {
    /// Without translation.
    Tunnel,
    /// Without translation if the server accepts it, else translated to SPDY.
    TunnelOrSpdy(ToSpdy),
    /// With translation.
    Translate(Translation),
}

/// The direction of a translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Translation {
    /// WebSocket to the client, SPDY upstream (KEP-4006).
    ToSpdy(ToSpdy),
    /// SPDY to the client, WebSocket upstream.
    ToWebSocket(ToWebSocket),
}

/// A WebSocket request to translate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToSpdy {
    pub(crate) request: websocket::Request,
    pub(crate) token: Option<HeaderValue>,
    pub(crate) stream: WebSocketStream,
}

/// The kind of stream inside a WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WebSocketStream {
    /// A command, in this protocol.
    Command(NegotiatedProtocol),
    /// A port-forward, which is SPDY inside the WebSocket.
    PortForward { offers: Vec<String> },
}

impl WebSocketStream {
    pub(crate) fn protocol(&self) -> StreamProtocol {
        match self {
            Self::Command(negotiated) => StreamProtocol::Command(negotiated.protocol),
            Self::PortForward { .. } => StreamProtocol::PortForward,
        }
    }
}

/// An SPDY request to translate, with the offered protocols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToWebSocket {
    Command { offers: Vec<String> },
    PortForward { offers: Vec<String> },
}

/// Decides how a stream is relayed.
pub(crate) fn plan(
    kind: StreamKind,
    switch: UpgradeRequest,
    rules: TranslationRules,
    caps: UpstreamCaps,
) -> TranslationPlan {
    let allowed = match kind {
        StreamKind::Exec | StreamKind::Attach => rules.commands,
        StreamKind::PortForward => rules.port_forward,
    };
    if !allowed {
        return TranslationPlan::Tunnel;
    }
    match (switch, rules.upstream) {
        (
            UpgradeRequest::WebSocket {
                request,
                offers,
                token,
            },
            UpstreamStreams::Any,
        ) => {
            let Some(stream) = websocket_stream(kind, offers) else {
                return TranslationPlan::Tunnel;
            };
            let protocol = stream.protocol();
            let is_supported = match protocol {
                StreamProtocol::Command(Protocol::V5) | StreamProtocol::PortForward => {
                    let since = kind.native_since();
                    caps.version.is_some_and(|it| it >= since)
                }
                // Servers of all versions relay it to the node.
                StreamProtocol::Command(_) => true,
            };
            let is_accepted = is_supported && !caps.refused.contains(protocol);
            let to_spdy = ToSpdy {
                request,
                token,
                stream,
            };
            match rules.translate {
                TranslateStreams::Never => TranslationPlan::Tunnel,
                TranslateStreams::Auto if is_accepted => TranslationPlan::TunnelOrSpdy(to_spdy),
                TranslateStreams::Auto | TranslateStreams::Always => {
                    TranslationPlan::Translate(Translation::ToSpdy(to_spdy))
                }
            }
        }
        (UpgradeRequest::Spdy { offers }, UpstreamStreams::WebSocket) => {
            TranslationPlan::Translate(Translation::ToWebSocket(match kind {
                StreamKind::Exec | StreamKind::Attach => ToWebSocket::Command { offers },
                StreamKind::PortForward => ToWebSocket::PortForward { offers },
            }))
        }
        (UpgradeRequest::WebSocket { .. }, UpstreamStreams::WebSocket)
        | (UpgradeRequest::Spdy { .. }, UpstreamStreams::Any) => TranslationPlan::Tunnel,
    }
}

/// The stream that these offers request; `None` if no offer is supported.
fn websocket_stream(kind: StreamKind, offers: Vec<String>) -> Option<WebSocketStream> {
    let names = || offers.iter().map(String::as_str);
    match kind {
        StreamKind::Exec | StreamKind::Attach => {
            // If version 5 is offered, kube-apiserver uses it.
            let newer = negotiate(ServerKind::Translator, names());
            let negotiated = newer.or_else(|| negotiate(ServerKind::Bridge, names()))?;
            Some(WebSocketStream::Command(negotiated))
        }
        StreamKind::PortForward => {
            port_forward::tunnel::tunnelled_protocols(names()).next()?;
            Some(WebSocketStream::PortForward { offers })
        }
    }
}

#[cfg(test)]
mod tests;
