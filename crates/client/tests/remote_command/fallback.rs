//! Fallback to SPDY after a refused WebSocket, and only then.

use skewbridge_client::Error;
use skewbridge_client::remote_command::{
    Executor, ExitStatus, FallbackExecutor, PortForwarder, Transport,
};
use skewbridge_testkit::{Pods, UpgradeResponse};

use super::{endpoint, shell};

const NOT_FOUND: &str = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"pods \"web\" not found","reason":"NotFound","code":404}"#;

async fn transport(pods: &Pods) -> Result<Transport, Error> {
    let executor = FallbackExecutor::new(endpoint(pods).await);
    let mut process = executor.start(&shell("true")).await?;
    assert_eq!(process.wait().await, ExitStatus::Success);
    Ok(process.transport().clone())
}

#[tokio::test]
async fn a_websocket_is_tried_first() {
    let pods = Pods::start().await;
    assert_eq!(transport(&pods).await.unwrap(), Transport::WebSocket);
    assert_eq!(pods.requests().len(), 1);
}

#[tokio::test]
async fn any_response_but_101_causes_the_fallback_and_its_reason_is_kept() {
    let pods = Pods::start().await;
    for (status, body, reason) in [
        (400, "upgrade required", "upgrade required (400)"),
        (403, "", "403 Forbidden"),
        (200, "{}", "{} (200)"),
        (404, NOT_FOUND, "pods \"web\" not found (NotFound)"),
    ] {
        pods.websocket(UpgradeResponse::Reject(status, body.to_owned()));
        let fallback_reason = Some(reason.to_owned());
        let expected = Transport::Spdy { fallback_reason };
        assert_eq!(transport(&pods).await.unwrap(), expected);
    }
}

#[tokio::test]
async fn if_both_transports_are_refused_both_causes_are_reported() {
    let pods = Pods::start().await;
    pods.websocket(UpgradeResponse::Reject(400, "no WebSockets".to_owned()));
    pods.spdy(UpgradeResponse::Reject(404, NOT_FOUND.to_owned()));
    let forwarding = PortForwarder::connect(&endpoint(&pods).await, "default", "web").await;
    for error in [transport(&pods).await.unwrap_err(), forwarding.unwrap_err()] {
        let text = error.to_string();
        let Error::AllTransportsFailed { websocket, spdy } = error else {
            panic!("{text}")
        };
        assert_eq!(websocket, "no WebSockets (400)");
        let Error::Api { response, .. } = *spdy else {
            panic!("{spdy}")
        };
        assert_eq!((response.code, &*response.reason), (404, "NotFound"));
        assert_eq!(response.message, "pods \"web\" not found");
        assert!(
            text.contains(&response.message) && text.contains(&websocket),
            "{text}"
        );
    }
    // The same cause is reported once.
    pods.websocket(UpgradeResponse::Reject(404, NOT_FOUND.to_owned()));
    let error = transport(&pods).await.unwrap_err();
    assert!(matches!(error, Error::Api { .. }), "{error:?}");
}

#[tokio::test]
async fn an_invalid_response_does_not_cause_a_fallback() {
    let pods = Pods::start().await;
    pods.websocket(UpgradeResponse::Close);
    let error = transport(&pods).await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { .. }), "{error:?}");
    assert_eq!(pods.requests().len(), 1);
}

#[tokio::test]
async fn a_stream_that_has_begun_is_never_repeated() {
    let pods = Pods::start().await;
    pods.cut_after(Some(0));
    let executor = FallbackExecutor::new(endpoint(&pods).await);
    let mut process = executor.start(&shell("echo once")).await.unwrap();
    let status = process.wait().await;
    assert!(matches!(status, ExitStatus::Disconnected(_)), "{status:?}");
    assert_eq!(pods.requests().len(), 1);
}
