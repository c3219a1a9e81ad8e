//! A bridge whose upstream records the identity headers of every request.

use http::{HeaderName, Request, Version};
use skewbridge_gateway::Handle;
use skewbridge_gateway::config::Config;
use skewbridge_k8s_api::identity::IdentityHeaders;
use skewbridge_testkit::{
    ApiServer, ClientAuth, Options, RecordedRequest, Reply, Response, TlsClient,
};

use crate::support::pki::{PkiFixture, start};

pub(crate) const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];
pub(crate) const FRONT_PROXY: Option<&str> = Some("front-proxy-client");
pub(crate) const PLAIN: Option<&str> = None;
pub(crate) const BEARER: (&str, &str) = ("Authorization", "Bearer t0ken");

/// A bridge in front of an upstream that answers every request with 200.
pub(crate) struct IdentityFixture {
    pub(crate) bridge: Handle,
    pub(crate) upstream: ApiServer,
    pub(crate) pki: PkiFixture,
}

/// The response to a request, and the request as upstream recorded it.
pub(crate) struct Outcome {
    pub(crate) response: Response,
    /// `None` if the request did not reach upstream.
    pub(crate) recorded: Option<RecordedRequest>,
}

impl IdentityFixture {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let pki = PkiFixture::new();
        let options = Options::new(pki.upstream.clone())
            .clients(ClientAuth::Accept(&pki.front_proxy_ca))
            .alpn(&["h2", "http/1.1"]);
        let upstream = ApiServer::start(options, |_| Reply::json("{}")).await;
        let mut config = pki.config(upstream.addr());
        change(&mut config);
        Self {
            bridge: start(&config),
            upstream,
            pki,
        }
    }

    /// The requests of clients that upstream has recorded.
    pub(crate) fn client_requests(&self) -> Vec<RecordedRequest> {
        let mut recorded = self.upstream.requests();
        recorded.retain(|recorded| !recorded.is_probe());
        recorded
    }

    /// Sends a request with these headers on its own connection.
    pub(crate) async fn send_request(
        &self,
        client: &TlsClient,
        version: Version,
        headers: &[(&str, &str)],
    ) -> Outcome {
        let before = self.client_requests().len();
        let response = if version == Version::HTTP_2 {
            let h2 = client.http2(self.bridge.address()).await.unwrap();
            let mut request = Request::get("https://k/api/v1/pods");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            h2.request(request.body(()).unwrap(), "").await.unwrap()
        } else {
            let lines: Vec<_> = headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\r\n"))
                .collect();
            let lines = lines.concat();
            let mut h1 = client.http1(self.bridge.address()).await.unwrap();
            h1.send(format!(
                "GET /api/v1/pods HTTP/1.1\r\nHost: k\r\n{lines}\r\n"
            ))
            .await
            .unwrap();
            h1.read_response().await.unwrap()
        };
        let mut recorded = self.client_requests().split_off(before);
        assert!(recorded.len() <= 1, "one request arrived as {recorded:#?}");
        Outcome {
            response,
            recorded: recorded.pop(),
        }
    }

    /// The request arrives over a connection with this client certificate and has exactly these
    /// identity headers, in both HTTP versions.
    pub(crate) async fn assert_arrives(
        &self,
        client: &TlsClient,
        headers: &[(&str, &str)],
        certificate: Option<&str>,
        expected: &[(&str, &str)],
    ) {
        for version in VERSIONS {
            let outcome = self.send_request(client, version, headers).await;
            outcome.assert_arrived(certificate, expected, &format!("{version:?} {headers:?}"));
        }
    }

    /// The request is rejected with this code and never arrives, in both HTTP versions.
    pub(crate) async fn assert_refused(
        &self,
        client: &TlsClient,
        headers: &[(&str, &str)],
        code: u16,
    ) {
        for version in VERSIONS {
            let outcome = self.send_request(client, version, headers).await;
            assert!(
                outcome.recorded.is_none(),
                "{version:?} {:#?}",
                outcome.recorded
            );
            assert_eq!(outcome.response.status, code, "{version:?} {headers:?}");
            let status: serde_json::Value =
                serde_json::from_slice(&outcome.response.body).expect("a JSON document");
            assert_eq!(status["kind"], "Status");
            assert_eq!(status["code"], code);
        }
    }
}

impl Outcome {
    #[track_caller]
    pub(crate) fn assert_arrived(
        &self,
        certificate: Option<&str>,
        expected: &[(&str, &str)],
        what: &str,
    ) {
        let Some(recorded) = &self.recorded else {
            panic!("{what}: never arrived: {:#?}", self.response);
        };
        assert_eq!(self.response.status, 200, "{what}");
        let presented = recorded.client.as_ref().map(|it| it.common_name.as_str());
        assert_eq!(presented, certificate, "{what}");
        assert_eq!(identity_headers(recorded), owned(expected), "{what}");
    }
}

/// All headers that kube-apiserver could read as an identity or as a hop, sorted by name; those of
/// one name in order.
pub(crate) fn identity_headers(recorded: &RecordedRequest) -> Vec<(String, String)> {
    const HEADER_PREFIXES: [&str; 8] = [
        "authorization",
        "impersonate-",
        "x-remote",
        "x-kubernetes-",
        "x-proxy-",
        "x-other-",
        "x-more-",
        "sec-websocket-protocol",
    ];
    let mut claims: Vec<_> = recorded
        .headers
        .iter()
        .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
        .filter(|(name, _)| {
            let name = name.replace('_', "-");
            HEADER_PREFIXES
                .iter()
                .any(|family| name.starts_with(family))
        })
        .collect();
    claims.sort_by(|(one, _), (other, _)| one.cmp(other));
    claims
}

pub(crate) fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let own = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
    pairs.iter().map(own).collect()
}

pub(crate) fn names(names: &[&'static str]) -> Vec<HeaderName> {
    names.iter().copied().map(HeaderName::from_static).collect()
}

/// Several names for each kind of header, with extra prefixes other than the default.
pub(crate) fn custom_identity_headers() -> IdentityHeaders {
    IdentityHeaders {
        username: names(&["x-proxy-user", "x-remote-user", "x-other-user"]),
        uid: names(&["x-proxy-uid", "x-other-uid"]),
        group: names(&["x-proxy-group", "x-other-group"]),
        extra_prefix: vec!["x-more-".to_owned(), "x-other-extra-".to_owned()],
    }
}
