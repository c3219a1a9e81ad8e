//! Failed authentications of one source: limited, and only for those that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use skewbridge_gateway::Handle;
use skewbridge_testkit::{ApiServer, H1Client, Options, Reply, Response, TlsClient};

use crate::bed::{self, Bed};
use crate::plain;
use crate::scripted::{requests, status};

/// One failure a minute: no second one is allowed while a test runs.
const LIMIT: u32 = 1;

struct Scene {
    bed: Bed,
    bridge: Handle,
    upstream: ApiServer,
    /// Upstream refuses all tokens.
    revoked: Arc<AtomicBool>,
}

async fn scene() -> Scene {
    limited(LIMIT).await
}

async fn limited(limit: u32) -> Scene {
    let bed = Bed::new();
    let revoked = Arc::new(AtomicBool::new(false));
    let refuses = revoked.clone();
    let upstream = ApiServer::start(Options::new(bed.upstream.clone()), move |seen| {
        match seen.header("authorization") {
            Some(_) if refuses.load(Ordering::Relaxed) => Reply::new(401),
            None | Some("Bearer good") => Reply::json("{}"),
            Some(token) if token.starts_with("Bearer new-") => Reply::json("{}"),
            _ => Reply::new(401),
        }
    })
    .await;
    let mut config = bed.config(upstream.addr());
    config.limits.max_authentication_failures_per_source = limit;
    let bridge = bed::start(&config);
    Scene {
        bed,
        bridge,
        upstream,
        revoked,
    }
}

impl Scene {
    async fn open(&self, client: &TlsClient) -> H1Client {
        client.http1(self.bridge.address()).await.unwrap()
    }

    async fn anonymous(&self) -> H1Client {
        self.open(&self.bed.client()).await
    }

    async fn counted(&self, name: &str, reason: &str) -> Option<f64> {
        let scrape = plain::scrape(self.bridge.admin_address()).await;
        scrape.value(name, &[("reason", reason)])
    }
}

