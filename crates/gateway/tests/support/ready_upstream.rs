//! An upstream that is ready and passes the self-test.

use skewbridge_testkit::{ApiServer, Options, RecordedRequest, Reply};

use super::pki::PkiFixture;
use super::self_test_responses;

/// Starts the upstream; `answer` handles all requests but the probes.
pub(crate) async fn ready_upstream(
    pki: &PkiFixture,
    answer: impl Fn(RecordedRequest) -> Reply + Send + Sync + 'static,
) -> ApiServer {
    ApiServer::start(
        Options::new(pki.upstream.clone()),
        move |recorded| match recorded.path() {
            "/readyz" => Reply::new(200).body("ok"),
            "/version" => Reply::json("{}"),
            _ => {
                self_test_responses::passing_response(&recorded).unwrap_or_else(|| answer(recorded))
            }
        },
    )
    .await
}
