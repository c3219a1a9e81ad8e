//! Headers that a front proxy demands, from a file or a command.

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
use skewbridge_api::secret::Secret;
use skewbridge_harness::forward::BoxFuture;
use skewbridge_harness::{ModifyError, Outgoing, RequestModifier};
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use zeroize::Zeroizing;

use crate::{FAILURE_AGE, secret_file};

/// How often a file is read again while requests come.
const FILE_AGE: Duration = Duration::from_secs(1);

/// How long a command may take.
const COMMAND_PATIENCE: Duration = Duration::from_secs(30);

/// More than any list of headers.
const MAX_OUTPUT: u64 = 64 * 1024;

/// More headers than anybody demands.
const MAX_HEADERS: usize = 64;

/// Where headers come from: lines of `NAME: VALUE`. Empty ones, and those that begin
/// with `#`, do not count.
#[derive(Debug, Clone)]
pub enum Source {
    /// A file, read again within a second of being changed.
    File(PathBuf),
    /// What a program prints.
    Command {
        /// The program.
        program: OsString,
        /// Its arguments.
        arguments: Vec<OsString>,
        /// How long what it has printed counts.
        every: Duration,
    },
}

/// What a header is set to. It is shown nowhere, and overwritten when it is dropped: it
/// becomes the value of a header on each request anew, which nobody overwrites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value(Secret);

impl Value {
    /// What a header can hold (RFC 9110, 5.5). Not by making one, which would be a copy that
    /// nobody overwrites.
    fn read(bytes: &[u8]) -> Option<Self> {
        let may_stand = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
        let may_stand = bytes.iter().all(may_stand);
        may_stand.then(|| Self(Secret::new(bytes)))
    }

    /// For one request.
    pub fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_bytes(self.0.expose()).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// Names and values, in order.
type List = Arc<[(HeaderName, Value)]>;

/// Sets headers on each request, in place of what the client has under their names.
#[derive(Debug)]
pub struct Headers {
    source: Arc<Source>,
    last: Arc<Mutex<Option<Found>>>,
}

/// What came of the last look.
#[derive(Debug)]
struct Found {
    at: Instant,
    headers: Result<List, String>,
}

impl Found {
    /// Whether it counts for who has asked then.
    fn counts(&self, source: &Source, asked: Instant) -> bool {
        let age = match (&self.headers, source) {
            (Err(_), _) => FAILURE_AGE,
            (Ok(_), Source::File(_)) => FILE_AGE,
            (Ok(_), Source::Command { every, .. }) => *every,
        };
        self.at >= asked || self.at.elapsed() < age
    }
}

impl Headers {
    /// From there.
    pub fn new(source: Source) -> Self {
        Self {
            source: Arc::new(source),
            last: Arc::default(),
        }
    }

    /// The headers as they are now. However many ask, one looks, and all who have waited
    /// for it are told what came of it. Whoever has begun to look may leave: it is a task of
    /// its own, which ends at the limit of a command.
    pub async fn current(&self) -> Result<List, String> {
        let asked = Instant::now();
        let mut last = self.last.clone().lock_owned().await;
        if let Some(found) = last.as_ref().filter(|it| it.counts(&self.source, asked)) {
            return found.headers.clone();
        }
        let source = self.source.clone();
        let looking = tokio::spawn(async move {
            let headers = source.look().await;
            *last = Some(Found {
                at: Instant::now(),
                headers: headers.clone(),
            });
            headers
        });
        looking
            .await
            .unwrap_or_else(|_| Err("looking for headers was broken off".to_owned()))
    }
}

impl Source {
    async fn look(&self) -> Result<List, String> {
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
                // It was one when it was read.
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
    // Room for all of it: a buffer that grows leaves copies behind.
    let room = usize::try_from(MAX_OUTPUT + 1).unwrap_or_default();
    let mut printed = Zeroizing::new(Vec::with_capacity(room));
    let running = async {
        if let Some(stdout) = child.stdout.take() {
            let mut limited = stdout.take(MAX_OUTPUT + 1);
            limited.read_to_end(&mut printed).await?;
        }
        child.wait().await
    };
    let ended = match timeout(COMMAND_PATIENCE, running).await {
        Err(_) => {
            let seconds = COMMAND_PATIENCE.as_secs();
            return Err(format!("did not end within {seconds} s"));
        }
        Ok(ended) => ended.map_err(|error| error.to_string())?,
    };
    if !ended.success() {
        return Err(format!("failed with {ended}"));
    }
    if printed.len() as u64 > MAX_OUTPUT {
        return Err("prints more than headers".to_owned());
    }
    Ok(printed)
}

/// What concerns the connection or the message's length is not for a list to say.
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

/// Reads lines of `NAME: VALUE`. An error names the line, and never the value.
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
        let value = Value::read(line[colon + 1..].trim_ascii())
            .ok_or_else(|| format!("line {at}: what {name} is set to cannot stand in a header"))?;
        if headers.len() == MAX_HEADERS {
            return Err(format!("there are more than {MAX_HEADERS} headers"));
        }
        headers.push((name, value));
    }
    if headers.is_empty() {
        return Err("there is no header".to_owned());
    }
    Ok(headers.into())
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::{PATIENCE, ScratchDir, eventually};

