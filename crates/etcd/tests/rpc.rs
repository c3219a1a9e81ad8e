//! The RPCs against a fake etcd with valid and invalid responses.
#![allow(clippy::unwrap_used, clippy::expect_used)] // test helpers panic on failure

#[allow(dead_code)] // each test file uses a part of it
#[path = "support/fake_etcd.rs"]
mod fake_etcd;

use std::time::Duration;

use fake_etcd::{FakeEtcd, Step, answer, field, frame, header, kv, listing, number};
use skewbridge_etcd::{Client, Code, Error, LeaseId, Revision};
use skewbridge_testkit::{Ca, ClientAuth};

fn client(server: &FakeEtcd) -> Client {
    Client::new(vec![server.endpoint()], None).unwrap()
}

#[tokio::test]
async fn a_listing_has_keys_and_a_revision() {
    let server =
        FakeEtcd::start(|_, _| answer(&listing(12, &[kv("/p/a", "1", 7), kv("/p/b", "", 9)])))
            .await;
    let listing = client(&server).range_prefix(b"/p/").await.unwrap();
    assert_eq!(listing.revision, Revision::new(12));
    let read: Vec<_> = listing
        .kvs
        .iter()
        .map(|kv| (&kv.key[..], &kv.value[..], kv.mod_revision.get()))
        .collect();
    assert_eq!(
        read,
        [(&b"/p/a"[..], &b"1"[..], 7), (&b"/p/b"[..], &b""[..], 9)]
    );
    assert_eq!(server.methods(), ["/etcdserverpb.KV/Range"]);
    let sent = [field(1, "/p/"), field(2, "/p0")].concat();
    assert_eq!(server.last_message(), sent);
}

#[tokio::test]
async fn requests_have_the_field_numbers_of_etcd() {
    let server = FakeEtcd::start(|method, _| match method {
        "/etcdserverpb.KV/Txn" | "/etcdserverpb.KV/DeleteRange" => {
            answer(&[header(3), number(2, 1)].concat())
        }
        "/etcdserverpb.Lease/LeaseGrant" | "/etcdserverpb.Lease/LeaseKeepAlive" => {
            answer(&[header(3), number(2, 77), number(3, 20)].concat())
        }
        _ => answer(&header(3)),
    })
    .await;
    let client = client(&server);
    let lease = LeaseId::new(77);

    let revision = client.put(b"k", b"v", Some(lease)).await.unwrap();
    assert_eq!(revision, Revision::new(3));
    let put = [field(1, "k"), field(2, "v"), number(3, 77)].concat();
    assert_eq!(server.last_message(), put);

    assert!(client.delete(b"k").await.unwrap());
    assert_eq!(server.last_message(), field(1, "k"));

    let unchanged = client.delete_if_unchanged(b"k", Revision::new(300));
    assert!(unchanged.await.unwrap());
    let compare = [number(2, 2), field(3, "k"), number(6, 300)].concat();
    let delete = field(3, field(1, "k"));
    let txn = [field(1, compare), field(2, delete)].concat();
    assert_eq!(server.last_message(), txn);

    let granted = client.grant(Duration::from_millis(14_500)).await.unwrap();
    assert_eq!((granted.id, granted.ttl.as_secs()), (lease, 20));
    assert_eq!(server.last_message(), number(1, 15));

    let kept = client.keep_alive(lease).await.unwrap();
    assert_eq!(kept, Some(Duration::from_secs(20)));
    assert_eq!(server.last_message(), number(1, 77));

    client.revoke(lease).await.unwrap();
    assert_eq!(server.last_message(), number(1, 77));
    assert_eq!(server.opened(), 1, "all on one connection");
}

#[tokio::test]
async fn a_status_without_a_body_is_read_from_the_headers() {
    let server = FakeEtcd::start(|_, _| vec![Step::Refuse(7, "etcdserver: not%20you%21")]).await;
    let error = client(&server).get(b"k").await.unwrap_err();
    let Error::Status { endpoint, status } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(*endpoint, server.endpoint());
    assert_eq!(status.code, Code::PERMISSION_DENIED);
    assert_eq!(status.message, "etcdserver: not you!");
    assert!(error.to_string().contains("not you! (PERMISSION_DENIED)"));
}

