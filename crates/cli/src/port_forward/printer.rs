//! Prints messages while connections are forwarded. Threads write them, so that a stopped
//! terminal or an unread pipe blocks neither connections nor signals. Messages are dropped if
//! the queue is full.

use std::fmt;
use std::io::{self, Write};
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use crate::skew::plain;

/// Lines that wait to be written: more than a terminal shows.
const MAX_QUEUED_LINES: usize = 256;

/// Time to write the last lines at the exit.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Interval between checks for room in the queue.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

enum QueuedLine {
    Line(String),
    /// Notifies that all lines before it have been written.
    Until(SyncSender<()>),
}

static OUT: LazyLock<Option<SyncSender<QueuedLine>>> = LazyLock::new(|| writer(io::stdout));
static ERR: LazyLock<Option<SyncSender<QueuedLine>>> = LazyLock::new(|| writer(io::stderr));

/// A line on stdout.
pub(super) fn print_stdout(line: impl fmt::Display) {
    enqueue(OUT.as_ref(), io::stdout, &line);
}

/// A line on stderr.
pub(super) fn print_stderr(line: impl fmt::Display) {
    enqueue(ERR.as_ref(), io::stderr, &line);
}

/// Prints a line on stdout before forwarding starts: scripts wait for it.
pub(super) fn print_stdout_now(line: impl fmt::Display) {
    write(&mut io::stdout(), &plain(&line.to_string()));
}

/// Queues a last line, and waits until all queued lines are written.
pub(super) fn finish(last: Option<String>) {
    let end = Instant::now() + FLUSH_TIMEOUT;
    if let (Some(last), Some(writer)) = (last, ERR.as_ref()) {
        send_before(writer, QueuedLine::Line(plain(&last)), end);
    }
    for writer in [&OUT, &ERR].into_iter().filter_map(|it| it.as_ref()) {
        let (written, until) = sync_channel(1);
        if send_before(writer, QueuedLine::Until(written), end) {
            let _ = until.recv_timeout(end.saturating_duration_since(Instant::now()));
        }
    }
}

/// Whether there was room in the queue before this time.
fn send_before(writer: &SyncSender<QueuedLine>, mut line: QueuedLine, end: Instant) -> bool {
    loop {
        match writer.try_send(line) {
            Ok(()) => return true,
            Err(TrySendError::Full(back)) if Instant::now() < end => line = back,
            Err(_) => return false,
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn enqueue<W: Write>(
    writer: Option<&SyncSender<QueuedLine>>,
    to: fn() -> W,
    line: &impl fmt::Display,
) {
    let line = plain(&line.to_string());
    match writer {
        // If the queue is full, the line is dropped.
        Some(writer) => drop(writer.try_send(QueuedLine::Line(line))),
        None => write(&mut to(), &line),
    }
}

/// Write errors are ignored: the reader may have closed the pipe.
fn write(to: &mut impl Write, line: &str) {
    let _ = writeln!(to, "{line}").and_then(|()| to.flush());
}

/// Starts the writer thread; `None` if that fails.
fn writer<W: Write + 'static>(to: fn() -> W) -> Option<SyncSender<QueuedLine>> {
    let (sender, queued) = sync_channel(MAX_QUEUED_LINES);
    let writing = move || {
        for line in queued {
            match line {
                QueuedLine::Line(line) => write(&mut to(), &line),
                QueuedLine::Until(written) => drop(written.try_send(())),
            }
        }
    };
    let thread = std::thread::Builder::new().name("printer".to_owned());
    thread.spawn(writing).is_ok().then_some(sender)
}
