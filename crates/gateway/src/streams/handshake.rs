//! From a request for a stream to its 101, or to the answer that there is instead:
//! what goes wrong before a stream has begun is told as HTTP, so that a client that
//! knows another way can take it.

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use skewbridge_api::status::Status;
use skewbridge_remotecommand::port_forward::tunnel::{
    PORT_FORWARD, TUNNELLED_PORT_FORWARD, tunnelled_protocols,
};
use skewbridge_remotecommand::{
    Options, Protocol, QueryDialect, SpdyNegotiationError, SpdyProtocol, negotiate_spdy,
};
use skewbridge_stream_io::SpdyExecClient;
use skewbridge_websocket::{Key, check_response};

use super::metrics::StreamMetricsGuard;
use super::port_forward::{SpdyToWsPortForward, WsToSpdyPortForward};
use super::spdy_to_ws::SpdyToWsExec;
use super::translation_plan::{
    Kind, ToSpdy, ToWebSocket, Translation, TranslationPlan, WebSocketStream,
};
use super::ws_to_spdy::WsToSpdyExec;
use super::{StreamRequest, StreamTimeouts, UpgradedStream, access_review, upgrade_headers};
use crate::access_log::AccessLogEntry;
use crate::body::ResponseBody;
use crate::drain::Drain;
use crate::handler::OutboundRequest;
use crate::upstream::UpstreamResponse;
use crate::upstream::h1::Upgraded;

/// How much of a refusal in words of its own is told.
const MAX_SAID: usize = 1024;

/// What a request for a stream comes to.
pub(crate) enum StreamOutcome {
    /// An answer without a stream.
    Response(Response<ResponseBody>),
    /// 101.
    Upgraded(Response<()>, UpgradedStream),
}

/// Asks for a stream as it was planned.
pub(crate) async fn handshake(
    job: StreamRequest,
    head: Parts,
    outbound: &OutboundRequest<'_>,
    record: &mut AccessLogEntry,
) -> Result<StreamOutcome, Response<Bytes>> {
    let StreamRequest { kind, client, plan } = job;
    let asking = Handshake {
        kind,
        client,
        outbound,
    };
    match plan {
        TranslationPlan::Tunnel => Ok(asking.tunnel(outbound.send(head, record).await?)),
        TranslationPlan::Translate(translation) => {
            asking.translate(translation, head, record).await
        }
        TranslationPlan::TunnelOrSpdy(to_spdy) => {
            let spoken = to_spdy.stream.spoken();
            let again = head.clone();
            let reply = outbound.send(head, record).await?;
            if !is_refused(&reply) {
                return Ok(asking.tunnel(reply));
            }
            drop(reply);
            let translation = Translation::ToSpdy(to_spdy);
            let carried = asking.translate(translation, again, record).await?;
            if matches!(carried, StreamOutcome::Upgraded(..)) {
                tracing::info!(
                    kind = kind.as_str(),
                    protocol = ?spoken,
                    "upstream refused a stream by WebSocket and takes it by SPDY: for a while all of this protocol are translated"
                );
                outbound.bridge().streams.remember_refusal(spoken);
            }
            Ok(carried)
        }
    }
}

fn is_refused(reply: &UpstreamResponse) -> bool {
    match reply {
        UpstreamResponse::Response(response) => {
            upgrade_headers::is_refusal(response.status(), response.headers())
        }
        UpstreamResponse::Upgraded(..) => false,
    }
}