    use super::*;

    #[test]
    fn lines_are_headers_and_what_belongs_to_the_connection_is_refused() {
        let headers = parse(b"# for the front proxy\n\nX-Badge: 4711 \r\nx-badge:12\n").unwrap();
        let told: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.header().unwrap()))
            .collect();
        let expected = ["4711", "12"].map(|it| ("x-badge", HeaderValue::from_static(it)));
        assert_eq!(told, expected);
        assert!(!format!("{headers:?}").contains("4711"));
        let rows = [
            ("", "there is no header"),
            ("hunter2", "line 1 is not NAME: VALUE"),
            ("\nx y: hunter2", "line 2 does not begin with the name"),
            ("x: hunter2\x01", "line 1: what x is set to"),
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
    async fn who_leaves_while_the_command_runs_takes_nothing_from_those_who_wait() {
        let dir = ScratchDir::new();
        let (runs, go_on) = (dir.path().join("runs"), dir.path().join("go-on"));
        // A pipe: whoever reads from it waits for who writes.
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
            every: Duration::from_mins(1),
        }));
        let first = tokio::spawn({
            let headers = headers.clone();
            async move { headers.current().await.map(drop) }
        });
        eventually("the command", PATIENCE, async || runs.exists()).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let second = tokio::spawn({
            let headers = headers.clone();
            async move { badge(&headers).await }
        });
        let told = tokio::task::spawn_blocking(move || std::fs::write(go_on, "7\n"));
        tokio::time::timeout(PATIENCE, told)
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
        eventually("the new badge", PATIENCE, async || {
            badge(&headers).await == "2"
        })
        .await;
        let command = |script: &str| {
            Headers::new(Source::Command {
                program: "sh".into(),
                arguments: vec!["-c".into(), script.into()],
                every: Duration::from_mins(1),
            })
        };
        assert_eq!(badge(&command("echo X-Badge: 3")).await, "3");
        let error = command("exit 3").current().await.unwrap_err();
        assert!(
            error.starts_with("sh: failed with exit status: 3"),
            "{error}"
        );
        std::fs::remove_file(path).unwrap();
        eventually("an error", PATIENCE, async || {
            headers.current().await.is_err()
        })
        .await;
    }

    #[tokio::test]
    async fn all_who_ask_at_once_are_told_of_one_failure_and_later_it_is_looked_again() {
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
            every: Duration::from_mins(1),
        });
        let headers = Arc::new(headers);
        let runs = || std::fs::read_to_string(&runs).unwrap().lines().count();
        let mut asking = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let headers = headers.clone();
            asking.spawn(async move { headers.current().await.unwrap_err() });
        }
        for error in asking.join_all().await {
            assert!(error.contains("failed with exit status: 1"), "{error}");
        }
        assert_eq!(runs(), 1);
        std::fs::write(good, "").unwrap();
        eventually("the badge", PATIENCE, async || {
            headers.current().await.is_ok()
        })
        .await;
        assert_eq!(runs(), 2);
    }
}
