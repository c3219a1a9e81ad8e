//! Load generation with h2load, and checks of its output.

mod log;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;
use tokio::process::Command;

use crate::percentile::percentile;
use crate::pki::{CIPHER, SERVER_NAME};
use crate::process;
use crate::scratch_dir::ScratchDir;

/// The time that h2load may take beyond its duration.
const EXIT_MARGIN: Duration = Duration::from_secs(20);

/// The maximum number of requests in flight. Their bytes may fall outside of the measured
/// time, at either end of it.
const MAX_IN_FLIGHT: u32 = 100;

/// The protocol of the clients; the numbers keep about 50 and 100 requests in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum Protocol {
    #[serde(rename = "http/1.1")]
    Http1,
    #[serde(rename = "h2")]
    Http2,
}

impl Protocol {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Http1 => &["--h1", "-t1", "-c50"],
            Self::Http2 => &["-t1", "-c10", "-m10"],
        }
    }

    fn alpn(self) -> &'static str {
        match self {
            Self::Http1 => "http/1.1",
            Self::Http2 => "h2",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "HTTP/1.1, 50 connections",
            Self::Http2 => "HTTP/2, 10 connections of 10 streams",
        })
    }
}

/// The load generator and the request that it repeats.
#[derive(Debug)]
pub(crate) struct Load {
    program: PathBuf,
    path: String,
    size: u32,
    token: Option<String>,
    /// Further headers, as `name: value`.
    headers: Vec<String>,
    expected: Expected,
    /// A file for the times of all requests.
    log: Option<PathBuf>,
}

/// The status of every response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// 2xx with the whole body.
    Body,
    /// 304.
    NotModified,
}

impl Load {
    pub(crate) fn new(path: &str, size: u32) -> Result<Self> {
        Ok(Self {
            program: process::tool("h2load", "nghttp2-client")?,
            path: path.to_owned(),
            size,
            token: None,
            headers: Vec::new(),
            expected: Expected::Body,
            log: None,
        })
    }

    /// Also measures the time of each request.
    pub(crate) fn with_times(self, scratch: &ScratchDir) -> Self {
        Self {
            log: Some(scratch.path("h2load.log")),
            ..self
        }
    }

    /// Adds this bearer token to each request.
    pub(crate) fn with_token(self, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..self
        }
    }

    /// Adds a header to each request.
    pub(crate) fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push(format!("{name}: {value}"));
        self
    }

    /// Every response has to be 304.
    pub(crate) fn not_modified(self) -> Self {
        Self {
            expected: Expected::NotModified,
            ..self
        }
    }

    /// Loads `port` for `seconds`; any other response than the expected one is an error.
    pub(crate) async fn run(&self, protocol: Protocol, port: u16, seconds: u32) -> Result<Summary> {
        let mut command = Command::new(&self.program);
        command
            .args(protocol.flags())
            .arg(format!("-D{seconds}"))
            .arg(format!("--tls13-ciphers={CIPHER}"))
            .arg(format!("--connect-to=127.0.0.1:{port}"))
            .args((self.token.iter()).map(|it| format!("--header=authorization: Bearer {it}")))
            .args(self.headers.iter().map(|it| format!("--header={it}")))
            .args((self.log.iter()).map(|it| format!("--log-file={}", it.display())))
            .arg(format!("https://{SERVER_NAME}:{port}{}", self.path));
        let limit = Duration::from_secs(seconds.into()) + EXIT_MARGIN;
        let text = process::output_of(&mut command, limit).await?;
        let summary = Summary::parse(&text)
            .and_then(|summary| summary.check(protocol, self.size, self.expected))
            .map_err(|error| anyhow!("{error:#}; output of h2load:\n{}", end_of(&text)))?;
        let p99 = match &self.log {
            Some(log) => percentile(&log::take(log)?, 99),
            None => None,
        };
        Ok(Summary { p99, ..summary })
    }
}

/// The end of h2load's output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Summary {
    pub(crate) per_second: f64,
    /// Complete responses.
    pub(crate) succeeded: u32,
    pub(crate) cipher: String,
    /// The 99th percentile of the times, if they were measured.
    pub(crate) p99: Option<Duration>,
    alpn: String,
    bad: u32,
    with_3xx: u32,
    with_2xx: u32,
    /// 4xx and 5xx.
    with_error: u32,
    data_bytes: u64,
}

