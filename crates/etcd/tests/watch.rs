//! Watches: in odd chunks, cancelled, compacted, disconnected, and half-open.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/fake_etcd.rs"]
mod fake_etcd;

use std::time::Duration;

use fake_etcd::{FakeEtcd, Step, answer, field, frame, header, kv, number};
use skewbridge_etcd::{Client, Code, Error, Event, Revision, Watch};
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::time::timeout;

/// The documented bound, and some time for a loaded machine.
const DETECTION_TIMEOUT: Duration = Duration::from_secs(10 + 10);

fn created() -> Vec<u8> {
    frame(&[header(5), number(3, 1)].concat())
}

fn event(kind: u64, kv: &[u8]) -> Vec<u8> {
    let kind = if kind == 0 { vec![] } else { number(1, kind) };
    field(11, [kind, field(2, kv)].concat())
}

async fn opened(steps: Vec<Step>) -> (FakeEtcd, Client, Result<Watch, Error>) {
    opened_before(steps, answer(&header(1))).await
}

/// A server that runs `then` at the first other call.
async fn opened_before(
    steps: Vec<Step>,
    then: Vec<Step>,
) -> (FakeEtcd, Client, Result<Watch, Error>) {
    let server = FakeEtcd::start(move |method, number| match (method, number) {
        ("/etcdserverpb.Watch/Watch", _) => steps.clone(),
        (_, 1) => then.clone(),
        _ => answer(&header(1)),
    })
    .await;
    let client = Client::new(vec![server.endpoint()], None).unwrap();
    let watch = client.watch_prefix(b"/p/", Revision::new(6)).await;
    (server, client, watch)
}

#[tokio::test]
async fn a_watch_in_chunks_of_one_byte_gives_complete_events() {
    let put = event(0, &kv("/p/a", "1", 6));
    let delete = event(1, &kv("/p/a", "", 7));
    let late = event(0, &kv("/p/b", "2", 9));
    let bytes = [
        created(),
        frame(&[header(7), put, delete].concat()),
        frame(&header(8)), // progress
        frame(&[header(9), late].concat()),
    ]
    .concat();
    let mut steps = vec![Step::Head];
    steps.extend(bytes.iter().map(|&byte| Step::Data(vec![byte])));
    steps.push(Step::Hang);
    let (server, _client, watch) = opened(steps).await;
    let mut watch = watch.unwrap();
    assert_eq!(watch.last_revision(), Revision::new(5));

    let events = watch.next().await.unwrap();
    let [Event::Put(kv), Event::Delete { key, mod_revision }] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!((&kv.key[..], &kv.value[..]), (&b"/p/a"[..], &b"1"[..]));
    assert_eq!(kv.mod_revision, Revision::new(6));
    assert_eq!((&key[..], mod_revision.get()), (&b"/p/a"[..], 7));
    assert_eq!(watch.last_revision(), Revision::new(7));

    let events = watch.next().await.unwrap();
    assert!(matches!(&events[..], [Event::Put(kv)] if kv.key == "/p/b"));
    assert_eq!(watch.last_revision(), Revision::new(9));

    let create = [
        field(1, "/p/"),
        field(2, "/p0"),
        number(3, 6),
        number(4, 1),
        number(8, 1),
    ]
    .concat();
    assert_eq!(server.last_message(), field(1, create));
}

#[tokio::test]
async fn cancelling_next_loses_no_event() {
    let bytes = frame(&[header(6), event(0, &kv("/p/a", "1", 6))].concat());
    let mut steps = vec![Step::Head, Step::Data(created())];
    steps.extend(bytes.iter().map(|&byte| Step::Data(vec![byte])));
    steps.push(Step::Hang);
    let (_server, _client, watch) = opened(steps).await;
    let mut watch = watch.unwrap();
    eventually("the event", TEST_TIMEOUT, async || {
        tokio::select! {
            biased;
            events = watch.next() => events.unwrap().len() == 1,
            () = tokio::task::yield_now() => false,
        }
    })
    .await;
}

#[tokio::test]
async fn compaction_requires_a_new_listing() {
    let compacted = [header(9), number(4, 1), number(5, 8)].concat();
    let (_server, _client, watch) = opened(vec![
        Step::Head,
        Step::Data(created()),
        Step::Data(frame(&compacted)),
        Step::Hang,
    ])
    .await;
    let mut watch = watch.unwrap();
    for _ in 0..2 {
        let error = watch.next().await.unwrap_err();
        assert!(
            matches!(error, Error::Compacted { revision, .. } if revision.get() == 8),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn a_rejected_watch_is_an_error_at_once() {
    let refused = [header(9), number(3, 1), number(4, 1), field(6, "no")].concat();
    let (.., watch) = opened(vec![Step::Head, Step::Data(frame(&refused)), Step::Hang]).await;
    let error = watch.unwrap_err();
    assert!(
        matches!(&error, Error::WatchEnded { reason, .. } if reason == "no"),
        "{error:?}"
    );
}

#[tokio::test]
async fn the_end_of_a_watch_is_an_error() {
    for (end, code) in [
        (Step::Trailers(0, ""), None),
        (
            Step::Trailers(14, "etcdserver: no leader"),
            Some(Code::UNAVAILABLE),
        ),
    ] {
        let (_server, _client, watch) = opened(vec![Step::Head, Step::Data(created()), end]).await;
        let error = watch.unwrap().next().await.unwrap_err();
        match code {
            None => assert!(matches!(error, Error::WatchEnded { .. }), "{error:?}"),
            Some(code) => assert!(
                matches!(&error, Error::Status { status, .. } if status.code == code),
                "{error:?}"
            ),
        }
    }
}

#[tokio::test]
async fn a_closed_connection_ends_the_watch_and_later_calls_reconnect() {
    let watching = vec![Step::Head, Step::Data(created()), Step::Hang];
    let (_server, client, watch) = opened_before(watching, vec![Step::Disconnect]).await;
    let mut watch = watch.unwrap();
    client.range_prefix(b"/p/").await.unwrap();
    let error = watch.next().await.unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error:?}");
}

#[tokio::test]
async fn a_half_open_connection_is_detected() {
    let watching = vec![Step::Head, Step::Data(created()), Step::Hang];
    let (server, client, watch) = opened_before(watching, vec![Step::Freeze]).await;
    let mut watch = watch.unwrap();
    let call = client.range_prefix(b"/p/");
    let (error, call) = tokio::join!(timeout(DETECTION_TIMEOUT, watch.next()), call);
    let error = error.unwrap().unwrap_err();
    assert!(
        matches!(&error, Error::Connection { cause, .. } if cause.contains("ping")),
        "{error:?}"
    );
    // The call ended by its own timeout, or, if the ping was faster, on the next connection.
    if let Err(error) = call {
        let error = error.to_string();
        assert!(error.contains("no answer within 5 s"), "{error}");
    }
    client.range_prefix(b"/p/").await.unwrap();
    assert_eq!(server.opened(), 2);
}

#[tokio::test]
async fn an_unread_watch_does_not_block_calls() {
    let change = frame(&[header(6), event(0, &kv("/p/a", &"x".repeat(10_000), 6))].concat());
    let mut steps = vec![Step::Head, Step::Data(created())];
    steps.extend(vec![Step::Data(change); 500]);
    steps.push(Step::Hang);
    let (_server, client, watch) = opened(steps).await;
    let mut watch = watch.unwrap();
    for _ in 0..20 {
        client.range_prefix(b"/p/").await.unwrap();
    }
    for _ in 0..500 {
        assert_eq!(watch.next().await.unwrap().len(), 1);
    }
}
