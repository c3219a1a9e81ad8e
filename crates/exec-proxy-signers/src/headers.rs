//! Headers that a front proxy requires, from a file or a command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderName, HeaderValue};
use skewbridge_exec_proxy::forward::BoxFuture;
use skewbridge_exec_proxy::{ModifyError, Outgoing, RequestModifier};
use skewbridge_k8s_api::secret::Secret;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use zeroize::Zeroizing;

use crate::failure_cache::FAILURE_CACHE_DURATION;
use crate::secret_file;

/// How long the content of a file is used before it is read again.
const FILE_REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// How long a command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest output: longer than any list of headers.
const MAX_OUTPUT_BYTES: u64 = 64 * 1024;

/// More headers than a front proxy requires.
const MAX_HEADERS: usize = 64;

/// Where headers come from: lines of `NAME: VALUE`. Empty lines and lines that begin with `#`
/// are ignored.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file. A change takes effect within a second.
    File(PathBuf),
    /// The output of a program.
    Command {
        /// The program.
        program: OsString,
        /// Its arguments.
        arguments: Vec<OsString>,
        /// How long its output is used.
        max_age: Duration,
    },
}

/// The value of a header. A `HeaderValue` is made from it for each request, because the memory
/// of a `HeaderValue` is not zeroed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value(Secret);

impl Value {
    /// Checks that a header can have this value (RFC 9110, 5.5). It does not make a
    /// `HeaderValue`, which would be a copy that is not zeroed.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let is_allowed = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        let is_valid = bytes.iter().all(is_allowed);
        is_valid.then(|| Self(Secret::new(bytes)))
    }

    /// The value for one request.
    pub fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_bytes(self.0.expose()).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Names and values, in order.
type List = Arc<[(HeaderName, Value)]>;

/// Sets headers on each request. They replace headers of the client with the same names.
#[derive(Debug)]
pub struct Headers {
    source: Arc<Source>,
    last: Arc<Mutex<Option<CachedHeaders>>>,
}

/// The result of the last load.
#[derive(Debug)]
struct CachedHeaders {
    at: Instant,
    headers: Result<List, String>,
}

impl CachedHeaders {
    /// Whether the result can be used for a request of this time.
    fn is_fresh(&self, source: &Source, requested: Instant) -> bool {
        let age = match (&self.headers, source) {
            (Err(_), _) => FAILURE_CACHE_DURATION,
            (Ok(_), Source::File(_)) => FILE_REFRESH_INTERVAL,
            (Ok(_), Source::Command { max_age, .. }) => *max_age,
        };
        self.at >= requested || self.at.elapsed() < age
    }
}

impl Headers {
    /// Loads headers from this source.
    pub fn new(source: Source) -> Self {
        Self {
            source: Arc::new(source),
            last: Arc::default(),
        }
    }

    /// The current headers. Concurrent callers wait for one load and share its result. The load
    /// is a task of its own, so that the caller that started it can be cancelled; it ends at the
    /// time limit of a command.
    pub async fn current(&self) -> Result<List, String> {
        let requested = Instant::now();
        let mut last = self.last.clone().lock_owned().await;
        if let Some(cached) = last
            .as_ref()
            .filter(|it| it.is_fresh(&self.source, requested))
        {
            return cached.headers.clone();
        }
        let source = self.source.clone();
        let loading = tokio::spawn(async move {
            let headers = source.load().await;
            *last = Some(CachedHeaders {
                at: Instant::now(),
                headers: headers.clone(),
            });
            headers
        });
        loading
            .await
            .unwrap_or_else(|_| Err("loading the headers was cancelled".to_owned()))
    }
}

impl Source {
    async fn load(&self) -> Result<List, String> {
        match self {
            Self::File(path) => {
                let text = secret_file::read(path)?;
                parse(&text).map_err(|cause| format!("{}: {cause}", path.display()))
            }
            Self::Command {
                program, arguments, ..
            } => {
                let text = run(program, arguments).await;
                let headers = text.and_then(|text| parse(&text));
                headers.map_err(|cause| format!("{}: {cause}", program.display()))
            }
        }
    }
}