async fn get(client: &mut H1Client, headers: &str) -> Response {
    let request = format!("GET /api HTTP/1.1\r\nHost: k\r\n{headers}\r\n");
    client.send(request).await.unwrap();
    client.read_response().await.unwrap()
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

#[tokio::test]
async fn guessed_tokens_are_429_and_all_others_pass() {
    let scene = scene().await;
    let good = bearer("good");
    let mut earlier = scene.anonymous().await;
    assert_eq!(get(&mut earlier, &good).await.status, 200);
    let mut guesser = scene.anonymous().await;
    assert_eq!(get(&mut guesser, &bearer("guess")).await.status, 401);
    let asked = requests(&scene.upstream).len();
    let mut guesser = scene.anonymous().await;
    for guess in 0..10 {
        let answer = get(&mut guesser, &bearer(&guess.to_string())).await;
        status(&answer, 429);
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(requests(&scene.upstream).len(), asked, "none went upstream");

    // From the same source: an open connection, a known token, a certificate, no credential.
    assert_eq!(get(&mut earlier, &good).await.status, 200);
    let mut later = scene.anonymous().await;
    assert_eq!(get(&mut later, &good).await.status, 200);
    let mut user = scene.open(&scene.bed.user("alice", &[])).await;
    assert_eq!(get(&mut user, "").await.status, 200);
    let mut anonymous = scene.anonymous().await;
    assert_eq!(get(&mut anonymous, "").await.status, 200);

    let failures = "skewbridge_authentication_failures_total";
    assert_eq!(scene.counted(failures, "token").await, Some(1.0));
    assert_eq!(scene.counted(failures, "certificate").await, Some(0.0));
    let limited = "skewbridge_authentications_limited_total";
    assert_eq!(scene.counted(limited, "token").await, Some(10.0));
}

#[tokio::test]
async fn an_expired_token_on_an_authenticated_connection_is_not_limited() {
    let scene = scene().await;
    let mut client = scene.anonymous().await;
    assert_eq!(get(&mut client, &bearer("good")).await.status, 200);
    for _ in 0..10 {
        assert_eq!(get(&mut client, &bearer("expired")).await.status, 401);
    }
    let mut other = scene.anonymous().await;
    assert_eq!(get(&mut other, &bearer("other")).await.status, 401);
    let failures = "skewbridge_authentication_failures_total";
    assert_eq!(scene.counted(failures, "token").await, Some(11.0));
}

#[tokio::test]
async fn refused_certificates_are_limited_by_themselves() {
    let scene = scene().await;
    let unknown = skewbridge_testkit::Ca::new("unknown").client("alice", &[]);
    let mut refused = scene.open(&scene.bed.client().identity(&unknown)).await;
    status(&get(&mut refused, "").await, 401);
    status(&get(&mut refused, "").await, 429);
    // A token counts apart from the certificate.
    assert_eq!(get(&mut refused, &bearer("good")).await.status, 200);
    let failures = "skewbridge_authentication_failures_total";
    assert_eq!(scene.counted(failures, "certificate").await, Some(1.0));
}

/// Behind NAT or a load balancer, after a restart of the bridge: all tokens are new.
#[tokio::test]
async fn new_tokens_pass_while_others_of_the_same_source_fail_all_the_time() {
    // One of two is for first tries, and no other one while a test runs.
    let scene = limited(2).await;
    let mut guesser = scene.anonymous().await;
    let flood = async |guesser: &mut H1Client| {
        for guess in 0..20 {
            let answer = get(guesser, &bearer(&format!("guess-{guess}"))).await;
            if answer.status == 429 {
                return;
            }
            assert_eq!(answer.status, 401);
        }
        panic!("guesses are not limited");
    };
    for client in 0..10 {
        flood(&mut guesser).await;
        let mut new = scene.anonymous().await;
        let answer = get(&mut new, &bearer(&format!("new-{client}"))).await;
        assert_eq!(answer.status, 200);
        // A token that was refused is no first try on another connection either.
        let mut again = scene.anonymous().await;
        status(&get(&mut again, &bearer("guess-0")).await, 429);
    }
}

#[tokio::test]
async fn a_token_that_is_refused_after_it_was_accepted_is_limited_again() {
    let scene = scene().await;
    let mut client = scene.anonymous().await;
    assert_eq!(get(&mut client, &bearer("new-a")).await.status, 200);
    let mut guesser = scene.anonymous().await;
    assert_eq!(get(&mut guesser, &bearer("guess")).await.status, 401);
    let mut later = scene.anonymous().await;
    assert_eq!(get(&mut later, &bearer("new-a")).await.status, 200);
    scene.revoked.store(true, Ordering::Relaxed);
    let mut later = scene.anonymous().await;
    assert_eq!(get(&mut later, &bearer("new-a")).await.status, 401);
    let mut later = scene.anonymous().await;
    status(&get(&mut later, &bearer("new-a")).await, 429);
}

async fn get_of_workload(client: &mut H1Client, token: &str) -> u16 {
    let path = "/api/v1/namespaces/a/services/b/proxy/";
    let token = bearer(token);
    let request = format!("GET {path} HTTP/1.1\r\nHost: k\r\n{token}\r\n");
    client.send(request).await.unwrap();
    client.read_response().await.unwrap().status
}

#[tokio::test]
async fn what_a_workload_answers_is_no_failed_authentication() {
    let scene = scene().await;
    let mut client = scene.anonymous().await;
    assert_eq!(get(&mut client, &bearer("good")).await.status, 200);
    for _ in 0..10 {
        let status = get_of_workload(&mut client, "the-workload-refuses-it").await;
        assert_eq!(status, 401);
    }
    let failures = "skewbridge_authentication_failures_total";
    assert_eq!(scene.counted(failures, "token").await, Some(0.0));
}

#[tokio::test]
async fn the_path_of_a_workload_is_no_way_around_the_limit() {
    let scene = scene().await;
    let mut client = scene.anonymous().await;
    assert_eq!(get_of_workload(&mut client, "guess").await, 401);
    assert_eq!(get_of_workload(&mut client, "another").await, 429);
}
