//! Signature Version 4 against its public test suite, and against a verifier.

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use skewbridge_sigv4::canonical::{PathStyle, canonical_request, hex_digest};
use skewbridge_sigv4::{Credentials, Payload, SignedHeaders, Signer, signature, timestamp};
use skewbridge_sigv4::{Request, Secret};

use crate::sigv4_suite::{SUITE, Vector};

/// 20150830T123600Z
const SIGNED_AT_SECONDS: u64 = 1_440_938_160;

const TOKEN: &str = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA==";

pub(crate) fn credentials(token: Option<&str>) -> Credentials {
    Credentials {
        access_key_id: "AKIDEXAMPLE".to_owned(),
        secret_access_key: Secret::new("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
        session_token: token.map(Secret::new),
        expires: None,
    }
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn request<'a>(vector: &'a Vector, method: &'a Method, headers: &'a HeaderMap) -> Request<'a> {
    let (path, query) = match vector.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (vector.target, None),
    };
    Request {
        method,
        scheme: "https",
        authority: "example.amazonaws.com",
        path,
        query,
        headers,
    }
}

#[test]
fn the_canonical_requests_and_signatures_of_the_public_suite_are_reproduced() {
    assert_eq!(timestamp(SIGNED_AT_SECONDS), "20150830T123600Z");
    let signer = Signer {
        headers: SignedHeaders::All,
        content_header: false,
        ..Signer::new("us-east-1", "service")
    };
    for vector in SUITE {
        let method = vector.method.parse().unwrap();
        let credentials = credentials(vector.token.then_some(TOKEN));
        let sent = headers(vector.headers);
        let request = request(vector, &method, &sent);
        let payload = Payload::Bytes(vector.body.as_bytes());
        let to_set = signer
            .sign(&request, payload, &credentials, SIGNED_AT_SECONDS)
            .unwrap();

        let mut with = sent.clone();
        for (name, value) in &to_set[..to_set.len() - 1] {
            with.insert(name, value.clone());
        }
        let request = Request {
            headers: &with,
            ..request
        };
        let hash = hex_digest(vector.body.as_bytes());
        let canonical = canonical_request(&request, PathStyle::Standard, |_| true, &hash);
        let text = String::from_utf8_lossy(&canonical.text);
        let name = vector.name;
        assert_eq!(
            hex_digest(&canonical.text),
            vector.canonical,
            "{name}: {text}"
        );
        let (last, authorization) = to_set.last().unwrap();
        assert_eq!(last, "authorization");
        assert_eq!(
            authorization,
            &format!(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                 SignedHeaders={}, Signature={}",
                canonical.signed_headers, vector.signature
            ),
            "{name}"
        );
    }
}

#[test]
fn a_session_token_is_sent_and_signed_and_not_shown() {
    let signer = Signer::new("us-east-1", "service");
    let none = HeaderMap::new();
    let method = Method::GET;
    let request = request(&SUITE[0], &method, &none);
    let credentials = credentials(Some("t0ken"));
    let to_set = signer.sign(
        &request,
        Payload::Bytes(b""),
        &credentials,
        SIGNED_AT_SECONDS,
    );
    let to_set = to_set.unwrap();
    let names: Vec<_> = to_set.iter().map(|it| it.0.as_str()).collect();
    assert_eq!(
        names,
        [
            "x-amz-date",
            "x-amz-security-token",
            "x-amz-content-sha256",
            "authorization"
        ]
    );
    let shown = format!("{to_set:?}{credentials:?}");
    assert!(
        !shown.contains("t0ken") && !shown.contains("wJalr"),
        "{shown}"
    );
    let authorization = to_set[3].1.to_str().unwrap();
    assert!(authorization.contains("host;x-amz-content-sha256;x-amz-date;x-amz-security-token"));
}

#[test]
fn s3_paths_are_encoded_once_and_others_twice() {
    let none = HeaderMap::new();
    let second = |style, path| {
        let request = Request {
            method: &Method::GET,
            scheme: "https",
            authority: "k",
            path,
            query: Some("b=%2B&a+c=%20&a"),
            headers: &none,
        };
        let canonical = canonical_request(&request, style, |_| true, "");
        let text = String::from_utf8(canonical.text).unwrap();
        let mut lines = text.lines().skip(1).map(str::to_owned);
        let path = lines.next().unwrap();
        assert_eq!(lines.next().unwrap(), "a=&a%20c=%20&b=%2B");
        path
    };
    assert_eq!(second(PathStyle::Standard, "/a%20b//c"), "/a%2520b/c");
    assert_eq!(second(PathStyle::S3, "/a%20b//../c"), "/a%20b//../c");
    assert_eq!(second(PathStyle::S3, ""), "/");
}