impl RequestModifier for Headers {
    fn name(&self) -> &'static str {
        "headers"
    }

    fn modify<'a>(&'a self, request: Outgoing<'a>) -> BoxFuture<'a, Result<(), ModifyError>> {
        Box::pin(async move {
            let headers = self.current().await.map_err(ModifyError::new)?;
            for (name, _) in &*headers {
                request.headers.remove(name);
            }
            for (name, value) in &*headers {
                // It was valid when it was parsed.
                if let Some(value) = value.header() {
                    request.headers.append(name, value);
                }
            }
            Ok(())
        })
    }
}

async fn run(program: &OsString, arguments: &[OsString]) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| error.to_string())?;
    // Room for all of it: a buffer that grows leaves copies in memory.
    let room = usize::try_from(MAX_OUTPUT_BYTES + 1).unwrap_or_default();
    let mut printed = Zeroizing::new(Vec::with_capacity(room));
    let running = async {
        if let Some(stdout) = child.stdout.take() {
            let mut limited = stdout.take(MAX_OUTPUT_BYTES + 1);
            limited.read_to_end(&mut printed).await?;
        }
        child.wait().await
    };
    let ended = match timeout(COMMAND_TIMEOUT, running).await {
        Err(_) => {
            let seconds = COMMAND_TIMEOUT.as_secs();
            return Err(format!("did not end within {seconds} s"));
        }
        Ok(ended) => ended.map_err(|error| error.to_string())?,
    };
    if !ended.success() {
        return Err(format!("failed with {ended}"));
    }
    if printed.len() as u64 > MAX_OUTPUT_BYTES {
        return Err("prints more than headers".to_owned());
    }
    Ok(printed)
}

/// Whether a header belongs to the connection or the framing, and cannot be set by a list.
fn is_reserved(name: &HeaderName) -> bool {
    const OTHERS: [&str; 3] = ["keep-alive", "proxy-connection", "http2-settings"];
    [
        CONNECTION,
        CONTENT_LENGTH,
        EXPECT,
        HOST,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
    ]
    .contains(name)
        || OTHERS.contains(&name.as_str())
}

