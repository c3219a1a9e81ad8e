//! The log of a container, and its readers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::sync::watch;

use crate::time::Time;

/// Maximum size of a log: the end is kept, as by a kubelet that rotates.
const MAX_LOG_BYTES: usize = 1 << 20;
/// Maximum number of lines, so that empty ones are limited too.
const MAX_LOG_LINES: usize = 20_000;
/// A longer line is kept as several, as container runtimes do.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// Maximum size of one read.
const MAX_READ_BYTES: usize = 64 * 1024;

/// `PodLogOptions`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LogOptions {
    /// Follow the log.
    pub(super) follow: bool,
    /// Prefix each line with its time.
    pub(super) timestamps: bool,
    /// Only this many lines at the end.
    pub(super) tail_lines: Option<usize>,
    /// Only this many bytes.
    pub(super) limit_bytes: Option<usize>,
    /// Only lines written after this time.
    pub(super) since: Option<SystemTime>,
}

/// The log of one run of a container. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct ContainerLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    lines: Mutex<Lines>,
    news: watch::Sender<LogEnd>,
}

/// The current end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct LogEnd {
    end: u64,
    over: bool,
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<Line>,
    bytes: usize,
    /// The number of the first kept line.
    first: u64,
}

#[derive(Debug)]
struct Line {
    at: SystemTime,
    /// With its line feed, unless the line continues.
    text: Bytes,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            lines: Mutex::default(),
            news: watch::Sender::new(LogEnd::default()),
        }
    }
}

/// Splits the output of one stream into lines.
#[derive(Debug, Default)]
pub(super) struct LineSplitter(BytesMut);

impl LineSplitter {
    /// Takes output, and appends complete lines.
    pub(super) fn push(&mut self, bytes: &[u8], container_log: &ContainerLog) {
        self.0.extend_from_slice(bytes);
        let mut whole = Vec::new();
        loop {
            let end = self
                .0
                .iter()
                .take(MAX_LINE_BYTES)
                .position(|it| *it == b'\n');
            let end = match end {
                Some(at) => at + 1,
                None if self.0.len() >= MAX_LINE_BYTES => MAX_LINE_BYTES,
                None => break,
            };
            // A copy, so that a line does not keep a whole buffer alive.
            whole.push(Bytes::copy_from_slice(&self.0.split_to(end)));
        }
        container_log.put(whole);
    }

    /// Appends the remaining text.
    pub(super) fn end(&mut self, container_log: &ContainerLog) {
        if !self.0.is_empty() {
            container_log.put(vec![Bytes::copy_from_slice(&self.0.split())]);
        }
    }
}

impl ContainerLog {
    fn put(&self, texts: Vec<Bytes>) {
        if texts.is_empty() {
            return;
        }
        let at = SystemTime::now();
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for text in texts {
            lines.bytes += text.len();
            lines.kept.push_back(Line { at, text });
        }
        while lines.bytes > MAX_LOG_BYTES || lines.kept.len() > MAX_LOG_LINES {
            let Some(gone) = lines.kept.pop_front() else {
                break;
            };
            lines.bytes -= gone.text.len();
            lines.first += 1;
        }
        let end = lines.first + lines.kept.len() as u64;
        drop(lines);
        self.0.news.send_modify(|news| news.end = end);
    }

    /// Marks the end.
    pub(super) fn close(&self) {
        self.0.news.send_modify(|news| news.over = true);
    }

    /// A reader that starts at the line that the options select.
    pub(super) fn read(&self, options: LogOptions) -> LogReader {
        let lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let end = lines.first + lines.kept.len() as u64;
        let tail = options.tail_lines.map_or(lines.first, |tail| {
            end.saturating_sub(tail as u64).max(lines.first)
        });
        let since = options.since.map_or(0, |since| {
            lines.kept.partition_point(|line| line.at < since) as u64
        });
        LogReader {
            next: tail.max(lines.first + since),
            left: options.limit_bytes,
            news: self.0.news.subscribe(),
            container_log: self.clone(),
            options,
        }
    }
}

/// A reader of a log.
#[derive(Debug)]
pub(super) struct LogReader {
    container_log: ContainerLog,
    options: LogOptions,
    news: watch::Receiver<LogEnd>,
    next: u64,
    left: Option<usize>,
}

