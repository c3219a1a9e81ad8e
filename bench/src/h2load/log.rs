//! The log of h2load: a line for each request.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

/// The time of each request until the end of its response. The file is removed: h2load appends.
pub(super) fn take(path: &Path) -> Result<Vec<Duration>> {
    let log = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(log)?;
    fs::remove_file(path).with_context(log)?;
    times(&text).with_context(log)
}

/// The columns are the start, the status and the time in microseconds.
fn times(text: &str) -> Result<Vec<Duration>> {
    let time = |line: &str| {
        let microseconds = line.split('\t').nth(2)?.parse().ok()?;
        Some(Duration::from_micros(microseconds))
    };
    let times = text
        .lines()
        .map(|line| time(line).with_context(|| format!("not the log of h2load: {line:?}")));
    times.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_column_is_the_time() {
        let text = "1732060800000000\t200\t1250\n1732060800000100\t200\t980\n";
        let expected = [1250, 980].map(Duration::from_micros);
        assert_eq!(times(text).unwrap(), expected);
        assert!(times("200 1250").is_err());
    }
}