/// A verifier that has only the received request and the secret.
pub(crate) fn has_valid_signature(
    request: &Request<'_>,
    body: &[u8],
    secret: &Secret,
) -> Option<()> {
    let text = request.headers.get("authorization")?.to_str().ok()?;
    let text = text.strip_prefix("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")?;
    let (scope, rest) = text.split_once(", SignedHeaders=")?;
    let (signed, given) = rest.split_once(", Signature=")?;
    let at = request.headers.get("x-amz-date")?.to_str().ok()?;
    let hash = match request.headers.get("x-amz-content-sha256")?.to_str().ok()? {
        "UNSIGNED-PAYLOAD" => "UNSIGNED-PAYLOAD".to_owned(),
        _ => hex_digest(body),
    };
    let is_signed = |name: &HeaderName| signed.split(';').any(|it| name == it);
    let canonical = canonical_request(request, PathStyle::Standard, is_signed, &hash);
    let expected = signature(secret, at, scope, &canonical.text).ok()?;
    (expected == given && canonical.signed_headers == signed).then_some(())
}

fn of(headers: &HeaderMap) -> Request<'_> {
    Request {
        method: &Method::POST,
        scheme: "https",
        authority: "k:6443",
        path: "/api/v1/pods",
        query: Some("labelSelector=a%3Db&limit=5"),
        headers,
    }
}

#[test]
fn a_verifier_accepts_the_signed_request_and_no_altered_one() {
    let credentials = credentials(Some("t0ken"));
    let secret = &credentials.secret_access_key;
    let signer = Signer::new("eu-west-1", "execute-api");
    let mut sent = headers(&[
        ("content-type", "application/json"),
        ("impersonate-user", "bob"),
        ("accept", "application/json"),
    ]);
    let body = b"{}";
    let to_set = signer.sign(
        &of(&sent),
        Payload::Bytes(body),
        &credentials,
        SIGNED_AT_SECONDS,
    );
    for (name, value) in to_set.unwrap() {
        sent.insert(name, value);
    }
    let good = of(&sent);
    assert!(has_valid_signature(&good, body, secret).is_some());
    assert!(has_valid_signature(&good, b"{ }", secret).is_none());
    assert!(has_valid_signature(&good, body, &Secret::new("other")).is_none());
    let altered = [
        Request {
            method: &Method::PUT,
            ..good
        },
        Request {
            authority: "other:6443",
            ..good
        },
        Request {
            path: "/api/v1/secrets",
            ..good
        },
        Request {
            query: None,
            ..good
        },
        Request {
            query: Some("labelSelector=a%3Db&limit=6"),
            ..good
        },
    ];
    for request in altered {
        assert!(
            has_valid_signature(&request, body, secret).is_none(),
            "{request:?}"
        );
    }
    for name in [
        "content-type",
        "impersonate-user",
        "x-amz-date",
        "x-amz-security-token",
    ] {
        let mut headers = sent.clone();
        headers.insert(name, HeaderValue::from_static("20150830T123601Z"));
        assert!(
            has_valid_signature(&of(&headers), body, secret).is_none(),
            "{name}"
        );
        headers.remove(name);
        assert!(
            has_valid_signature(&of(&headers), body, secret).is_none(),
            "{name}"
        );
    }
    // Not signed: proxies may change it.
    let mut headers = sent.clone();
    headers.remove("accept");
    assert!(has_valid_signature(&of(&headers), body, secret).is_some());
}

#[test]
fn an_unsigned_payload_is_marked_in_a_signed_header() {
    let credentials = credentials(None);
    let secret = &credentials.secret_access_key;
    let mut sent = HeaderMap::new();
    let method = Method::POST;
    let signer = Signer::new("eu-west-1", "execute-api");
    let to_set = signer.sign(
        &request(&SUITE[0], &method, &sent),
        Payload::Unsigned,
        &credentials,
        SIGNED_AT_SECONDS,
    );
    for (name, value) in to_set.unwrap() {
        sent.insert(name, value);
    }
    let good = request(&SUITE[0], &method, &sent);
    assert!(has_valid_signature(&good, b"any", secret).is_some());
    let mut forged = sent.clone();
    let hash = HeaderValue::from_str(&hex_digest(b"any")).unwrap();
    forged.insert("x-amz-content-sha256", hash);
    let forged = request(&SUITE[0], &method, &forged);
    assert!(has_valid_signature(&forged, b"any", secret).is_none());
}
