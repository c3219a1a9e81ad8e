//! Progress of a copy on a terminal: one line that is redrawn.

use std::io::{IsTerminal as _, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use skewbridge_client::copy::{CopyEvent, Progress};

use crate::skew::plain;

/// Redraw interval of the progress line.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Width of the bar.
const BAR_WIDTH: usize = 24;

/// Width of a name, so that the line fits into 80 columns.
const MAX_NAME_WIDTH: usize = 24;

/// Standard error, with or without a progress line.
#[derive(Debug, Clone)]
pub(super) struct Screen {
    /// Whether a progress line is on the screen.
    drawn: Arc<Mutex<bool>>,
    manner: Verbosity,
}

/// The amount of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verbosity {
    /// Errors only.
    Quiet,
    /// Errors and warnings: for files and pipes.
    Plain,
    /// Errors, warnings and progress.
    Live,
}

impl Verbosity {
    pub(super) fn choose(quiet: bool) -> Self {
        if quiet {
            Self::Quiet
        } else if std::io::stderr().is_terminal() {
            Self::Live
        } else {
            Self::Plain
        }
    }
}

impl Screen {
    pub(super) fn new(manner: Verbosity) -> Self {
        Self {
            drawn: Arc::default(),
            manner,
        }
    }

    /// Prints a permanent line.
    pub(super) fn print_event(&self, notice: &CopyEvent) {
        if self.manner == Verbosity::Quiet {
            return;
        }
        self.line(&plain(&notice.to_string()));
    }

    /// Whether standard error is a terminal.
    pub(super) fn is_live(&self) -> bool {
        self.manner == Verbosity::Live
    }

    fn line(&self, text: &str) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let clear = if std::mem::take(&mut *drawn) {
            "\r\x1b[K"
        } else {
            ""
        };
        let text = plain(text);
        let _ = writeln!(std::io::stderr(), "{clear}{text}");
    }

    /// Draws until it is dropped.
    pub(super) async fn watch(&self, progress: &Progress) {
        if self.manner != Verbosity::Live {
            return std::future::pending().await;
        }
        let mut rate = Rate::new(Instant::now());
        let mut ticks = tokio::time::interval(REDRAW_INTERVAL);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let line = describe(progress, rate.at(now, progress.bytes()));
            let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
            *drawn = true;
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r{line}\x1b[K");
            let _ = stderr.flush();
        }
    }

    /// Removes the progress line, and prints the summary.
    pub(super) fn finish(&self, progress: &Progress, took: Duration, done: bool) {
        if self.manner != Verbosity::Live {
            return;
        }
        if done {
            let bytes = progress.bytes();
            self.line(&format!(
                "copied {} in {}, {} ({}/s)",
                size(bytes),
                entries(progress.entries()),
                time(took),
                size(per_second(bytes, took))
            ));
        } else if *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) {
            let mut stderr = std::io::stderr().lock();
            let _ = write!(stderr, "\r\x1b[K");
            let _ = stderr.flush();
        }
    }
}

/// Bytes a second, over about the last two seconds.
#[derive(Debug)]
struct Rate {
    seen: Vec<(Instant, u64)>,
}

/// Number of measurements of the rate.
const RATE_SAMPLE_COUNT: usize = 10;

impl Rate {
    fn new(now: Instant) -> Self {
        Self {
            seen: vec![(now, 0)],
        }
    }

    fn at(&mut self, now: Instant, bytes: u64) -> u64 {
        // After a restarted copy there are fewer bytes than before.
        self.seen.retain(|(_, before)| *before <= bytes);
        if self.seen.len() > RATE_SAMPLE_COUNT {
            self.seen.remove(0);
        }
        self.seen.push((now, bytes));
        let (then, before) = self.seen[0];
        per_second(bytes - before, now - then)
    }
}

fn per_second(bytes: u64, took: Duration) -> u64 {
    let millis = took.as_millis().max(1);
    u64::try_from(u128::from(bytes) * 1000 / millis).unwrap_or(u64::MAX)
}

fn describe(progress: &Progress, rate: u64) -> String {
    let (bytes, name) = (progress.bytes(), shortened(&progress.name()));
    let head = match progress.total() {
        Some(total) => format!("{} {}", bar(bytes, total), size(bytes)),
        None => format!("{}, {}", entries(progress.entries()), size(bytes)),
    };
    let left = match progress.total() {
        Some(total) if rate > 0 => {
            let seconds = total.saturating_sub(bytes) / rate;
            format!(", {} left", time(Duration::from_secs(seconds)))
        }
        _ => String::new(),
    };
    format!("{head}, {}/s{left}  {name}", size(rate))
}

fn bar(bytes: u64, total: u64) -> String {
    let part = |whole: u64| u128::from(bytes.min(total)) * u128::from(whole) / u128::from(total);
    let full = usize::try_from(part(BAR_WIDTH as u64)).unwrap_or(BAR_WIDTH);
    format!(
        "[{}{}] {:3}%",
        "=".repeat(full),
        " ".repeat(BAR_WIDTH - full),
        part(100)
    )
}

fn entries(count: u64) -> String {
    match count {
        1 => "1 entry".to_owned(),
        count => format!("{count} entries"),
    }
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // In tenths, without floating point.
    let (mut tenths, mut unit) = (u128::from(bytes) * 10 / 1024, 0);
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

fn time(took: Duration) -> String {
    let seconds = took.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) => format!("{}.{}s", seconds, took.subsec_millis() / 100),
        (0, minutes, seconds) => format!("{minutes}m{seconds:02}s"),
        (hours, minutes, _) => format!("{hours}h{minutes:02}m"),
    }
}

/// The end of a name, which is more specific than its start. A name from an archive must not
/// move the cursor.
fn shortened(name: &str) -> String {
    let name: Vec<char> = name
        .trim_end_matches('/')
        .chars()
        .map(|it| if it.is_control() { '?' } else { it })
        .collect();
    match name.len().checked_sub(MAX_NAME_WIDTH) {
        None | Some(0) => name.into_iter().collect(),
        Some(over) => format!("...{}", name[over + 3..].iter().collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        let rows = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (1 << 20, "1.0 MiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "16383.9 PiB"),
        ];
        for (bytes, expected) in rows {
            assert_eq!(size(bytes), expected);
        }
        let rows = [
            (0, "0.0s"),
            (1500, "1.5s"),
            (61_000, "1m01s"),
            (3_700_000, "1h01m"),
        ];
        for (millis, expected) in rows {
            assert_eq!(time(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn a_progress_line_fits_and_has_no_control_characters() {
        let progress = Progress::default();
        progress.expect(1000);
        assert_eq!(bar(500, 1000), "[============            ]  50%");
        assert_eq!(bar(2000, 1000), format!("[{}] 100%", "=".repeat(24)));
        let line = describe(&progress, 0);
        assert!(line.len() < 80, "{line}");
        assert_eq!(shortened("a\x1b[2J\nb/"), "a?[2J?b");
        let long = shortened(&"x".repeat(100));
        assert_eq!(long, format!("...{}", "x".repeat(21)));
    }

    #[test]
    fn a_rate_covers_the_last_seconds() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(rate.at(at(1000), 1000), 1000);
        assert_eq!(rate.at(at(2000), 5000), 2500);
        // The copy restarted.
        assert_eq!(rate.at(at(3000), 0), 0);
    }
}
