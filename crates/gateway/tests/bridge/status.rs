//! The status page: what its responses contain, who gets them, and how many viewers there may be.

use serde_json::Value;
use skewbridge_testkit::{ApiServer, Options, Reply, TEST_TIMEOUT, TlsClient, eventually};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::balancer;
use crate::support::admin_client::{get, request};
use crate::support::pki::{PkiFixture, start};
use crate::support::secure_admin_port::{
    ACCESS_REVIEWS, Reviews, SecureAdminFixture, body, fixture as secure_fixture,
    get as get_securely, message,
};
use crate::support::self_test_responses;

/// The event streams that a bridge has at most.
const MAX_VIEWERS: usize = 16;

async fn upstream(pki: &PkiFixture) -> ApiServer {
    ApiServer::start(
        Options::new(pki.upstream.clone()),
        move |recorded| match recorded.path() {
            "/readyz" => Reply::new(200).body("ok"),
            "/version" => Reply::json(
                r#"{"gitVersion":"v1.36.4","emulationMajor":"1","emulationMinor":"35"}"#,
            ),
            _ => self_test_responses::passing_response(&recorded)
                .unwrap_or_else(|| Reply::json("{}")),
        },
    )
    .await
}

#[tokio::test]
async fn the_page_and_its_json_show_the_server_and_the_requests() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki).await;
    let bridge = start(&pki.config(upstream.addr()));
    let admin = bridge.admin_address();
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    for _ in 0..3 {
        let read = "GET /api/v1/pods?limit=1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        client.send(read.to_owned()).await.unwrap();
        assert_eq!(client.read_response().await.unwrap().status, 200);
    }
    let refused = "GET /api/v1/nodes?token=s HTTP/1.1\r\nHost: localhost\r\nConnection: x-remote-user\r\n\r\n";
    client.send(refused.to_owned()).await.unwrap();
    assert_eq!(client.read_response().await.unwrap().status, 400);

    let status = async || -> Value {
        let response = get(admin, "/status.json").await;
        assert_eq!(response.header("content-type"), Some("application/json"));
        serde_json::from_str(&response.body).unwrap()
    };
    eventually("the server is known", TEST_TIMEOUT, async || {
        let server = status().await["servers"][0].take();
        server["state"] == "ready" && server["emulatedVersion"] == "1.35"
    })
    .await;
    let found = status().await;
    assert_eq!(found["kind"], "BridgeStatus");
    assert_eq!(found["servers"][0]["gitVersion"], "v1.36.4");
    let rows = found["traffic"]["rows"].as_array().unwrap();
    let of = |rule: &str| rows.iter().find(|row| row["rule"] == rule).unwrap()["total"].as_u64();
    assert_eq!((of("local"), of("refused")), (Some(3), Some(1)));
    let refused = &found["refused"]["requests"][0];
    assert_eq!(
        (&refused["path"], &refused["code"]),
        (&"/api/v1/nodes".into(), &400.into())
    );
    assert!(!found.to_string().contains("token=s"), "{found}");

    let page = get(admin, "/status").await;
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(page.body.contains("1.36.4 emulates 1.35"), "{}", page.body);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    assert_eq!(page.header("cache-control"), Some("no-store"));
    let head = request(admin, "HEAD", "/status/events", "").await;
    assert_eq!(head.header("content-type"), Some("text/event-stream"));
}

#[tokio::test]
async fn an_open_watch_is_shown_until_it_ends() {
    let pki = PkiFixture::new();
    let (senders, mut watches) = tokio::sync::mpsc::unbounded_channel();
    let upstream =
        ApiServer::start(
            Options::new(pki.upstream.clone()),
            move |recorded| match recorded.path() {
                "/readyz" => Reply::new(200).body("ok"),
                "/version" => Reply::json("{}"),
                _ => self_test_responses::passing_response(&recorded).unwrap_or_else(|| {
                    let (reply, sender) = Reply::stream();
                    senders.send(sender).unwrap();
                    reply
                }),
            },
        )
        .await;
    let bridge = start(&pki.config(upstream.addr()));
    let admin = bridge.admin_address();
    let mut client = pki.client().http1(bridge.address()).await.unwrap();
    let watch = "GET /api/v1/pods?watch=true HTTP/1.1\r\nHost: localhost\r\nUser-Agent: kubelet/v1.36.4 (linux)\r\n\r\n";
    client.send(watch.to_owned()).await.unwrap();
    let sender = watches.recv().await.unwrap();
    let open = async || -> Value {
        let status: Value = serde_json::from_str(&get(admin, "/status.json").await.body).unwrap();
        status["open"].clone()
    };
    eventually("the open watch", TEST_TIMEOUT, async || {
        let open = open().await;
        open[0]["kind"] == "watch"
            && open[0]["program"] == "kubelet/v1.36.4"
            && open[0]["count"] == 1
    })
    .await;
    drop(sender);
    drop(client);
    eventually("no open watch", TEST_TIMEOUT, async || {
        open().await.as_array().is_some_and(Vec::is_empty)
    })
    .await;
}