#[tokio::test]
async fn a_lost_lease_is_distinguished_from_other_failures() {
    let lost = "etcdserver: requested lease not found";
    let server = FakeEtcd::start(move |_, _| vec![Step::Head, Step::Trailers(5, lost)]).await;
    let client = client(&server);
    let lease = LeaseId::new(1);
    let put = client.put(b"k", b"v", Some(lease)).await;
    assert!(put.unwrap_err().is_lease_not_found());
    assert_eq!(client.keep_alive(lease).await.unwrap(), None);
    client.revoke(lease).await.unwrap();
}

#[tokio::test]
async fn a_lease_without_remaining_time_has_ended() {
    let server = FakeEtcd::start(|_, _| answer(&[header(1), number(2, 5)].concat())).await;
    let kept = client(&server).keep_alive(LeaseId::new(5)).await;
    assert_eq!(kept.unwrap(), None);
}

#[tokio::test]
async fn a_too_large_message_is_rejected_unread() {
    let prefix = vec![0, 0x7f, 0, 0, 0];
    let server =
        FakeEtcd::start(move |_, _| vec![Step::Head, Step::Data(prefix.clone()), Step::Hang]).await;
    let error = client(&server).get(b"k").await.unwrap_err();
    assert!(
        matches!(&error, Error::Malformed { cause, .. } if cause.contains("2130706432")),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_too_large_request_is_not_sent() {
    let server = FakeEtcd::start(|_, _| answer(&header(1))).await;
    let value = vec![0; skewbridge_etcd::MAX_MESSAGE_BYTES];
    let error = client(&server).put(b"k", &value, None).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
    assert_eq!(server.opened(), 0);
}

#[tokio::test]
async fn a_message_larger_than_the_window_is_received() {
    let value = "x".repeat(3 << 20);
    let server = {
        let value = value.clone();
        FakeEtcd::start(move |_, _| answer(&listing(1, &[kv("k", &value, 1)]))).await
    };
    let read = client(&server).get(b"k").await.unwrap().unwrap();
    assert_eq!(read.value, value);
}

#[tokio::test]
async fn invalid_responses_are_malformed() {
    let one = frame(&header(1));
    let odd: [Vec<Step>; 5] = [
        vec![Step::Head, Step::Data(one.clone()), Step::End],
        vec![Step::Head, Step::Trailers(0, "")],
        vec![
            Step::Head,
            Step::Data([&one[..], &one].concat()),
            Step::Trailers(0, ""),
        ],
        vec![
            Step::Head,
            Step::Data([&one[..], &[0]].concat()),
            Step::Trailers(0, ""),
        ],
        answer(&[0x0f]),
    ];
    let count = odd.len();
    let server = FakeEtcd::start(move |_, number| odd[number].clone()).await;
    let client = client(&server);
    for number in 0..count {
        let error = client.put(b"k", b"secret", None).await.unwrap_err();
        assert!(
            matches!(error, Error::Malformed { .. }),
            "{number}: {error:?}"
        );
        assert!(!format!("{error} {error:?}").contains("secret"));
    }
}

#[tokio::test]
async fn tls_authenticates_both_sides() {
    let ca = Ca::new("etcd");
    let config = ca
        .server(&["127.0.0.1"])
        .server_config(ClientAuth::Require(&ca), &["h2"]);
    let server = FakeEtcd::start_tls(config, |_, _| answer(&header(1))).await;
    let call = |trusted: &Ca, signer: &Ca| {
        let leaf = signer.client("bridge", &[]);
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let tls = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusted.roots())
            .with_client_auth_cert(leaf.chain_der, leaf.key_der)
            .unwrap();
        let client = Client::new(vec![server.endpoint()], Some(tls.into())).unwrap();
        async move { client.put(b"k", b"v", None).await }
    };
    call(&ca, &ca).await.unwrap();
    let untrusted_ca = Ca::new("untrusted");
    for (trusted, signer) in [(&untrusted_ca, &ca), (&ca, &untrusted_ca)] {
        let error = call(trusted, signer).await.unwrap_err();
        assert!(matches!(error, Error::Connection { .. }), "{error:?}");
    }
}