impl LogReader {
    /// The next lines; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Bytes> {
        loop {
            let news = *self.news.borrow_and_update();
            let piece = self.take();
            if !piece.is_empty() {
                return Some(piece);
            }
            if self.left == Some(0) || !self.options.follow || news.over {
                return None;
            }
            self.news.changed().await.ok()?;
        }
    }

    fn take(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        let lines = self.container_log.0.lines.lock();
        let lines = lines.unwrap_or_else(PoisonError::into_inner);
        self.next = self.next.max(lines.first);
        let skip = usize::try_from(self.next - lines.first).unwrap_or(usize::MAX);
        for line in lines.kept.iter().skip(skip) {
            if out.len() >= MAX_READ_BYTES || self.left == Some(0) {
                break;
            }
            self.next += 1;
            let before = out.len();
            if self.options.timestamps {
                out.put(stamp(line.at).as_bytes());
                out.put_u8(b' ');
            }
            out.put(line.text.clone());
            if let Some(left) = &mut self.left {
                let grown = (out.len() - before).min(*left);
                out.truncate(before + grown);
                *left -= grown;
            }
        }
        out.freeze()
    }
}

/// In the format of container runtimes: to the nanosecond, in UTC.
fn stamp(at: SystemTime) -> String {
    let nanos = at
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .subsec_nanos();
    let second = Time::from(at).to_string();
    format!("{}.{nanos:09}Z", second.trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(container_log: &ContainerLog, options: LogOptions) -> String {
        let mut reading = container_log.read(options);
        let mut text = String::new();
        while let Some(piece) = reading.next().await {
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        text
    }

    fn written(text: &str) -> ContainerLog {
        let (container_log, mut cutter) = (ContainerLog::default(), LineSplitter::default());
        for byte in text.as_bytes() {
            cutter.push(&[*byte], &container_log);
        }
        cutter.end(&container_log);
        container_log
    }

    #[tokio::test]
    async fn lines_are_selected_by_the_options() {
        let container_log = written("one\ntwo\nthree");
        let none = LogOptions::default();
        let rows = [
            (none.clone(), "one\ntwo\nthree"),
            (
                LogOptions {
                    tail_lines: Some(2),
                    ..none.clone()
                },
                "two\nthree",
            ),
            (
                LogOptions {
                    tail_lines: Some(0),
                    ..none.clone()
                },
                "",
            ),
            (
                LogOptions {
                    limit_bytes: Some(6),
                    ..none.clone()
                },
                "one\ntw",
            ),
            (
                LogOptions {
                    since: Some(SystemTime::now() + Duration::from_mins(1)),
                    ..none.clone()
                },
                "",
            ),
        ];
        for (options, expected) in rows {
            assert_eq!(all(&container_log, options).await, expected);
        }
        let stamped = all(
            &container_log,
            LogOptions {
                timestamps: true,
                ..none
            },
        );
        for line in stamped.await.lines() {
            let (time, _) = line.split_once(' ').unwrap();
            assert_eq!(time.len(), "2026-11-15T20:59:59.000000000Z".len());
            assert!(Time::parse(time).is_some());
        }
    }

    #[tokio::test]
    async fn a_follower_reads_until_the_end() {
        let container_log = written("one\n");
        let mut reading = container_log.read(LogOptions {
            follow: true,
            ..LogOptions::default()
        });
        assert_eq!(reading.next().await.unwrap(), "one\n");
        let mut cutter = LineSplitter::default();
        cutter.push(b"two\n", &container_log);
        assert_eq!(reading.next().await.unwrap(), "two\n");
        container_log.close();
        assert_eq!(reading.next().await, None);
    }

    #[tokio::test]
    async fn only_the_end_of_the_log_is_kept() {
        let (container_log, mut cutter) = (ContainerLog::default(), LineSplitter::default());
        let mut reading = container_log.read(LogOptions::default());
        for _ in 0..3 * MAX_LOG_BYTES / MAX_LINE_BYTES {
            cutter.push(&[b'x'; MAX_LINE_BYTES], &container_log);
        }
        let mut bytes = 0;
        while let Some(piece) = reading.next().await {
            bytes += piece.len();
        }
        assert_eq!(bytes, MAX_LOG_BYTES);
    }
}
