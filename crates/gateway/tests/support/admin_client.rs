//! An HTTP/1.1 client without TLS for the admin listener, and a parser of its metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use skewbridge_gateway::Handle;
use skewbridge_testkit::{TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response that was read to the end of its connection.
#[derive(Debug)]
pub(crate) struct AdminResponse {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl AdminResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// A GET on its own connection.
pub(crate) async fn get(addr: SocketAddr, path: &str) -> AdminResponse {
    request(addr, "GET", path, "").await
}

/// A request on its own connection, with these header lines.
pub(crate) async fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
) -> AdminResponse {
    let mut tcp = TcpStream::connect(addr).await.unwrap();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    );
    tcp.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .expect("the response has a head");
    let status = head.split(' ').nth(1).expect("the response has a status");
    AdminResponse {
        status: status.parse().unwrap(),
        head: head.to_owned(),
        body: body.to_owned(),
    }
}

/// Waits until `/readyz` of the admin port is 200.
pub(crate) async fn wait_until_ready(bridge: &Handle) {
    wait_for_status(bridge, "/readyz", 200).await;
}

/// Waits until the admin port answers a path with this status.
pub(crate) async fn wait_for_status(bridge: &Handle, path: &str, status: u16) {
    eventually(&format!("{path} is {status}"), TEST_TIMEOUT, async || {
        get(bridge.admin_address(), path).await.status == status
    })
    .await;
}

/// Reads `/metrics` of a bridge.
pub(crate) async fn scrape(admin: SocketAddr) -> Scrape {
    Scrape::parse(&get(admin, "/metrics").await.body)
}

/// The samples of a scrape, parsed as strictly as Prometheus parses `OpenMetrics`.
#[derive(Debug)]
pub(crate) struct Scrape {
    /// Metric name to type.
    pub(crate) families: BTreeMap<String, String>,
    pub(crate) helps: BTreeMap<String, String>,
    samples: BTreeMap<(String, BTreeSet<(String, String)>), f64>,
}

impl Scrape {
    pub(crate) fn parse(text: &str) -> Self {
        let lines = text
            .strip_suffix("# EOF\n")
            .expect("the scrape ends with # EOF");
        let mut scrape = Self {
            families: BTreeMap::new(),
            helps: BTreeMap::new(),
            samples: BTreeMap::new(),
        };
        let mut current = String::new();
        for line in lines.lines() {
            let words: Vec<_> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "HELP", name, help] => {
                    scrape.helps.insert(name.to_owned(), help.to_owned());
                }
                ["#", "TYPE", name, kind] => {
                    name.clone_into(&mut current);
                    let twice = scrape.families.insert(current.clone(), kind.to_owned());
                    assert_eq!(twice, None, "duplicate family {name}");
                }
                ["#", ..] => panic!("unknown comment: {line}"),
                _ => {
                    let (name, labels, value) = sample(line);
                    let kind = scrape.families.get(&current).map(String::as_str);
                    let endings: &[_] = match kind.expect("a type comes before its samples") {
                        "counter" => &["_total"],
                        "gauge" => &[""],
                        "info" => &["_info"],
                        "histogram" => &["_bucket", "_sum", "_count"],
                        other => panic!("unknown type {other}"),
                    };
                    let ending = name.strip_prefix(current.as_str());
                    assert!(ending.is_some_and(|it| endings.contains(&it)), "{line}");
                    let twice = scrape.samples.insert((name, labels), value);
                    assert_eq!(twice, None, "duplicate sample: {line}");
                }
            }
        }
        scrape
    }

    /// The value of exactly this sample.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let labels = labels.iter().map(owned).collect();
        self.samples.get(&(name.to_owned(), labels)).copied()
    }

    /// The number of answered requests that were forwarded to upstream.
    pub(crate) fn requests(&self, verb: &str, code: &str) -> f64 {
        let labels = [
            ("route", "local"),
            ("destination", "local"),
            ("verb", verb),
            ("code", code),
        ];
        self.value("skewbridge_requests_total", &labels)
            .unwrap_or(0.0)
    }

    /// All values of a label of a metric.
    pub(crate) fn labels(&self, name: &str, label: &str) -> BTreeSet<&str> {
        self.samples
            .keys()
            .filter(|(found, _)| found == name)
            .flat_map(|(_, labels)| labels)
            .filter(|(found, _)| found == label)
            .map(|(_, value)| value.as_str())
            .collect()
    }
}

/// The labels of these metrics have no quotes or commas in their values.
fn sample(line: &str) -> (String, BTreeSet<(String, String)>, f64) {
    let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
    let (name, labels) = match name.split_once('{') {
        None => (name, ""),
        Some((name, labels)) => (
            name,
            labels.strip_suffix('}').expect("labels end with a brace"),
        ),
    };
    let labels = labels
        .split(',')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (label, value) = pair.split_once('=').expect("a label has a value");
            (label.to_owned(), value.trim_matches('"').to_owned())
        })
        .collect();
    (name.to_owned(), labels, value.parse().expect("a number"))
}
