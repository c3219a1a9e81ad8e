//! Suites that each user of the HTTP engine has to pass: rules against request smuggling, and for
//! retries, GOAWAY, truncated responses and limits. A user implements [`ProxyFixture`] and has
//! [`proxy_suites!`](crate::proxy_suites!) make a test of each rule.

pub mod goaway;
pub mod limits;
pub mod retries;
mod scripted_requests;
pub mod smuggling;
pub mod truncation;

use std::net::SocketAddr;

use tokio::sync::mpsc;

use crate::protocols::{Client, Proto};
use crate::{
    ApiServer, BodySender, Ca, ClientAuth, Connection, H2Client, Leaf, Options, RecordedRequest,
    Reply, Response, ScriptedConn, ScriptedServer, TlsClient, h2frames,
};

/// A proxy that forwards requests to one server.
pub trait ProxyFixture: Sized {
    /// Certificates for all parties.
    fn new() -> Self;

    /// The certificate of the server behind the proxy.
    fn server_certificate(&self) -> Leaf;

    /// Signs the certificate with which the proxy authenticates to the server when it forwards
    /// requests of users. A server that requires it receives none of the proxy's own requests.
    fn proxy_ca(&self) -> Option<&Ca>;

    /// Starts the proxy in front of this server. It ends when the fixture is dropped.
    fn start(&mut self, server: SocketAddr) -> impl Future<Output = ()>;

    /// Where the proxy listens.
    fn address(&self) -> SocketAddr;

    /// A user of the proxy.
    fn client(&self) -> TlsClient;
}

/// A proxy in front of a well-behaved server.
pub(crate) struct ApiProxy<P> {
    pub(crate) fixture: P,
    pub(crate) upstream: ApiServer,
}

impl<P: ProxyFixture> ApiProxy<P> {
    /// The server supports only this protocol.
    pub(crate) async fn new(
        upstream: Proto,
        handler: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::with(upstream, |options| options, handler).await
    }

