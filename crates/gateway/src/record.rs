//! What is kept of a request: a count, a duration and, from `--v=2` on, a line
//! in the log. Written when the answer has ended, however it ended.

use http::{Method, StatusCode, Version};
use skewbridge_peers::{Burden, Identity};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// nginx's name for it: it ended before there was an answer. The client left,
/// or the bridge had to.
const CLIENT_LEFT: u16 = 499;

/// One request.
#[derive(Debug)]
pub struct Record {
    metrics: Option<Metrics>,
    started: Instant,
    route: &'static str,
    verb: &'static str,
    code: u16,
    bytes: u64,
    complete: bool,
    line: Option<Box<Line>>,
    /// The peer that answers has so much to do while this lasts.
    burden: Option<Burden>,
}

#[derive(Debug)]
struct Line {
    method: Method,
    path: String,
    version: Version,
    caller: String,
    peer: Option<Identity>,
}

impl Record {
    /// A request that has just arrived.
    pub(crate) fn begin(metrics: &Metrics) -> Self {
        Self {
            metrics: Some(metrics.clone()),
            started: Instant::now(),
            route: "none",
            verb: "unknown",
            code: CLIENT_LEFT,
            bytes: 0,
            complete: false,
            line: None,
            burden: None,
        }
    }

    /// A request that is nobody's business: the admin listener's own.
    pub(crate) fn none() -> Self {
        Self {
            metrics: None,
            started: Instant::now(),
            route: "none",
            verb: "unknown",
            code: 0,
            bytes: 0,
            complete: false,
            line: None,
            burden: None,
        }
    }

    /// Also writes a line. The query stays out of it, and so does whatever
    /// follows `/proxy/`: both can hold what only the client and a workload
    /// should know.
    pub(crate) fn log(&mut self, head: &http::request::Parts) {
        let path = head.uri.path();
        let path = match find_proxy(path) {
            Some(at) => format!("{}/proxy/…", &path[..at]),
            None => path.to_owned(),
        };
        self.line = Some(Box::new(Line {
            method: head.method.clone(),
            path,
            version: head.version,
            caller: String::new(),
            peer: None,
        }));
    }

    pub(crate) fn caller(&mut self, name: &str) {
        if let Some(line) = &mut self.line {
            name.clone_into(&mut line.caller);
        }
    }

    pub(crate) fn verb(&mut self, verb: &'static str) {
        self.verb = verb;
    }

    pub(crate) fn route(&mut self, route: &'static str) {
        self.route = route;
    }

    /// This peer answers.
    pub(crate) fn peer(&mut self, identity: &Identity, burden: Burden) {
        self.burden = Some(burden);
        if let Some(line) = &mut self.line {
            line.peer = Some(identity.clone());
        }
    }

    pub(crate) fn status(&mut self, status: StatusCode) {
        self.code = status.as_u16();
    }

    /// There is nobody to answer any more.
    pub(crate) fn client_left(&mut self) {
        self.code = CLIENT_LEFT;
    }

    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// The answer has reached the client whole. Until this is said, it is cut:
    /// by the client, by upstream, or by the end of the bridge.
    pub(crate) fn complete(&mut self) {
        self.complete = true;
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let Some(metrics) = &self.metrics else { return };
        let took = self.started.elapsed();
        metrics.request(self.route, self.verb, self.code, took, self.bytes);
        if let Some(line) = &self.line {
            tracing::info!(
                target: "skewbridge::access",
                method = %line.method,
                path = %line.path,
                protocol = ?line.version,
                caller = %line.caller,
                route = self.route,
                peer = line.peer.as_ref().map(tracing::field::display),
                verb = self.verb,
                code = self.code,
                bytes = self.bytes,
                cut = !self.complete,
                duration = ?took,
                "request"
            );
        }
    }
}

/// Where `/proxy/` begins in a path, however it is percent-encoded there:
/// kube-apiserver looks for it in the decoded path.
fn find_proxy(path: &str) -> Option<usize> {
    const PROXY: &[u8] = b"/proxy/";
    if !path.contains('%') {
        return path.find("/proxy/");
    }
    let mut decoded = Vec::with_capacity(path.len());
    let mut starts = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        starts.push(path.len() - rest.len());
        let escaped = (after.get(..2))
            .filter(|_| *first == b'%')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() {
            &after[2..]
        } else {
            after
        };
    }
    let at = decoded.windows(PROXY.len()).position(|it| it == PROXY)?;
    starts.get(at).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(path: &str) -> String {
        let (head, ()) = http::Request::get(path).body(()).unwrap().into_parts();
        let mut record = Record::none();
        record.log(&head);
        record.line.take().unwrap().path
    }

    #[test]
    fn neither_the_query_nor_what_follows_proxy_is_kept() {
        let table = [
            ("/api/v1/pods?token=s", "/api/v1/pods"),
            ("/api/v1/nodes/a/proxy/s/t?u=s", "/api/v1/nodes/a/proxy/…"),
            ("/api/v1/nodes/a/proxy", "/api/v1/nodes/a/proxy"),
            ("/api/v1/proxy/nodes/a/s", "/api/v1/proxy/…"),
            ("/a/proxy/s/proxy/s", "/a/proxy/…"),
            ("/a/pr%6Fxy/s", "/a/proxy/…"),
            ("/a/pr%6fxy%2fs", "/a/proxy/…"),
            ("/a%2Fproxy%2Fs", "/a/proxy/…"),
            ("/%C3%A9/%70roxy/s", "/%C3%A9/proxy/…"),
            ("/proxy/s%", "/proxy/…"),
            ("/a%/b%2/c%zz/%+fproxy", "/a%/b%2/c%zz/%+fproxy"),
            ("/a/proxying/%20", "/a/proxying/%20"),
        ];
        for (path, expected) in table {
            assert_eq!(logged(path), expected, "{path}");
        }
    }

    #[test]
    fn a_request_is_499_until_it_is_answered() {
        let metrics = Metrics::new();
        let total = |code: u16| {
            let sample = format!(
                "skewbridge_requests_total{{route=\"none\",verb=\"unknown\",code=\"{code}\"}} 1"
            );
            metrics.text().contains(&sample)
        };
        let record = Record::begin(&metrics);
        assert!(!total(499), "counted at its end");
        drop(record);
        assert!(total(499));
        let mut record = Record::begin(&metrics);
        record.status(StatusCode::NO_CONTENT);
        drop(record);
        assert!(total(204));
        drop(Record::none());
    }
}
