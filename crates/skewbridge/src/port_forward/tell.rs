//! What is told while connections are carried. Threads write it, so that a terminal that
//! is held, or a pipe that nobody reads, stops no connection and no signal; what finds no
//! room is left out.

use std::fmt;
use std::io::{self, Write};
use std::sync::LazyLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use crate::skew::plain;

/// Lines that wait to be written: more than a terminal shows.
const MOST_LINES: usize = 256;

/// How long the last lines may take when all is over.
const LAST: Duration = Duration::from_secs(1);

enum Told {
    Line(String),
    /// All before it has been written.
    Until(SyncSender<()>),
}

static OUT: LazyLock<Option<SyncSender<Told>>> = LazyLock::new(|| writer(io::stdout));
static ERR: LazyLock<Option<SyncSender<Told>>> = LazyLock::new(|| writer(io::stderr));

/// A line on stdout.
pub(super) fn print(line: impl fmt::Display) {
    tell(OUT.as_ref(), io::stdout, &line);
}

/// A line on stderr.
pub(super) fn say(line: impl fmt::Display) {
    tell(ERR.as_ref(), io::stderr, &line);
}

/// Waits for the lines that somebody reads.
pub(super) fn finish() {
    for writer in [&OUT, &ERR].into_iter().filter_map(|it| it.as_ref()) {
        let (written, until) = sync_channel(1);
        if writer.try_send(Told::Until(written)).is_ok() {
            let _ = until.recv_timeout(LAST);
        }
    }
}

fn tell<W: Write>(writer: Option<&SyncSender<Told>>, to: fn() -> W, line: &impl fmt::Display) {
    let line = plain(&line.to_string());
    match writer {
        // Full, nobody reads it.
        Some(writer) => drop(writer.try_send(Told::Line(line))),
        None => write(&mut to(), &line),
    }
}

/// Whoever closed it does not want to know.
fn write(to: &mut impl Write, line: &str) {
    let _ = writeln!(to, "{line}").and_then(|()| to.flush());
}

/// A thread of its own; `None` if there can be none.
fn writer<W: Write + 'static>(to: fn() -> W) -> Option<SyncSender<Told>> {
    let (sender, told) = sync_channel(MOST_LINES);
    let writing = move || {
        for told in told {
            match told {
                Told::Line(line) => write(&mut to(), &line),
                Told::Until(written) => drop(written.try_send(())),
            }
        }
    };
    let thread = std::thread::Builder::new().name("tell".to_owned());
    thread.spawn(writing).is_ok().then_some(sender)
}