impl Summary {
    fn parse(text: &str) -> Result<Self> {
        let line = |start: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(start))
                .with_context(|| format!("no line {start:?}"))
        };
        let per_second = number_before(line("finished in ")?, " req/s")?;
        let requests = line("requests: ")?;
        let codes = line("status codes: ")?;
        let traffic = line("traffic: ")?;
        Ok(Self {
            per_second,
            succeeded: number_before(requests, " succeeded")?,
            cipher: line("Cipher: ")?.to_owned(),
            p99: None,
            alpn: line("Application protocol: ")?.to_owned(),
            bad: number_before::<u32>(requests, " failed")?
                + number_before::<u32>(requests, " errored")?
                + number_before::<u32>(requests, " timeout")?,
            with_2xx: number_before(codes, " 2xx")?,
            with_3xx: number_before(codes, " 3xx")?,
            with_error: number_before::<u32>(codes, " 4xx")? + number_before::<u32>(codes, " 5xx")?,
            data_bytes: traffic
                .strip_suffix(") data")
                .and_then(|text| text.rsplit_once('('))
                .and_then(|(_, bytes)| bytes.parse().ok())
                .context("no bytes of data")?,
        })
    }

    fn check(self, protocol: Protocol, size: u32, expected: Expected) -> Result<Self> {
        ensure!(
            self.alpn == protocol.alpn(),
            "{} was negotiated, not {}",
            self.alpn,
            protocol.alpn()
        );
        let (other, status, size) = match expected {
            Expected::Body => (self.with_3xx, "2xx", size),
            Expected::NotModified => (self.with_2xx, "304", 0),
        };
        let other = other + self.with_error;
        ensure!(other == 0, "{other} responses were not {status}");
        ensure!(self.bad == 0, "{} requests failed", self.bad);
        ensure!(self.succeeded > 0, "there was no response");
        ensure!(
            self.data_bytes
                >= u64::from(self.succeeded.saturating_sub(MAX_IN_FLIGHT)) * u64::from(size),
            "responses were shorter than {size} bytes"
        );
        Ok(self)
    }
}

/// The part of h2load's output that comes after its progress.
fn end_of(text: &str) -> &str {
    text.find("finished in ")
        .map_or(text, |start| &text[start..])
}

/// The number directly before `unit`.
fn number_before<T: std::str::FromStr>(line: &str, unit: &str) -> Result<T> {
    line.split_once(unit)
        .and_then(|(head, _)| head.rsplit(' ').next())
        .and_then(|number| number.parse().ok())
        .with_context(|| format!("no number before {unit:?} in {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\
starting benchmark...
spawning thread #0: 10 total client(s). Timing-based test with 0s of warm-up time and 2s of main duration for measurements.
TLS Protocol: TLSv1.3
Cipher: TLS_AES_256_GCM_SHA384
Server Temp Key: X25519 253 bits
Application protocol: h2
Main benchmark duration is over for thread #0. Stopping all clients.
Stopped all clients for thread #0

finished in 2.00s, 15123.50 req/s, 296.33MB/s
requests: 30247 total, 30347 started, 30247 done, 30247 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 30250 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 592.66MB (621450000) total, 1.33MB (1391362) headers (space savings 79.46%), 590.76MB (619458560) data
                     min         max         mean         sd        +/- sd
time for request:      521us     25.55ms      6.58ms      1.68ms    81.94%
";

    fn checked(text: &str) -> Result<Summary> {
        Summary::parse(text)?.check(Protocol::Http2, 20_480, Expected::Body)
    }

    fn error_of(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from));
        checked(&GOOD.replace(from, to)).unwrap_err().to_string()
    }

    #[test]
    fn a_good_run_gives_its_numbers() {
        let summary = checked(GOOD).unwrap();
        assert!((summary.per_second - 15_123.5).abs() < f64::EPSILON);
        assert_eq!(summary.succeeded, 30_247);
        assert_eq!(summary.data_bytes, 619_458_560);
        assert_eq!(summary.cipher, "TLS_AES_256_GCM_SHA384");
    }

    #[test]
    fn a_response_that_is_not_2xx_fails_the_run() {
        assert_eq!(error_of("0 5xx", "3 5xx"), "3 responses were not 2xx");
        assert_eq!(error_of("0 3xx", "1 3xx"), "1 responses were not 2xx");
    }

    #[test]
    fn a_response_that_is_not_304_fails_a_conditional_run() {
        let conditional = |text: &str| {
            let summary = Summary::parse(text).unwrap();
            summary.check(Protocol::Http2, 20_480, Expected::NotModified)
        };
        let not_modified = GOOD.replace("30250 2xx, 0 3xx", "0 2xx, 30250 3xx");
        let not_modified = not_modified.replace("(619458560) data", "(0) data");
        assert!(conditional(&not_modified).is_ok());
        let error = conditional(GOOD).unwrap_err().to_string();
        assert_eq!(error, "30250 responses were not 304");
    }

    #[test]
    fn a_request_without_a_response_fails_the_run() {
        assert_eq!(error_of("0 errored", "2 errored"), "2 requests failed");
        assert_eq!(error_of("0 timeout", "9 timeout"), "9 requests failed");
    }

    #[test]
    fn responses_without_their_body_fail_the_run() {
        let error = error_of("(619458560) data", "(1000) data");
        assert_eq!(error, "responses were shorter than 20480 bytes");
    }

    #[test]
    fn another_protocol_than_requested_fails_the_run() {
        let error = error_of("protocol: h2", "protocol: http/1.1");
        assert_eq!(error, "http/1.1 was negotiated, not h2");
    }

    #[test]
    fn truncated_output_is_an_error() {
        let (head, _) = GOOD.split_once("status codes").unwrap();
        assert!(checked(head).is_err());
    }
}