#[tokio::test]
async fn pages_of_other_sites_cannot_read_the_admin_port() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki).await;
    let bridge = start(&pki.config(upstream.addr()));
    let admin = bridge.admin_address();
    let code_at = async |host: &str, path: &str| {
        let mut stream = BufReader::new(TcpStream::connect(admin).await.unwrap());
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        line.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    for path in [
        "/status",
        "/status.json",
        "/status/events",
        "/statusz",
        "/flagz",
        "/debug/peers",
        "/debug/route?method=GET&path=/api/v1/pods",
        "/debug/vanishing",
        "/metrics/x",
        "/none",
    ] {
        assert_eq!(code_at("rebound.example.com", path).await, "403", "{path}");
        assert_ne!(code_at("127.0.0.1:10270", path).await, "403", "{path}");
    }
    eventually("ready at any name", TEST_TIMEOUT, async || {
        code_at("bridge.example.com", "/readyz").await == "200"
    })
    .await;
    // Probers and scrapers may have a name for the address.
    for path in ["/metrics", "/livez", "/healthz", "/livez/ping"] {
        let code = code_at("bridge.example.com", path).await;
        assert_ne!(code, "403", "{path}");
    }
    assert_eq!(get(admin, "/status").await.status, 200);
}

#[tokio::test]
async fn viewers_get_events_and_have_a_bound() {
    let pki = PkiFixture::new();
    let upstream = upstream(&pki).await;
    let bridge = start(&pki.config(upstream.addr()));
    let admin = bridge.admin_address();
    let open = async || {
        let stream = TcpStream::connect(admin).await.unwrap();
        let mut stream = BufReader::new(stream);
        let request = "GET /status/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        (stream, line)
    };
    let mut viewers = Vec::new();
    for _ in 0..MAX_VIEWERS {
        let (stream, line) = open().await;
        assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
        viewers.push(stream);
    }
    let (_, line) = open().await;
    assert!(line.starts_with("HTTP/1.1 503 "), "{line}");
    // Scrapes and probes still work.
    assert_eq!(get(admin, "/livez").await.status, 200);
    // The first event has all sections, and later ones arrive by themselves.
    let first = &mut viewers[0];
    let mut events = 0;
    while events < 3 {
        let mut line = String::new();
        first.read_line(&mut line).await.unwrap();
        if let Some(data) = line.strip_prefix("data: ") {
            let message: Value = serde_json::from_str(data).unwrap();
            let sections = message["sections"].as_object().unwrap();
            assert!(events > 0 || sections.contains_key("servers"), "{message}");
            events += 1;
        }
    }
    drop(viewers);
    eventually("there is room again", TEST_TIMEOUT, async || {
        open().await.1.starts_with("HTTP/1.1 200 ")
    })
    .await;
}

#[tokio::test]
async fn a_bridge_in_front_of_several_servers_says_which_it_reaches() {
    let fixture = balancer::Fixture::new().await;
    let bridge = fixture.start().await;
    let reached = async || -> Vec<Vec<bool>> {
        let status = get(bridge.admin_address(), "/status.json").await;
        let status: Value = serde_json::from_str(&status.body).unwrap();
        let servers = status["servers"].as_array().unwrap().iter();
        let of_bridges = |server: &Value| -> Vec<bool> {
            let bridges = server["reachedBy"].as_array().unwrap().iter();
            bridges
                .map(|it| {
                    assert_ne!(it["bridge"].as_str(), Some(""));
                    it["reached"].as_bool().unwrap()
                })
                .collect()
        };
        servers.map(of_bridges).collect()
    };
    assert_eq!(reached().await, [[true], [true], [true]]);
    fixture.servers[1].set_hook(|recorded| {
        (recorded.path() == "/readyz").then(|| Reply::new(500).body("shutdown"))
    });
    fixture
        .wait_for_readiness(&bridge, [true, false, true])
        .await;
    assert_eq!(reached().await, [[true], [false], [true]]);
}

