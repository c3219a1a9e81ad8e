//! Sets up a stream until its 101 response. Errors before 101 are HTTP responses, so that a client
//! can use its fallback.

use http::Response;
use http::request::Parts;
use skewbridge_http_engine::drain::Drain;
use skewbridge_k8s_api::status::Status;
use skewbridge_remotecommand::port_forward::tunnel::{
    PORT_FORWARD, TUNNELLED_PORT_FORWARD, tunnelled_protocols,
};
use skewbridge_remotecommand::{
    Options, Protocol, QueryDialect, SpdyNegotiationError, SpdyProtocol, negotiate_spdy,
};
use skewbridge_stream_io::SpdyExecClient;
use skewbridge_websocket::{Key, check_response};

use super::access_review;
use super::error::ProxyError;
use super::outbound::OutboundRequest;
use super::proxied_response::ProxiedResponse;
use crate::access_log::AccessLogEntry;
use crate::metrics::streams::StreamMetricsGuard;
use crate::stream_kind::StreamKind;
use crate::streams::port_forward::{SpdyToWsPortForward, WsToSpdyPortForward};
use crate::streams::spdy_to_ws::SpdyToWsExec;
use crate::streams::translation_plan::{
    ToSpdy, ToWebSocket, Translation, TranslationPlan, WebSocketStream,
};
use crate::streams::ws_to_spdy::WsToSpdyExec;
use crate::streams::{StreamRequest, StreamTimeouts, UpgradedStream, upgrade_headers};
use crate::upstream::Upgraded;
use crate::upstream::UpstreamResponse;

/// How much of a plain-text error response is quoted.
const MAX_QUOTED_BYTES: usize = 1024;

/// Requests a stream as planned.
pub(crate) async fn handshake(
    stream_request: StreamRequest,
    head: Parts,
    outbound: &OutboundRequest<'_>,
    record: &mut AccessLogEntry,
) -> Result<ProxiedResponse, ProxyError> {
    let StreamRequest { kind, client, plan } = stream_request;
    let handshake = Handshake {
        kind,
        client,
        outbound,
    };
    match plan {
        TranslationPlan::Tunnel => Ok(handshake.tunnel(outbound.send(head, record).await?)),
        TranslationPlan::Translate(translation) => {
            handshake.translate(translation, head, record).await
        }
        TranslationPlan::TunnelOrSpdy(to_spdy) => {
            let protocol = to_spdy.stream.protocol();
            let retry_head = head.clone();
            let response = outbound.send(head, record).await?;
            if !is_refused(&response) {
                return Ok(handshake.tunnel(response));
            }
            drop(response);
            let translation = Translation::ToSpdy(to_spdy);
            let proxied = handshake.translate(translation, retry_head, record).await?;
            if proxied.upgrade.is_some() {
                tracing::info!(
                    kind = kind.as_str(),
                    protocol = ?protocol,
                    "upstream refused a WebSocket stream and accepted it over SPDY; streams of this protocol are translated for a while"
                );
                outbound.bridge().streams.remember_refusal(protocol);
            }
            Ok(proxied)
        }
    }
}

fn is_refused(response: &UpstreamResponse) -> bool {
    match response {
        UpstreamResponse::Response(response) => {
            upgrade_headers::is_refusal(response.status(), response.headers())
        }
        UpstreamResponse::Upgraded(..) => false,
    }
}

/// A stream that is being requested.
struct Handshake<'a> {
    kind: StreamKind,
    client: &'static str,
    outbound: &'a OutboundRequest<'a>,
}

