//! `skewbridge-etcd` against a real etcd.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use skewbridge_e2e::{Etcd, EtcdTls};
use skewbridge_etcd::{Client, Error, Event, LeaseId, Revision, Watch};
use skewbridge_testkit::{Ca, Leaf, ScratchDir, eventually};
use tokio::time::timeout;

/// For the start of etcd or the end of a lease, on a loaded machine.
const READY_TIMEOUT: Duration = Duration::from_mins(1);

fn client(address: SocketAddr) -> Client {
    let endpoint = format!("http://{address}").parse().unwrap();
    Client::new(vec![endpoint], None).unwrap()
}

async fn wait_until_ready(client: &Client) {
    eventually("etcd answers", READY_TIMEOUT, async || {
        client.get(b"/").await.is_ok()
    })
    .await;
}

async fn start_etcd() -> (ScratchDir, Etcd, Client) {
    let dir = ScratchDir::new();
    let etcd = Etcd::start(dir.path());
    let client = client(etcd.address);
    wait_until_ready(&client).await;
    (dir, etcd, client)
}

async fn next(watch: &mut Watch) -> Vec<Event> {
    timeout(READY_TIMEOUT, watch.next()).await.unwrap().unwrap()
}

#[tokio::test]
async fn keys_are_put_listed_and_deleted() {
    let (_dir, _etcd, client) = start_etcd().await;
    let before = client.put(b"/a/0", b"other", None).await.unwrap();
    let first = client.put(b"/p/1", b"one", None).await.unwrap();
    let second = client.put(b"/p/2", b"", None).await.unwrap();
    assert_eq!((first, second), (before.next(), before.next().next()));

    let listing = client.range_prefix(b"/p/").await.unwrap();
    assert_eq!(listing.revision, second);
    let read: Vec<_> = listing
        .kvs
        .iter()
        .map(|kv| (&kv.key[..], &kv.value[..], kv.mod_revision, kv.lease))
        .collect();
    assert_eq!(
        read,
        [
            (&b"/p/1"[..], &b"one"[..], first, None),
            (&b"/p/2"[..], &b""[..], second, None)
        ]
    );
    assert_eq!(client.range_prefix(b"").await.unwrap().kvs.len(), 3);
    assert_eq!(client.get(b"/p/1").await.unwrap().unwrap().value, "one");

    assert!(!client.delete_if_unchanged(b"/p/1", second).await.unwrap());
    assert!(client.get(b"/p/1").await.unwrap().is_some());
    assert!(client.delete_if_unchanged(b"/p/1", first).await.unwrap());
    assert_eq!(client.get(b"/p/1").await.unwrap(), None);
    assert!(client.delete(b"/p/2").await.unwrap());
    assert!(!client.delete(b"/p/2").await.unwrap());
}

#[tokio::test]
async fn an_error_contains_the_message_of_etcd() {
    let (_dir, _etcd, client) = start_etcd().await;
    let error = client.put(b"", b"v", None).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("key is not provided (INVALID_ARGUMENT)"),
        "{error}"
    );
    let unknown = Some(LeaseId::new(12));
    let error = client.put(b"k", b"v", unknown).await.unwrap_err();
    assert!(error.is_lease_not_found(), "{error}");
    // Larger than etcd accepts, and than one window.
    let error = client.put(b"k", &vec![1; 3 << 20], None).await.unwrap_err();
    assert!(matches!(error, Error::Status { .. }), "{error}");
    let large = vec![1; 1 << 20];
    client.put(b"k", &large, None).await.unwrap();
    assert_eq!(client.get(b"k").await.unwrap().unwrap().value, large);
}

#[tokio::test]
async fn a_key_exists_while_its_lease_is_kept_alive() {
    let (_dir, _etcd, client) = start_etcd().await;
    let lease = client.grant(Duration::from_secs(2)).await.unwrap();
    let at = client.put(b"/p/a", b"1", Some(lease.id)).await.unwrap();
    let put = client.get(b"/p/a").await.unwrap().unwrap();
    assert_eq!(put.lease, Some(lease.id));
    let mut watch = client.watch_prefix(b"/p/", at.next()).await.unwrap();
    let kept = client.keep_alive(lease.id).await.unwrap();
    assert_eq!(kept, Some(lease.ttl));

    let events = next(&mut watch).await;
    assert!(matches!(&events[..], [Event::Delete { key, .. }] if key == "/p/a"));
    assert_eq!(client.keep_alive(lease.id).await.unwrap(), None);
    client.revoke(lease.id).await.unwrap();

    let lease = client.grant(Duration::from_mins(10)).await.unwrap();
    client.put(b"/p/b", b"1", Some(lease.id)).await.unwrap();
    client.revoke(lease.id).await.unwrap();
    assert_eq!(client.get(b"/p/b").await.unwrap(), None);
}