/// Parses lines of `NAME: VALUE`. An error names the line, never the value.
fn parse(text: &[u8]) -> Result<List, String> {
    let mut headers = Vec::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let at = at + 1;
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Err(format!("line {at} is not NAME: VALUE"));
        };
        let name = HeaderName::from_bytes(&line[..colon])
            .map_err(|_| format!("line {at} does not begin with the name of a header"))?;
        if is_reserved(&name) {
            return Err(format!("line {at}: {name} belongs to the connection"));
        }
        let value = Value::parse(line[colon + 1..].trim_ascii())
            .ok_or_else(|| format!("line {at}: the value of {name} is not valid in a header"))?;
        if headers.len() == MAX_HEADERS {
            return Err(format!("there are more than {MAX_HEADERS} headers"));
        }
        headers.push((name, value));
    }
    if headers.is_empty() {
        return Err("the list has no header".to_owned());
    }
    Ok(headers.into())
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{ScratchDir, TEST_TIMEOUT, eventually};

    use super::*;

    #[test]
    fn lines_are_parsed_as_headers_and_headers_of_the_connection_are_refused() {
        let headers = parse(b"# for the front proxy\n\nX-Badge: 4711 \r\nx-badge:12\n").unwrap();
        let found: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.header().unwrap()))
            .collect();
        let expected = ["4711", "12"].map(|it| ("x-badge", HeaderValue::from_static(it)));
        assert_eq!(found, expected);
        assert!(!format!("{headers:?}").contains("4711"));
        let rows = [
            ("", "the list has no header"),
            ("hunter2", "line 1 is not NAME: VALUE"),
            ("\nx y: hunter2", "line 2 does not begin with the name"),
            ("x: hunter2\x01", "line 1: the value of x is not valid"),
            ("Connection: close", "line 1: connection belongs"),
            ("Transfer-Encoding: chunked", "belongs"),
            ("Content-Length: 0", "belongs"),
            ("Host: k", "belongs"),
            ("Keep-Alive: 1", "belongs"),
            ("Upgrade: x", "belongs"),
        ];
        for (text, expected) in rows {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    async fn badge(headers: &Headers) -> HeaderValue {
        headers.current().await.unwrap()[0].1.header().unwrap()
    }

    #[tokio::test]
    async fn a_cancelled_caller_does_not_end_the_command_that_others_wait_for() {
        let dir = ScratchDir::new();
        let (runs, go_on) = (dir.path().join("runs"), dir.path().join("go-on"));
        // Reading from the FIFO waits for a writer.
        let made = std::process::Command::new("mkfifo").arg(&go_on).status();
        assert!(made.unwrap().success());
        let script = format!(
            "echo x >> {}; read badge < {}; echo X-Badge: $badge",
            runs.display(),
            go_on.display()
        );
        let headers = Arc::new(Headers::new(Source::Command {
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            max_age: Duration::from_mins(1),
        }));
        let first = tokio::spawn({
            let headers = headers.clone();
            async move { headers.current().await.map(drop) }
        });
        eventually("the command", TEST_TIMEOUT, async || runs.exists()).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let second = tokio::spawn({
            let headers = headers.clone();
            async move { badge(&headers).await }
        });
        let writer = tokio::task::spawn_blocking(move || std::fs::write(go_on, "7\n"));
        tokio::time::timeout(TEST_TIMEOUT, writer)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(second.await.unwrap(), "7");
        assert_eq!(std::fs::read_to_string(runs).unwrap(), "x\n");
    }

    #[tokio::test]
    async fn a_file_is_read_again_and_a_command_is_run() {
        let dir = ScratchDir::new();
        let path = dir.write("badge", "X-Badge: 1");
        let headers = Headers::new(Source::File(path.clone()));
        assert_eq!(badge(&headers).await, "1");
        dir.write("badge", "X-Badge: 2");
        eventually("the new badge", TEST_TIMEOUT, async || {
            badge(&headers).await == "2"
        })
        .await;
        let command = |script: &str| {
            Headers::new(Source::Command {
                program: "sh".into(),
                arguments: vec!["-c".into(), script.into()],
                max_age: Duration::from_mins(1),
            })
        };
        assert_eq!(badge(&command("echo X-Badge: 3")).await, "3");
        let error = command("exit 3").current().await.unwrap_err();
        assert!(
            error.starts_with("sh: failed with exit status: 3"),
            "{error}"
        );
        std::fs::remove_file(path).unwrap();
        eventually("an error", TEST_TIMEOUT, async || {
            headers.current().await.is_err()
        })
        .await;
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_failure_and_a_later_caller_retries() {
        let dir = ScratchDir::new();
        let (runs, good) = (dir.path().join("runs"), dir.path().join("good"));
        let script = format!(
            "echo x >> {}; test -e {} && echo X-Badge: 1",
            runs.display(),
            good.display()
        );
        let headers = Headers::new(Source::Command {
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            max_age: Duration::from_mins(1),
        });
        let headers = Arc::new(headers);
        let runs = || std::fs::read_to_string(&runs).unwrap().lines().count();
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let headers = headers.clone();
            callers.spawn(async move { headers.current().await.unwrap_err() });
        }
        for error in callers.join_all().await {
            assert!(error.contains("failed with exit status: 1"), "{error}");
        }
        assert_eq!(runs(), 1);
        std::fs::write(good, "").unwrap();
        eventually("the badge", TEST_TIMEOUT, async || {
            headers.current().await.is_ok()
        })
        .await;
        assert_eq!(runs(), 2);
    }
}