    pub(crate) async fn with(
        upstream: Proto,
        change: impl FnOnce(Options<'_>) -> Options<'_>,
        handler: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let mut fixture = P::new();
        let options = Options::new(fixture.server_certificate()).alpn(upstream.alpn());
        let options = match fixture.proxy_ca() {
            Some(ca) => options.clients(ClientAuth::Require(ca)),
            None => options,
        };
        let upstream = ApiServer::start(change(options), handler).await;
        fixture.start(upstream.addr()).await;
        Self { fixture, upstream }
    }

    /// The server answers every request with a body that the test sends.
    pub(crate) async fn streaming(upstream: Proto) -> (Self, mpsc::UnboundedReceiver<BodySender>) {
        Self::streaming_with(upstream, |options| options).await
    }

    pub(crate) async fn streaming_with(
        upstream: Proto,
        change: impl FnOnce(Options<'_>) -> Options<'_>,
    ) -> (Self, mpsc::UnboundedReceiver<BodySender>) {
        let (senders, bodies) = mpsc::unbounded_channel();
        let proxy = Self::with(upstream, change, move |_| {
            let (reply, sender) = Reply::stream();
            senders.send(sender).unwrap();
            reply
        })
        .await;
        (proxy, bodies)
    }

    pub(crate) async fn client(&self, proto: Proto) -> Client {
        let user = self.fixture.client();
        Client::connect(&user, self.fixture.address(), proto).await
    }

    pub(crate) async fn h2(&self) -> H2Client {
        let user = self.fixture.client();
        user.http2(self.fixture.address()).await.unwrap()
    }

    /// An HTTP/2 connection for raw frames.
    pub(crate) async fn raw_h2(&self) -> Connection {
        let client = self.fixture.client().alpn(&["h2"]);
        let address = self.fixture.address();
        let mut io = client.connect(address, client.server_name).await.unwrap();
        h2frames::open(&mut io, &[]).await.unwrap();
        io
    }
}

/// A proxy in front of a scripted server that writes raw bytes.
pub(crate) struct ScriptedProxy<P> {
    pub(crate) fixture: P,
    pub(crate) upstream: ScriptedServer,
}

impl<P: ProxyFixture> ScriptedProxy<P> {
    pub(crate) async fn new<F, Fut>(upstream: Proto, script: F) -> Self
    where
        F: Fn(ScriptedConn) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let mut fixture = P::new();
        let certificate = fixture.server_certificate();
        let ca = fixture.proxy_ca();
        let upstream = ScriptedServer::start(&certificate, ca, upstream.alpn(), script).await;
        fixture.start(upstream.addr()).await;
        Self { fixture, upstream }
    }

    pub(crate) async fn client(&self, proto: Proto) -> Client {
        let user = self.fixture.client();
        Client::connect(&user, self.fixture.address(), proto).await
    }
}

/// Asserts that a response is a `metav1.Status` in JSON with this code.
#[track_caller]
pub(crate) fn assert_json_status(response: &Response, code: u16) {
    crate::protocols::assert_status(response, code);
    assert_eq!(response.header("content-type"), Some("application/json"));
}

/// Makes a test of each rule for this [`ProxyFixture`].
#[macro_export]
macro_rules! proxy_suites {
    ($fixture:ty) => {
        $crate::proxy_suites!(@suite $fixture, smuggling,
            malformed_heads_are_rejected_and_nothing_after_them_is_read,
            malformed_chunks_are_rejected_and_never_look_complete,
            unambiguous_requests_are_forwarded_once_in_their_meaning,
            bytes_after_a_body_must_be_a_valid_request,
            bytes_after_connect_are_not_a_request,
            http2_requests_that_http1_would_misread_are_rejected,
        );
        $crate::proxy_suites!(@suite $fixture, retries,
            an_idle_connection_closed_by_upstream_is_not_used,
            connection_close_of_upstream_is_honoured,
            a_write_on_a_reused_connection_that_breaks_is_not_retried,
            a_read_on_a_reused_connection_that_breaks_is_retried,
            a_request_to_a_workload_is_never_sent_twice,
            a_request_whose_response_has_begun_is_not_retried,
            a_read_on_a_new_connection_that_breaks_is_not_retried,
            a_request_whose_connection_is_reset_before_the_response_is_not_retried,
            a_refused_stream_is_retried_once,
            a_stream_that_is_refused_twice_fails,
            a_stream_that_is_reset_for_another_reason_is_not_retried,
            a_body_too_large_to_replay_is_never_sent_partially,
            further_connections_are_opened_when_all_streams_are_in_use,
            requests_recover_from_a_restart_of_upstream,
            connections_closed_by_upstream_are_replaced_without_an_error,
            a_request_in_flight_is_not_retried_when_upstream_is_killed,
            a_retried_write_has_the_same_length_and_body,
        );
        $crate::proxy_suites!(@suite $fixture, goaway,
            requests_above_the_last_stream_of_goaway_are_retried,
            a_request_that_meets_repeated_goaways_is_retried_until_it_is_accepted,
            requests_up_to_the_last_stream_of_goaway_are_not_retried,
            a_watch_survives_goaway_and_new_requests_use_another_connection,
            goaway_on_every_connection_does_not_fail_requests,
        );
        $crate::proxy_suites!(@suite $fixture, truncation,
            a_response_truncated_by_upstream_never_looks_complete,
            a_response_whose_connection_is_reset_never_looks_complete,
            a_response_shorter_than_its_content_length_never_looks_complete,
            a_response_delimited_by_close_is_complete_only_after_close_notify,
            an_http_1_0_client_detects_a_truncated_response,
            a_workload_that_responds_early_gets_the_complete_body,
        );
        $crate::proxy_suites!(@suite $fixture, limits,
            oversized_heads_are_414_or_431,
            a_flood_of_resets_closes_the_connection_and_does_not_reach_upstream,
            a_client_that_resets_most_of_its_streams_is_disconnected,
            a_flood_of_continuation_frames_closes_the_connection,
            a_header_list_above_one_mebibyte_is_rejected,
            too_many_headers_are_431_with_a_status,
            a_server_that_sends_only_interim_responses_is_502,
            a_server_that_does_not_speak_http_is_502_at_once,
        );
    };
    (@suite $fixture:ty, $suite:ident, $($rule:ident,)*) => {
        mod $suite {
            #[allow(unused_imports)] // the fixture may be in the parent
            use super::*;

            $(
                #[tokio::test]
                async fn $rule() {
                    $crate::proxy_suites::$suite::$rule::<$fixture>().await;
                }
            )*
        }
    };
}