impl Handshake<'_> {
    fn stream_metrics(&self, upstream: &'static str) -> StreamMetricsGuard {
        let metrics = &self.outbound.bridge().metrics;
        StreamMetricsGuard::begin(metrics, self.kind, self.client, upstream)
    }

    fn timeouts(&self) -> StreamTimeouts {
        self.outbound.bridge().streams.timeouts
    }

    fn drain(&self) -> Drain {
        self.outbound.bridge().drain.clone()
    }

    /// The same protocol on both sides.
    fn tunnel(&self, response: UpstreamResponse) -> ProxiedResponse {
        match response {
            UpstreamResponse::Response(response) => ProxiedResponse::new(response),
            UpstreamResponse::Upgraded(response, upgraded) => {
                let stream_metrics = self.stream_metrics(self.client);
                let tunnel = UpgradedStream::Tunnel(upgraded, Some(stream_metrics));
                ProxiedResponse::switching(response, tunnel)
            }
        }
    }

    async fn translate(
        &self,
        translation: Translation,
        head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<ProxiedResponse, ProxyError> {
        record.route("stream");
        match translation {
            Translation::ToSpdy(request) => {
                let proxied = self.to_spdy(request, head, record).await;
                let code = match &proxied {
                    // Counted at the end of the stream, as kube-apiserver does.
                    Ok(ProxiedResponse {
                        upgrade: Some(UpgradedStream::WsToSpdyExec(_)),
                        ..
                    }) => None,
                    Ok(proxied) => Some(proxied.response.status()),
                    Err(error) => Some(error.code(self.outbound.bridge())),
                };
                if let Some(code) = code {
                    let metrics = &self.outbound.bridge().metrics;
                    metrics.streams().translated(self.kind, code);
                }
                proxied
            }
            Translation::ToWebSocket(request) => self.to_websocket(&request, head, record).await,
        }
    }

    /// WebSocket to the client, SPDY upstream.
    async fn to_spdy(
        &self,
        request: ToSpdy,
        mut head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<ProxiedResponse, ProxyError> {
        let token = request.token.as_ref();
        match &request.stream {
            WebSocketStream::Command(_) => {
                upgrade_headers::to_spdy(&mut head, [SpdyProtocol::V4.name()], token);
            }
            WebSocketStream::PortForward { offers } => {
                let offers = offers.iter().map(String::as_str);
                upgrade_headers::to_spdy(&mut head, tunnelled_protocols(offers), token);
            }
        }
        let options = Options::from_query(QueryDialect::Api, head.uri.query());
        let (response, upstream) = match self.outbound.send(head, record).await? {
            UpstreamResponse::Upgraded(response, upgraded) => (response, upgraded),
            UpstreamResponse::Response(response) => return Ok(ProxiedResponse::new(response)),
        };
        let unexpected = |error: upgrade_headers::UnexpectedUpgrade| bad_gateway(error.to_string());
        match &request.stream {
            WebSocketStream::Command(agreement) => {
                let protocol =
                    upgrade_headers::command_protocol(response.headers()).map_err(unexpected)?;
                let Upgraded { io, input, guard } = upstream;
                let opened = SpdyExecClient::open(
                    io,
                    input,
                    options,
                    protocol,
                    self.timeouts().upstream_keepalive(),
                );
                let node = opened.map_err(|error| {
                    bad_gateway(format!("upstream does not accept streams: {error}"))
                })?;
                let command = WsToSpdyExec {
                    kind: self.kind,
                    protocol: agreement.protocol,
                    options,
                    node,
                    guard,
                    timeouts: self.timeouts(),
                    arbiter: self.outbound.bridge().streams.arbiter.clone(),
                    drain: self.drain(),
                    metrics: self.outbound.bridge().metrics.clone(),
                    stream_metrics: self.stream_metrics("spdy"),
                };
                let response =
                    upgrade_headers::websocket_response(&request.request, agreement.header);
                let upgraded_stream = UpgradedStream::WsToSpdyExec(Box::new(command));
                Ok(ProxiedResponse::switching(response, upgraded_stream))
            }
            WebSocketStream::PortForward { offers } => {
                let offers = offers.iter().map(String::as_str);
                let accepted = upgrade_headers::port_forward_offer(response.headers(), offers);
                let accepted = accepted.map_err(unexpected)?;
                let port_forward = WsToSpdyPortForward {
                    upstream,
                    timeouts: self.timeouts(),
                    drain: self.drain(),
                    stream_metrics: self.stream_metrics("spdy"),
                };
                let response =
                    upgrade_headers::websocket_response(&request.request, Some(accepted));
                let upgraded_stream = UpgradedStream::WsToSpdyPortForward(Box::new(port_forward));
                Ok(ProxiedResponse::switching(response, upgraded_stream))
            }
        }
    }

    /// SPDY to the client, WebSocket upstream.
    async fn to_websocket(
        &self,
        request: &ToWebSocket,
        head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<ProxiedResponse, ProxyError> {
        // Checked before the request is sent upstream.
        match request {
            ToWebSocket::Command { offers } => {
                let protocol = negotiate_spdy(offers.iter().map(String::as_str));
                let protocol = protocol.map_err(|error| match error {
                    // The same response as that of a kubelet.
                    SpdyNegotiationError::NoOffer => {
                        ProxyError::rejected(Status::bad_request(error.to_string()))
                    }
                    SpdyNegotiationError::NoneSupported => forbidden(error.to_string()),
                })?;
                let options = Options::from_query(QueryDialect::Api, head.uri.query());
                let offer = Protocol::V5.name();
                self.request_websocket(head, offer, record, |upstream| {
                    let upgraded_stream = UpgradedStream::SpdyToWsExec(Box::new(SpdyToWsExec {
                        protocol,
                        options,
                        upstream,
                        timeouts: self.timeouts(),
                        drain: self.drain(),
                        stream_metrics: self.stream_metrics("websocket"),
                    }));
                    (
                        upgrade_headers::spdy_response(protocol.name()),
                        upgraded_stream,
                    )
                })
                .await
            }
            ToWebSocket::PortForward { offers } => {
                let mut offers = offers.iter().flat_map(|offer| offer.split(','));
                if !offers.any(|offer| offer.trim() == PORT_FORWARD) {
                    let why = format!("the only supported port-forward protocol is {PORT_FORWARD}");
                    return Err(forbidden(why));
                }
                self.request_websocket(head, TUNNELLED_PORT_FORWARD, record, |upstream| {
                    let upgraded_stream =
                        UpgradedStream::SpdyToWsPortForward(Box::new(SpdyToWsPortForward {
                            upstream,
                            timeouts: self.timeouts(),
                            drain: self.drain(),
                            stream_metrics: self.stream_metrics("websocket"),
                        }));
                    (
                        upgrade_headers::spdy_response(PORT_FORWARD),
                        upgraded_stream,
                    )
                })
                .await
            }
        }
    }

    /// Requests a WebSocket with this subprotocol from upstream, if the caller is authorized.
    async fn request_websocket(
        &self,
        mut head: Parts,
        offer: &'static str,
        record: &mut AccessLogEntry,
        switch: impl FnOnce(Upgraded) -> (Response<()>, UpgradedStream),
    ) -> Result<ProxiedResponse, ProxyError> {
        if let Err(refused) = access_review::check_create(&head, self.outbound, record).await {
            return Ok(ProxiedResponse::new(refused));
        }
        let key = Key::random();
        upgrade_headers::to_websocket(&mut head, &key, offer);
        let response = self.outbound.send(head, record).await?;
        let refused = is_refused(&response);
        let (response, upgraded) = match response {
            UpstreamResponse::Upgraded(response, upgraded) => (response, upgraded),
            UpstreamResponse::Response(response) if refused => {
                let code = response.status().as_u16();
                let body = response.into_body().collect(MAX_QUOTED_BYTES).await;
                let body = body.unwrap_or_default();
                return Err(bad_gateway(format!(
                    "upstream does not accept this stream over WebSocket ({code} {:?}), and \
                     --upstream-streams=websocket allows nothing else: kube-apiserver accepts it \
                     from 1.30 on (port-forward: 1.31)",
                    String::from_utf8_lossy(&body)
                )));
            }
            UpstreamResponse::Response(response) => return Ok(ProxiedResponse::new(response)),
        };
        match check_response(response.status(), response.headers(), &key, &[offer]) {
            Ok(Some(_)) => {
                let (response, upgraded_stream) = switch(upgraded);
                Ok(ProxiedResponse::switching(response, upgraded_stream))
            }
            Ok(None) => Err(bad_gateway(format!(
                "upstream did not accept the subprotocol {offer}"
            ))),
            Err(rejection) => Err(bad_gateway(format!(
                "upstream did not upgrade to a WebSocket: {rejection}"
            ))),
        }
    }
}

fn bad_gateway(why: String) -> ProxyError {
    ProxyError::rejected(Status::bad_gateway(why))
}

fn forbidden(why: String) -> ProxyError {
    ProxyError::rejected(Status::forbidden(why))
}
