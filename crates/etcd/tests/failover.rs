//! Endpoints that are unreachable, unresponsive, failing or shutting down.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/fake_etcd.rs"]
mod fake_etcd;

use fake_etcd::{FakeEtcd, Step, answer, field, frame, header, number};
use skewbridge_etcd::{Client, Code, Endpoint, Error, Revision};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::net::TcpListener;

async fn working_server() -> FakeEtcd {
    FakeEtcd::start(|_, _| answer(&header(1))).await
}

fn client(endpoints: &[Endpoint]) -> Client {
    Client::new(endpoints.to_vec(), None).unwrap()
}

fn at(listener: &TcpListener) -> Endpoint {
    format!("http://{}", listener.local_addr().unwrap())
        .parse()
        .unwrap()
}

async fn unused_endpoint() -> Endpoint {
    at(&TcpListener::bind("127.0.0.1:0").await.unwrap())
}

#[tokio::test]
async fn a_dead_endpoint_is_skipped_and_a_working_one_is_kept() {
    let server = working_server().await;
    let client = client(&[unused_endpoint().await, server.endpoint()]);
    for _ in 0..3 {
        client.put(b"k", b"v", None).await.unwrap();
    }
    assert_eq!(server.methods().len(), 3);
    assert_eq!(server.opened(), 1);
}

#[tokio::test]
async fn an_endpoint_that_accepts_and_never_answers_is_skipped() {
    let unresponsive = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = working_server().await;
    let client = client(&[at(&unresponsive), server.endpoint()]);
    client.put(b"k", b"v", None).await.unwrap();
}

#[tokio::test]
async fn an_endpoint_that_does_not_answer_calls_is_skipped() {
    let slow = FakeEtcd::start(|_, _| vec![Step::Hang]).await;
    let server = working_server().await;
    let client = client(&[slow.endpoint(), server.endpoint()]);
    client.put(b"k", b"v", None).await.unwrap();
    assert_eq!(slow.methods().len(), 1);
    client.put(b"k", b"v", None).await.unwrap();
    assert_eq!(slow.methods().len(), 1, "the one that works is tried first");
}

#[tokio::test]
async fn unavailable_is_retried_at_the_next_endpoint() {
    for sick in [
        vec![Step::Refuse(14, "etcdserver: no leader")],
        vec![Step::Head, Step::Trailers(14, "etcdserver: no leader")],
        vec![Step::Http(502)],
    ] {
        let sick = FakeEtcd::start(move |_, _| sick.clone()).await;
        let server = working_server().await;
        let client = client(&[sick.endpoint(), server.endpoint()]);
        client.put(b"k", b"v", None).await.unwrap();
        assert_eq!((sick.methods().len(), server.methods().len()), (1, 1));
    }
}

#[tokio::test]
async fn other_errors_are_not_retried() {
    let strict = FakeEtcd::start(|_, _| vec![Step::Refuse(3, "no")]).await;
    let server = working_server().await;
    let client = client(&[strict.endpoint(), server.endpoint()]);
    let error = client.put(b"k", b"v", None).await.unwrap_err();
    assert!(
        matches!(&error, Error::Status { status, .. } if status.code == Code::INVALID_ARGUMENT),
        "{error:?}"
    );
    assert_eq!(server.opened(), 0);
}

#[tokio::test]
async fn each_endpoint_is_tried_once_and_the_last_is_named() {
    let sick = FakeEtcd::start(|_, _| vec![Step::Refuse(14, "no leader")]).await;
    let dead = unused_endpoint().await;
    let client = client(&[sick.endpoint(), dead.clone()]);
    let error = client.put(b"k", b"v", None).await.unwrap_err();
    assert!(
        matches!(&error, Error::Connection { endpoint, .. } if *endpoint == dead),
        "{error:?}"
    );
    assert!(error.to_string().contains(&dead.to_string()));
    assert_eq!(sick.methods().len(), 1);
}

#[tokio::test]
async fn a_call_reopens_a_connection_that_ended() {
    let server = FakeEtcd::start(|_, number| match number {
        1 => vec![Step::Disconnect],
        _ => answer(&header(1)),
    })
    .await;
    let client = client(&[server.endpoint()]);
    client.put(b"k", b"v", None).await.unwrap();
    client.put(b"k", b"v", None).await.unwrap();
    assert_eq!((server.methods().len(), server.opened()), (3, 2));
}

#[tokio::test]
async fn an_endpoint_that_disconnects_every_call_is_an_error() {
    let server = FakeEtcd::start(|_, _| vec![Step::Disconnect]).await;
    let error = client(&[server.endpoint()])
        .put(b"k", b"v", None)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error:?}");
}

#[tokio::test]
async fn a_new_connection_is_opened_after_goaway() {
    let server = FakeEtcd::start(|_, number| {
        let mut steps = answer(&header(1));
        if number == 0 {
            steps.insert(0, Step::GoAway);
        }
        steps
    })
    .await;
    let client = client(&[server.endpoint()]);
    client.put(b"k", b"v", None).await.unwrap();
    eventually(
        "the client closes the connection",
        TEST_TIMEOUT,
        async || server.open() == 0,
    )
    .await;
    client.put(b"k", b"v", None).await.unwrap();
    assert_eq!(server.opened(), 2);
}

#[tokio::test]
async fn the_connection_ends_with_the_last_client_and_watch() {
    let server = FakeEtcd::start(|method, _| match method {
        "/etcdserverpb.Watch/Watch" => vec![
            Step::Head,
            Step::Data(frame(&[header(1), number(3, 1)].concat())),
            Step::Hang,
        ],
        _ => answer(&[header(1), field(2, "")].concat()),
    })
    .await;
    let first = client(&[server.endpoint()]);
    let second = first.clone();
    let watch = second.watch_prefix(b"k", Revision::new(1)).await.unwrap();
    drop(first);
    second.get(b"k").await.unwrap();
    assert_eq!((server.opened(), server.open()), (1, 1));
    drop((second, watch));
    eventually("the connection is closed", TEST_TIMEOUT, async || {
        server.open() == 0
    })
    .await;
}
