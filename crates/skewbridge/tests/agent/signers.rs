//! What signers make of a request.

use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue};
use skewbridge_signatures::Request;
use skewbridge_signatures::http_signature::{HasBody, Verifier, VerifyingKey, Window};
use skewbridge_testkit::Seen;

use crate::rig::{Bench, Client, Plugin, send};

fn headers_of(seen: &Seen) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in &seen.headers {
        headers.append(
            HeaderName::try_from(name).unwrap(),
            HeaderValue::try_from(value).unwrap(),
        );
    }
    headers
}

#[tokio::test]
async fn several_signers_have_their_turn_in_order() {
    let bench = Bench::new();
    let server = bench.server().await;
    let client = Client::start(&bench);
    bench.dir.write("badge", "X-Badge: 4711\n");
    bench
        .dir
        .write("secret", "0123456789abcdef0123456789abcdef");
    let host = server.addr().to_string();
    let info = bench.info(&format!("https://{host}"), Some(&client.lock));
    let plugin = Plugin::of(bench.agent(
        &info,
        &[
            "--signer=headers",
            "--headers-file=badge",
            "--signer=http-signature",
            "--http-signature-secret=secret",
            "--http-signature-key-id=laptop",
            "--http-signature-header=x-badge",
        ],
    ));
    let request = "POST /api/v1/namespaces?dryRun=All HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
                   Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
    let answer = send(&plugin.printed, request).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = &server.requests()[0];
    assert_eq!(seen.header("x-badge"), Some("4711"));
    assert!(seen.header("signature-input").unwrap().contains("x-badge"));
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let verifier = Verifier {
        authorities: vec![host.clone()],
        window: Window {
            max_age: 300,
            skew: 60,
            since: 0,
        },
    };
    let key = VerifyingKey::hmac(b"0123456789abcdef0123456789abcdef").unwrap();
    let uri = format!("https://{host}{}", seen.target).parse().unwrap();
    let headers = headers_of(seen);
    let signed = Request::of("https", &seen.method, &uri, &headers).unwrap();
    let judged = verifier
        .verify(&signed, HasBody::Yes, now, |id| {
            (id == "laptop").then_some(&key)
        })
        .unwrap();
    assert!(judged.digest.unwrap().matches(&seen.body));
}

#[tokio::test]
async fn a_request_is_signed_for_aws() {
    let bench = Bench::new();
    let server = bench.server().await;
    let client = Client::start(&bench);
    let info = bench.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let mut command = bench.agent(&info, &["--signer=sigv4", "--sigv4-region=eu-west-1"]);
    command
        .env("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
        .env("AWS_SECRET_ACCESS_KEY", "hunter2");
    let plugin = Plugin::of(command);
    plugin.get("/api").await.unwrap();
    let seen = &server.requests()[0];
    let authorization = seen.header("authorization").unwrap();
    assert!(
        authorization.starts_with("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/"),
        "{authorization}"
    );
    assert!(authorization.contains("/eu-west-1/execute-api/aws4_request"));
    assert!(seen.header("x-amz-date").is_some());
}

#[tokio::test]
async fn a_signer_that_cannot_sign_is_named_in_the_answer() {
    let bench = Bench::new();
    let server = bench.server().await;
    let client = Client::start(&bench);
    let info = bench.info(&format!("https://{}", server.addr()), Some(&client.lock));
    let plugin = Plugin::of(bench.agent(&info, &["--signer=headers", "--headers-file=gone"]));
    let answer = plugin.get("/").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 500"), "{answer}");
    assert!(answer.contains("headers: gone: No such file"), "{answer}");
    assert!(server.requests().is_empty());
}