/// A stream that is being asked for.
struct Handshake<'a> {
    kind: Kind,
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
    fn tunnel(&self, reply: UpstreamResponse) -> StreamOutcome {
        match reply {
            UpstreamResponse::Response(response) => StreamOutcome::Response(response),
            UpstreamResponse::Upgraded(response, upgraded) => {
                let stream_metrics = self.stream_metrics(self.client);
                StreamOutcome::Upgraded(
                    response,
                    UpgradedStream::Tunnel(upgraded, Some(stream_metrics)),
                )
            }
        }
    }

    async fn translate(
        &self,
        translation: Translation,
        head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<StreamOutcome, Response<Bytes>> {
        record.route("stream");
        match translation {
            Translation::ToSpdy(asked) => {
                let carried = self.to_spdy(asked, head, record).await;
                let code = match &carried {
                    Ok(StreamOutcome::Response(response)) => Some(response.status()),
                    Err(refused) => Some(refused.status()),
                    // Counted when it has ended, as kube-apiserver does.
                    Ok(StreamOutcome::Upgraded(_, UpgradedStream::WsToSpdyExec(_))) => None,
                    Ok(StreamOutcome::Upgraded(..)) => Some(StatusCode::SWITCHING_PROTOCOLS),
                };
                if let Some(code) = code {
                    let metrics = &self.outbound.bridge().metrics;
                    metrics.streams().translated(self.kind, code);
                }
                carried
            }
            Translation::ToWebSocket(asked) => self.to_websocket(&asked, head, record).await,
        }
    }

    /// A WebSocket here, SPDY above.
    async fn to_spdy(
        &self,
        asked: ToSpdy,
        mut head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<StreamOutcome, Response<Bytes>> {
        let token = asked.token.as_ref();
        match &asked.stream {
            WebSocketStream::Command(_) => {
                upgrade_headers::to_spdy(&mut head, [SpdyProtocol::V4.name()], token)
            }
            WebSocketStream::PortForward { offers } => {
                let offers = offers.iter().map(String::as_str);
                upgrade_headers::to_spdy(&mut head, tunnelled_protocols(offers), token);
            }
        }
        let options = Options::from_query(QueryDialect::Api, head.uri.query());
        let (response, upstream) = match self.outbound.send(head, record).await? {
            UpstreamResponse::Upgraded(response, upgraded) => (response, upgraded),
            UpstreamResponse::Response(response) => return Ok(StreamOutcome::Response(response)),
        };
        let unasked = |error: upgrade_headers::Unasked| self.bad_gateway(error.to_string());
        match &asked.stream {
            WebSocketStream::Command(agreement) => {
                let spoken =
                    upgrade_headers::switched_to_command(response.headers()).map_err(unasked)?;
                let Upgraded { io, input, slot } = upstream;
                let opened = SpdyExecClient::open(
                    io,
                    input,
                    options,
                    spoken,
                    self.timeouts().upstream_keepalive(),
                );
                let node = opened.map_err(|error| {
                    self.bad_gateway(format!("upstream takes no streams: {error}"))
                })?;
                let command = WsToSpdyExec {
                    kind: self.kind,
                    protocol: agreement.protocol,
                    options,
                    node,
                    slot,
                    timeouts: self.timeouts(),
                    arbiter: self.outbound.bridge().streams.arbiter.clone(),
                    drain: self.drain(),
                    metrics: self.outbound.bridge().metrics.clone(),
                    stream_metrics: self.stream_metrics("spdy"),
                };
                let granted = upgrade_headers::websocket_granted(&asked.request, agreement.header);
                let switched = UpgradedStream::WsToSpdyExec(Box::new(command));
                Ok(StreamOutcome::Upgraded(granted, switched))
            }
            WebSocketStream::PortForward { offers } => {
                let offers = offers.iter().map(String::as_str);
                let agreed = upgrade_headers::switched_to_port_forward(response.headers(), offers);
                let agreed = agreed.map_err(unasked)?;
                let port_forward = WsToSpdyPortForward {
                    upstream,
                    timeouts: self.timeouts(),
                    drain: self.drain(),
                    stream_metrics: self.stream_metrics("spdy"),
                };
                let granted = upgrade_headers::websocket_granted(&asked.request, Some(agreed));
                let switched = UpgradedStream::WsToSpdyPortForward(Box::new(port_forward));
                Ok(StreamOutcome::Upgraded(granted, switched))
            }
        }
    }

    /// SPDY here, a WebSocket above.
    async fn to_websocket(
        &self,
        asked: &ToWebSocket,
        head: Parts,
        record: &mut AccessLogEntry,
    ) -> Result<StreamOutcome, Response<Bytes>> {
        // What cannot be spoken here is not asked for above.
        match asked {
            ToWebSocket::Command { offers } => {
                let spoken = negotiate_spdy(offers.iter().map(String::as_str));
                let spoken = spoken.map_err(|error| match error {
                    // PingRole kubelets answer.
                    SpdyNegotiationError::NoOffer => self
                        .outbound
                        .refuse(&Status::bad_request(error.to_string())),
                    SpdyNegotiationError::NoneSupported => self.forbidden(error.to_string()),
                })?;
                let options = Options::from_query(QueryDialect::Api, head.uri.query());
                let offer = Protocol::V5.name();
                self.by_websocket(head, offer, record, |upstream| {
                    let switched = UpgradedStream::SpdyToWsExec(Box::new(SpdyToWsExec {
                        protocol: spoken,
                        options,
                        upstream,
                        timeouts: self.timeouts(),
                        drain: self.drain(),
                        stream_metrics: self.stream_metrics("websocket"),
                    }));
                    (upgrade_headers::spdy_granted(spoken.name()), switched)
                })
                .await
            }
            ToWebSocket::PortForward { offers } => {
                let mut offers = offers.iter().flat_map(|offer| offer.split(','));
                if !offers.any(|offer| offer.trim() == PORT_FORWARD) {
                    let why =
                        format!("of the protocols for port-forward only {PORT_FORWARD} is known");
                    return Err(self.forbidden(why));
                }
                self.by_websocket(head, TUNNELLED_PORT_FORWARD, record, |upstream| {
                    let switched =
                        UpgradedStream::SpdyToWsPortForward(Box::new(SpdyToWsPortForward {
                            upstream,
                            timeouts: self.timeouts(),
                            drain: self.drain(),
                            stream_metrics: self.stream_metrics("websocket"),
                        }));
                    (upgrade_headers::spdy_granted(PORT_FORWARD), switched)
                })
                .await
            }
        }
    }

    /// Asks upstream for a WebSocket with this protocol, if the caller may have one.
    async fn by_websocket(
        &self,
        mut head: Parts,
        offer: &'static str,
        record: &mut AccessLogEntry,
        switch: impl FnOnce(Upgraded) -> (Response<()>, UpgradedStream),
    ) -> Result<StreamOutcome, Response<Bytes>> {
        if let Err(refused) = access_review::check_create(&head, self.outbound, record).await {
            return Ok(StreamOutcome::Response(refused));
        }
        let key = Key::random();
        upgrade_headers::to_websocket(&mut head, &key, offer);
        let reply = self.outbound.send(head, record).await?;
        let refused = is_refused(&reply);
        let (response, upgraded) = match reply {
            UpstreamResponse::Upgraded(response, upgraded) => (response, upgraded),
            UpstreamResponse::Response(response) if refused => {
                let code = response.status().as_u16();
                let said = response.into_body().whole(MAX_SAID).await;
                let said = said.unwrap_or_default();
                return Err(self.bad_gateway(format!(
                    "upstream does not take this by WebSocket ({code} {:?}), and by \
                     --upstream-streams=websocket it takes nothing else: kube-apiserver does so \
                     from 1.30 on (port-forward: 1.31)",
                    String::from_utf8_lossy(&said)
                )));
            }
            UpstreamResponse::Response(response) => return Ok(StreamOutcome::Response(response)),
        };
        match check_response(response.status(), response.headers(), &key, &[offer]) {
            Ok(Some(_)) => {
                let (granted, switched) = switch(upgraded);
                Ok(StreamOutcome::Upgraded(granted, switched))
            }
            Ok(None) => Err(self.bad_gateway(format!("upstream did not agree to {offer}"))),
            Err(rejection) => Err(self.bad_gateway(format!(
                "upstream did not switch to a WebSocket for streams: {rejection}"
            ))),
        }
    }

    fn bad_gateway(&self, why: String) -> Response<Bytes> {
        self.outbound.refuse(&Status::bad_gateway(why))
    }

    fn forbidden(&self, why: String) -> Response<Bytes> {
        self.outbound.refuse(&Status::forbidden(why))
    }
}
