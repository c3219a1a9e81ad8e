//! The limit on failed authentications of one source address: it rejects only requests whose
//! credential is not known to be good.

use std::sync::atomic::Ordering;

use skewbridge_testkit::H1Client;

use crate::support::failed_authentications::{bearer, fixture, fixture_with_limit, get};
use crate::support::scripted_upstream::{assert_json_status, client_requests};

#[tokio::test]
async fn guessed_tokens_are_answered_with_429_and_other_requests_pass() {
    let fixture = fixture().await;
    let good = bearer("good");
    let mut earlier = fixture.anonymous().await;
    assert_eq!(get(&mut earlier, &good).await.status, 200);
    let mut attacker = fixture.anonymous().await;
    assert_eq!(get(&mut attacker, &bearer("guess")).await.status, 401);
    let request_count = client_requests(&fixture.upstream).len();
    let mut attacker = fixture.anonymous().await;
    for guess in 0..10 {
        let answer = get(&mut attacker, &bearer(&guess.to_string())).await;
        assert_json_status(&answer, 429);
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(
        client_requests(&fixture.upstream).len(),
        request_count,
        "limited requests do not reach upstream"
    );

    // From the same source: an open connection, a known token, a certificate, no credential.
    assert_eq!(get(&mut earlier, &good).await.status, 200);
    let mut later = fixture.anonymous().await;
    assert_eq!(get(&mut later, &good).await.status, 200);
    let mut user = fixture.open(&fixture.pki.user("alice", &[])).await;
    assert_eq!(get(&mut user, "").await.status, 200);
    let mut anonymous = fixture.anonymous().await;
    assert_eq!(get(&mut anonymous, "").await.status, 200);

    let failures = "skewbridge_authentication_failures_total";
    assert_eq!(fixture.metric_value(failures, "token").await, Some(1.0));
    assert_eq!(
        fixture.metric_value(failures, "certificate").await,
        Some(0.0)
    );
    let limited = "skewbridge_authentications_limited_total";
    assert_eq!(fixture.metric_value(limited, "token").await, Some(10.0));
}

#[tokio::test]
async fn an_expired_token_on_an_authenticated_connection_is_not_limited() {
    let fixture = fixture().await;
    let mut client = fixture.anonymous().await;
    assert_eq!(get(&mut client, &bearer("good")).await.status, 200);
    for _ in 0..10 {
        assert_eq!(get(&mut client, &bearer("expired")).await.status, 401);
    }
    let mut other = fixture.anonymous().await;
    assert_eq!(get(&mut other, &bearer("other")).await.status, 401);
    let failures = "skewbridge_authentication_failures_total";
    assert_eq!(fixture.metric_value(failures, "token").await, Some(11.0));
}

#[tokio::test]
async fn rejected_certificates_have_their_own_limit() {
    let fixture = fixture().await;
    let unknown = skewbridge_testkit::Ca::new("unknown").client("alice", &[]);
    let mut refused = fixture.open(&fixture.pki.client().identity(&unknown)).await;
    assert_json_status(&get(&mut refused, "").await, 401);
    assert_json_status(&get(&mut refused, "").await, 429);
    // Tokens and certificates are counted separately.
    assert_eq!(get(&mut refused, &bearer("good")).await.status, 200);
    let failures = "skewbridge_authentication_failures_total";
    assert_eq!(
        fixture.metric_value(failures, "certificate").await,
        Some(1.0)
    );
}

/// Behind NAT or a load balancer all tokens are new after a restart of the bridge.
#[tokio::test]
async fn new_tokens_pass_while_other_tokens_of_the_same_source_keep_failing() {
    // Of two failures a minute, one is reserved for tokens that have not been tried before.
    let fixture = fixture_with_limit(2).await;
    let mut attacker = fixture.anonymous().await;
    let flood = async |attacker: &mut H1Client| {
        for guess in 0..20 {
            let answer = get(attacker, &bearer(&format!("guess-{guess}"))).await;
            if answer.status == 429 {
                return;
            }
            assert_eq!(answer.status, 401);
        }
        panic!("guesses are not limited");
    };
    for client in 0..10 {
        flood(&mut attacker).await;
        let mut new = fixture.anonymous().await;
        let answer = get(&mut new, &bearer(&format!("new-{client}"))).await;
        assert_eq!(answer.status, 200);
        // A rejected token is not a first try on another connection either.
        let mut again = fixture.anonymous().await;
        assert_json_status(&get(&mut again, &bearer("guess-0")).await, 429);
    }
}

#[tokio::test]
async fn a_revoked_token_is_limited_again() {
    let fixture = fixture().await;
    let mut client = fixture.anonymous().await;
    assert_eq!(get(&mut client, &bearer("new-a")).await.status, 200);
    let mut attacker = fixture.anonymous().await;
    assert_eq!(get(&mut attacker, &bearer("guess")).await.status, 401);
    let mut later = fixture.anonymous().await;
    assert_eq!(get(&mut later, &bearer("new-a")).await.status, 200);
    fixture.revoked.store(true, Ordering::Relaxed);
    let mut later = fixture.anonymous().await;
    assert_eq!(get(&mut later, &bearer("new-a")).await.status, 401);
    let mut later = fixture.anonymous().await;
    assert_json_status(&get(&mut later, &bearer("new-a")).await, 429);
}

async fn get_workload(client: &mut H1Client, token: &str) -> u16 {
    let path = "/api/v1/namespaces/a/services/b/proxy/";
    let token = bearer(token);
    let request = format!("GET {path} HTTP/1.1\r\nHost: k\r\n{token}\r\n");
    client.send(request).await.unwrap();
    client.read_response().await.unwrap().status
}

#[tokio::test]
async fn a_401_of_a_workload_is_not_a_failed_authentication() {
    let fixture = fixture().await;
    let mut client = fixture.anonymous().await;
    assert_eq!(get(&mut client, &bearer("good")).await.status, 200);
    for _ in 0..10 {
        let status = get_workload(&mut client, "the-workload-refuses-it").await;
        assert_eq!(status, 401);
    }
    let failures = "skewbridge_authentication_failures_total";
    assert_eq!(fixture.metric_value(failures, "token").await, Some(0.0));
}

#[tokio::test]
async fn the_limit_also_holds_for_proxy_paths() {
    let fixture = fixture().await;
    let mut client = fixture.anonymous().await;
    assert_eq!(get_workload(&mut client, "guess").await, 401);
    assert_eq!(get_workload(&mut client, "another").await, 429);
}
