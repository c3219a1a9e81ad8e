//! What is kept of a request: a count, a duration and, from `--v=2` on, a line
//! in the log. Written when the answer has ended, however it ended.

use http::{Method, StatusCode, Version};
use tokio::time::Instant;

use crate::metrics::Metrics;

/// nginx's name for it: the client left before there was an answer.
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
    cut: bool,
    line: Option<Box<Line>>,
}

#[derive(Debug)]
struct Line {
    method: Method,
    path: String,
    version: Version,
    caller: String,
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
            cut: false,
            line: None,
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
            cut: false,
            line: None,
        }
    }

    /// Also writes a line. The query stays out of it, and so does whatever
    /// follows `/proxy/`: both can hold what only the client and a workload
    /// should know.
    pub(crate) fn log(&mut self, head: &http::request::Parts) {
        let path = head.uri.path();
        let path = match path.find("/proxy/") {
            Some(at) => format!("{}/proxy/…", &path[..at]),
            None => path.to_owned(),
        };
        self.line = Some(Box::new(Line {
            method: head.method.clone(),
            path,
            version: head.version,
            caller: String::new(),
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

    pub(crate) fn status(&mut self, status: StatusCode) {
        self.code = status.as_u16();
    }

    pub(crate) fn add_bytes(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }

    /// The answer did not reach the client whole.
    pub(crate) fn cut(&mut self) {
        self.cut = true;
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
                verb = self.verb,
                code = self.code,
                bytes = self.bytes,
                cut = self.cut,
                duration = ?took,
                "request"
            );
        }
    }
}