const PATHS: [&str; 3] = ["/status", "/status.json", "/status/events"];

#[tokio::test]
async fn the_secure_port_serves_the_status_to_users_that_may_get_it() {
    let fixture = secure_fixture().await;
    for path in PATHS {
        let mut client = fixture.open(&fixture.pki.client()).await;
        assert_eq!(
            get_securely(&mut client, path, "").await.status,
            401,
            "{path}"
        );
        assert_eq!(fixture.get(path, "wrong").await.status, 401, "{path}");
        // A user that may get another path.
        let refused = fixture.get(path, "good").await;
        assert_eq!(refused.status, 403, "{path}");
        let expected = format!("forbidden: User \"scraper\" cannot get path {path:?}");
        assert!(message(&refused).starts_with(&expected), "{path}");
    }
    let mut client = fixture.open(&admin(&fixture)).await;
    let page = get_securely(&mut client, "/status", "").await;
    assert_eq!(page.status, 200);
    assert_eq!(page.header("cache-control"), Some("no-store"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; "), "{policy}");
    let status = get_securely(&mut client, "/status.json", "").await;
    let status: Value = serde_json::from_slice(&status.body).unwrap();
    assert_eq!(status["kind"], "BridgeStatus");
    let recorded = fixture.server.api.requests();
    let reviewed = recorded.iter().filter(|it| it.path() == ACCESS_REVIEWS);
    let reviewed = reviewed.map(|it| body(it)["spec"]["nonResourceAttributes"]["path"].take());
    for path in PATHS {
        assert!(reviewed.clone().any(|it| it == path), "{path}");
    }
}

/// A page opens the next stream at the end of each: it ends after some minutes, as its own test shows.
#[tokio::test]
async fn each_event_stream_of_the_secure_port_is_authorized() {
    let fixture = secure_fixture().await;
    let admin = admin(&fixture);
    let (line, mut first) = open_events(&fixture, &admin).await;
    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
    assert!(next_event(&mut first).await["sections"]["servers"].is_string());
    // The user loses the right. An earlier permission is used for ten seconds.
    fixture.server.answer(Reviews::Deny);
    eventually("the next stream is refused", TEST_TIMEOUT, async || {
        let (line, _) = open_events(&fixture, &admin).await;
        line.starts_with("HTTP/1.1 403 ")
    })
    .await;
    fixture.server.answer(Reviews::Decide);
    let (line, mut again) = open_events(&fixture, &admin).await;
    assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
    assert!(next_event(&mut again).await["sections"]["servers"].is_string());
}

fn admin(fixture: &SecureAdminFixture) -> TlsClient {
    fixture.pki.user("admin", &["system:masters"])
}

/// The status line of an event stream, and the stream.
async fn open_events(
    fixture: &SecureAdminFixture,
    client: &TlsClient,
) -> (String, BufReader<impl AsyncRead + AsyncWrite + Unpin>) {
    let stream = client.connect(fixture.address(), "localhost");
    let mut stream = BufReader::new(timeout(TEST_TIMEOUT, stream).await.unwrap().unwrap());
    let request = b"GET /status/events HTTP/1.1\r\nHost: bridge.example.com\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut line = String::new();
    let read = stream.read_line(&mut line);
    timeout(TEST_TIMEOUT, read).await.unwrap().unwrap();
    (line, stream)
}

/// The data of the next event.
async fn next_event(stream: &mut BufReader<impl AsyncRead + Unpin>) -> Value {
    let read = async {
        loop {
            let mut line = String::new();
            assert_ne!(
                stream.read_line(&mut line).await.unwrap(),
                0,
                "the stream ended"
            );
            if let Some(data) = line.strip_prefix("data: ") {
                return serde_json::from_str(data).unwrap();
            }
        }
    };
    timeout(TEST_TIMEOUT, read).await.unwrap()
}
