//! A front proxy that verifies Signature Version 4 of received requests.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Version};
use skewbridge_sigv4::Request;
use skewbridge_sigv4::{Payload, Signer};
use skewbridge_testkit::{ApiServer, Ca, Options, RecordedRequest, Reply, TlsClient};

use crate::sigv4::{credentials, has_valid_signature};

/// Whether the signature matches the received request.
fn is_accepted(seen: &RecordedRequest) -> bool {
    let mut headers = HeaderMap::new();
    for (name, value) in &seen.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    let (path, query) = match seen.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (seen.target.as_str(), None),
    };
    let request = Request {
        method: &seen.method,
        scheme: "https",
        authority: seen.authority.as_deref().unwrap_or_default(),
        path,
        query,
        headers: &headers,
    };
    let secret = credentials(None).secret_access_key;
    has_valid_signature(&request, &seen.body, &secret).is_some()
}

/// A request: method, target, headers and body.
type Message = (Method, &'static str, HeaderMap, &'static str);

fn signed(
    method: Method,
    target: &'static str,
    body: &'static str,
    payload: Payload<'_>,
) -> Message {
    let mut headers = HeaderMap::new();
    headers.insert("accept", HeaderValue::from_static("application/json"));
    if !body.is_empty() {
        headers.insert("content-type", HeaderValue::from_static("application/json"));
    }
    let uri = format!("https://localhost{target}").parse().unwrap();
    let request = Request::of("https", &method, &uri, &headers).unwrap();
    let signer = Signer::new("eu-west-1", "execute-api");
    let to_set = signer.sign(
        &request,
        payload,
        &credentials(Some("t0ken")),
        1_440_938_160,
    );
    for (name, value) in to_set.unwrap() {
        headers.insert(name, value);
    }
    (method, target, headers, body)
}

async fn status(server: &ApiServer, ca: &Ca, version: Version, message: &Message) -> u16 {
    let (method, target, headers, body) = message;
    let client = TlsClient::new(ca);
    if version == Version::HTTP_2 {
        let h2 = client.http2(server.addr()).await.unwrap();
        let mut request = http::Request::new(());
        *request.method_mut() = method.clone();
        *request.uri_mut() = format!("https://localhost{target}").parse().unwrap();
        *request.headers_mut() = headers.clone();
        return h2.request(request, *body).await.unwrap().status;
    }
    let mut wire = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
    for (name, value) in headers {
        write!(wire, "{name}: {}\r\n", value.to_str().unwrap()).unwrap();
    }
    write!(wire, "Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut h1 = client.http1(server.addr()).await.unwrap();
    h1.send(wire).await.unwrap();
    h1.read_response().await.unwrap().status
}

#[tokio::test]
async fn a_front_proxy_accepts_the_signed_request_and_no_other() {
    let ca = Ca::new("front-proxy");
    let options = Options::new(ca.server(&["localhost", "127.0.0.1"])).alpn(&["h2", "http/1.1"]);
    let server = ApiServer::start(options, |seen| {
        let code = if is_accepted(&seen) { 200 } else { 401 };
        Reply::json("{}").status(code)
    })
    .await;
    let pods = "/api/v1/namespaces/a%20b/pods?labelSelector=a%3Db,c&limit=5&watch";
    let get = signed(Method::GET, pods, "", Payload::Bytes(b""));
    let post = signed(Method::POST, pods, "{}", Payload::Bytes(b"{}"));
    let unsigned = signed(Method::POST, pods, "{}", Payload::Unsigned);
    for version in [Version::HTTP_11, Version::HTTP_2] {
        for message in [&get, &post, &unsigned] {
            assert_eq!(status(&server, &ca, version, message).await, 200);
            let mut altered = message.clone();
            altered.0 = Method::DELETE;
            assert_eq!(status(&server, &ca, version, &altered).await, 401);
            let mut altered = message.clone();
            altered.1 = "/api/v1/namespaces/a%20b/pods?limit=5&watch";
            assert_eq!(status(&server, &ca, version, &altered).await, 401);
            let mut altered = message.clone();
            let other = HeaderValue::from_static("other");
            altered.2.insert("x-amz-security-token", other);
            assert_eq!(status(&server, &ca, version, &altered).await, 401);
            let mut none = message.clone();
            none.2.remove("authorization");
            assert_eq!(status(&server, &ca, version, &none).await, 401);
        }
        let mut altered = post.clone();
        altered.3 = "[]";
        assert_eq!(status(&server, &ca, version, &altered).await, 401);
        // Only the head was signed.
        let mut altered = unsigned.clone();
        altered.3 = "[]";
        assert_eq!(status(&server, &ca, version, &altered).await, 200);
    }
}