#[tokio::test]
async fn a_watch_from_a_past_revision_misses_nothing() {
    let (_dir, _etcd, client) = start_etcd().await;
    let first = client.put(b"/p/0", b"0", None).await.unwrap();
    for number in 1..100 {
        let key = format!("/p/{number}");
        client.put(key.as_bytes(), b"x", None).await.unwrap();
    }
    client.put(b"/q", b"x", None).await.unwrap();
    let mut watch = client.watch_prefix(b"/p/", first).await.unwrap();
    client.delete(b"/p/0").await.unwrap();
    let mut events = Vec::new();
    while events.len() < 101 {
        events.extend(next(&mut watch).await);
    }
    for (number, event) in events[..100].iter().enumerate() {
        let expected = format!("/p/{number}");
        assert!(
            matches!(event, Event::Put(kv) if kv.key == expected),
            "{event:?}"
        );
    }
    assert!(matches!(&events[100], Event::Delete { key, .. } if key == "/p/0"));
    assert!(watch.last_revision() > first);
}

#[tokio::test]
async fn a_watch_catches_up_over_several_messages() {
    let (_dir, _etcd, client) = start_etcd().await;
    let value = vec![7; 1 << 20];
    let first = client.put(b"/p/0", &value, None).await.unwrap();
    for _ in 1..8 {
        client.put(b"/p/0", &value, None).await.unwrap();
    }
    let mut watch = client.watch_prefix(b"/p/", first).await.unwrap();
    let mut seen = 0;
    while seen < 8 {
        seen += next(&mut watch).await.len();
    }
    assert_eq!(watch.last_revision(), Revision::new(first.get() + 7));
}

#[tokio::test]
async fn a_restart_ends_the_watch_and_loses_no_events() {
    let (_dir, mut etcd, client) = start_etcd().await;
    let put = client.put(b"/p/a", b"1", None).await.unwrap();
    let mut watch = client.watch_prefix(b"/p/", put.next()).await.unwrap();
    etcd.restart();
    let error = timeout(READY_TIMEOUT, watch.next())
        .await
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::Connection { .. }), "{error}");

    wait_until_ready(&client).await;
    let listing = client.range_prefix(b"/p/").await.unwrap();
    assert_eq!(listing.kvs.len(), 1);
    assert!(listing.revision >= put);
    let from = watch.last_revision().next();
    let mut watch = client.watch_prefix(b"/p/", from).await.unwrap();
    client.put(b"/p/b", b"2", None).await.unwrap();
    let events = next(&mut watch).await;
    assert!(matches!(&events[..], [Event::Put(kv)] if kv.key == "/p/b"));
}

#[tokio::test]
async fn etcd_accepts_the_ping_rate() {
    let (_dir, _etcd, client) = start_etcd().await;
    let put = client.put(b"/p/a", b"1", None).await.unwrap();
    let mut watch = client.watch_prefix(b"/p/", put.next()).await.unwrap();
    // Five pings; etcd tolerates two that come too early. The test asserts that nothing
    // happens during this time.
    let quiet = timeout(Duration::from_secs(32), watch.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    client.put(b"/p/b", b"1", None).await.unwrap();
    assert_eq!(next(&mut watch).await.len(), 1);
}

#[tokio::test]
async fn client_certificates_are_accepted() {
    let dir = ScratchDir::new();
    let ca = Ca::new("etcd-ca");
    let serving = ca.server(&["127.0.0.1"]);
    let tls = EtcdTls {
        ca: dir.write("ca.crt", ca.pem()),
        certificate: dir.write("server.crt", &serving.cert_pem),
        key: dir.write("server.key", &serving.key_pem),
    };
    let etcd = Etcd::start_tls(dir.path(), &tls);
    let client = |identity: Option<Leaf>| {
        let endpoint = format!("https://{}", etcd.address).parse().unwrap();
        Client::new(vec![endpoint], Some(tls_of(&ca, identity))).unwrap()
    };
    let known = client(Some(ca.client("kube-apiserver-etcd-client", &[])));
    wait_until_ready(&known).await;
    let put = known.put(b"/p/a", b"1", None).await.unwrap();
    let mut watch = known.watch_prefix(b"/p/", put).await.unwrap();
    assert_eq!(next(&mut watch).await.len(), 1);
    let lease = known.grant(Duration::from_secs(30)).await.unwrap();
    assert!(known.keep_alive(lease.id).await.unwrap().is_some());

    let anonymous = Ca::new("untrusted").client("kube-apiserver-etcd-client", &[]);
    for identity in [None, Some(anonymous)] {
        let error = client(identity).get(b"/p/a").await.unwrap_err();
        assert!(matches!(error, Error::Connection { .. }), "{error}");
    }
}

fn tls_of(ca: &Ca, identity: Option<Leaf>) -> Arc<ClientConfig> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let builder = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(ca.roots());
    Arc::new(match identity {
        Some(leaf) => builder
            .with_client_auth_cert(leaf.chain_der, leaf.key_der)
            .unwrap(),
        None => builder.with_no_client_auth(),
    })
}
