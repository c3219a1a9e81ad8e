//! Which streams are translated, and into what: a pure function of what is asked,
//! what was configured and what is known of the server that serves it.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::UPGRADE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use skewbridge_api::request_info::{Kind as InfoKind, RequestInfo};
use skewbridge_api::version::Version;
use skewbridge_remotecommand::{NegotiatedProtocol, Protocol, ServerKind, negotiate, port_forward};
use skewbridge_websocket as websocket;

use super::refusal_cache::{RefusedProtocols, StreamProtocol};
use crate::config::{TranslateStreams, UpstreamStreams};

/// Where offers of SPDY's protocols are, and the one that is taken.
pub(crate) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// How the upgrade to SPDY is called.
pub(crate) const SPDY: &str = "SPDY/3.1";

/// Browsers cannot set headers on a WebSocket: their token comes as an offer.
const TOKEN: &str = "base64url.bearer.authorization.k8s.io.";

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Exec,
    Attach,
    PortForward,
}

impl Kind {
    /// `None` for requests that are no streams.
    pub(crate) fn of(info: &RequestInfo<'_>) -> Option<Self> {
        if info.kind != InfoKind::Resource
            || (info.group, info.version, info.resource) != ("", "v1", "pods")
            || info.name.is_empty()
        {
            return None;
        }
        match info.subresource {
            "exec" => Some(Self::Exec),
            "attach" => Some(Self::Attach),
            "portforward" => Some(Self::PortForward),
            _ => None,
        }
    }

    /// PingRole a subresource and as a metric label.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }

    /// The first kube-apiserver that translates it by itself (KEP-4006: on by
    /// default).
    fn native_since(self) -> Version {
        let minor = match self {
            Self::Exec | Self::Attach => 30,
            Self::PortForward => 31,
        };
        Version {
            major: 1,
            minor,
            patch: 0,
        }
    }
}

/// Which protocol a client asks to switch to.
#[derive(Debug, Clone)]
pub(crate) enum UpgradeRequest {
    WebSocket {
        request: websocket::Request,
        offers: Vec<String>,
        /// What a browser proves itself with.
        token: Option<HeaderValue>,
    },
    Spdy {
        offers: Vec<String>,
    },
}

impl UpgradeRequest {
    /// Read while the headers of this hop are still there. What is not right is
    /// not ours to answer.
    pub(crate) fn read(method: &Method, headers: &HeaderMap) -> Option<Self> {
        let upgrade = headers.get(UPGRADE)?;
        if upgrade.as_bytes().eq_ignore_ascii_case(SPDY.as_bytes()) {
            skewbridge_api::hygiene::wants_upgrade(headers)?;
            if !matches!(*method, Method::POST | Method::GET) {
                return None;
            }
            let values = headers.get_all(STREAM_PROTOCOL).into_iter();
            let offers = values.filter_map(|value| value.to_str().ok());
            return Some(Self::Spdy {
                offers: offers.map(str::to_owned).collect(),
            });
        }
        let request = websocket::parse_upgrade_request(method, headers).ok()?;
        let token = token(headers).ok()?;
        let offers = websocket::subprotocols(headers).filter(|offer| !offer.starts_with(TOKEN));
        Some(Self::WebSocket {
            request,
            offers: offers.map(str::to_owned).collect(),
            token,
        })
    }

    /// PingRole a metric label.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::WebSocket { .. } => "websocket",
            Self::Spdy { .. } => "spdy",
        }
    }
}

/// More than one, or none that can be read: upstream has an answer to that.
struct BadToken;

/// What upstream would have found in the offers: one token, or none.
fn token(headers: &HeaderMap) -> Result<Option<HeaderValue>, BadToken> {
    let mut tokens = websocket::subprotocols(headers).filter_map(|offer| offer.strip_prefix(TOKEN));
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

/// What was configured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TranslationRules {
    /// `--translate-streams`
    pub(crate) translate: TranslateStreams,
    /// `--upstream-streams`
    pub(crate) upstream: UpstreamStreams,
    /// The gate `TranslateStreamCloseWebsocketRequests`.
    pub(crate) commands: bool,
    /// The gate `PortForwardWebsockets`.
    pub(crate) port_forward: bool,
}

/// What is known of the server that serves it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct UpstreamCaps {
    pub(crate) version: Option<Version>,
    /// What it has lately refused, and understood in translation.
    pub(crate) refused: RefusedProtocols,
}

/// How a stream is carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TranslationPlan {
    /// PingRole it came.
    Tunnel,
    /// PingRole it came, if the server takes it so; else as SPDY.
    TunnelOrSpdy(ToSpdy),
    /// In translation.
    Translate(Translation),
}

/// Into what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Translation {
    /// A WebSocket ends here, and SPDY goes on above (KEP-4006).
    ToSpdy(ToSpdy),
    /// SPDY ends here, and a WebSocket goes on above.
    ToWebSocket(ToWebSocket),
}

/// What was asked for by WebSocket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToSpdy {
    pub(crate) request: websocket::Request,
    pub(crate) token: Option<HeaderValue>,
    pub(crate) stream: WebSocketStream,
}

/// For what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum WebSocketStream {
    /// A command, in this protocol.
    Command(NegotiatedProtocol),
    /// A port-forward, which is SPDY inside the WebSocket.
    PortForward { offers: Vec<String> },
}

impl WebSocketStream {
    pub(crate) fn spoken(&self) -> StreamProtocol {
        match self {
            Self::Command(agreed) => StreamProtocol::Command(agreed.protocol),
            Self::PortForward { .. } => StreamProtocol::PortForward,
        }
    }
}

/// What was asked for by SPDY, with the protocols that were offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ToWebSocket {
    Command { offers: Vec<String> },
    PortForward { offers: Vec<String> },
}

/// How this stream is carried.
pub(crate) fn plan(
    kind: Kind,
    switch: UpgradeRequest,
    rules: TranslationRules,
    known: UpstreamCaps,
) -> TranslationPlan {
    let allowed = match kind {
        Kind::Exec | Kind::Attach => rules.commands,
        Kind::PortForward => rules.port_forward,
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
            let Some(stream) = by_websocket(kind, offers) else {
                return TranslationPlan::Tunnel;
            };
            let spoken = stream.spoken();
            let known_there = match spoken {
                StreamProtocol::Command(Protocol::V5) | StreamProtocol::PortForward => {
                    let since = kind.native_since();
                    known.version.is_some_and(|it| it >= since)
                }
                // Passed on to the node, whatever that makes of it.
                StreamProtocol::Command(_) => true,
            };
            let understood = known_there && !known.refused.contains(spoken);
            let to_spdy = ToSpdy {
                request,
                token,
                stream,
            };
            match rules.translate {
                TranslateStreams::Never => TranslationPlan::Tunnel,
                TranslateStreams::Auto if understood => TranslationPlan::TunnelOrSpdy(to_spdy),
                TranslateStreams::Auto | TranslateStreams::Always => {
                    TranslationPlan::Translate(Translation::ToSpdy(to_spdy))
                }
            }
        }
        (UpgradeRequest::Spdy { offers }, UpstreamStreams::WebSocket) => {
            TranslationPlan::Translate(Translation::ToWebSocket(match kind {
                Kind::Exec | Kind::Attach => ToWebSocket::Command { offers },
                Kind::PortForward => ToWebSocket::PortForward { offers },
            }))
        }
        (UpgradeRequest::WebSocket { .. }, UpstreamStreams::WebSocket)
        | (UpgradeRequest::Spdy { .. }, UpstreamStreams::Any) => TranslationPlan::Tunnel,
    }
}

/// What is asked for by these offers; `None` if nobody here can tell.
fn by_websocket(kind: Kind, offers: Vec<String>) -> Option<WebSocketStream> {
    let names = || offers.iter().map(String::as_str);
    match kind {
        Kind::Exec | Kind::Attach => {
            // Where the fifth version is offered, kube-apiserver speaks it.
            let newer = negotiate(ServerKind::Translator, names());
            let agreed = newer.or_else(|| negotiate(ServerKind::Bridge, names()))?;
            Some(WebSocketStream::Command(agreed))
        }
        Kind::PortForward => {
            port_forward::tunnel::tunnelled_protocols(names()).next()?;
            Some(WebSocketStream::PortForward { offers })
        }
    }
}

#[cfg(test)]
mod tests;
