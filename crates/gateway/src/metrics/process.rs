//! Metrics of the process, with the names that all Prometheus clients use.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Linux reports CPU time in hundredths of a second (`USER_HZ`), independent of the clock of the
/// kernel.
const TICKS_PER_SECOND: f64 = 100.0;

/// The page size of x86-64 and most arm64 systems. It only affects one gauge.
const PAGE_BYTES: u64 = 4096;

static STARTED: LazyLock<f64> = LazyLock::new(|| {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
});

/// Reads `/proc/self` with each scrape.
#[derive(Debug)]
pub(crate) struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let started = *STARTED;
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            let metric = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            gauge.encode(metric)
        };
        gauge(
            "process_start_time_seconds",
            "Start time of the process since the epoch",
            started,
        )?;
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let Some(stat) = Stat::parse(&stat) else {
            return Ok(());
        };
        gauge(
            "process_resident_memory_bytes",
            "Resident memory size",
            stat.resident_bytes,
        )?;
        gauge(
            "process_virtual_memory_bytes",
            "Virtual memory size",
            stat.virtual_bytes,
        )?;
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            #[allow(clippy::cast_precision_loss)] // far below 2^52
            let open = open.count() as f64;
            gauge("process_open_fds", "Open file descriptors", open)?;
        }
        if let Some(max) = max_fds() {
            gauge("process_max_fds", "Maximum number of file descriptors", max)?;
        }
        let cpu = ConstCounter::new(stat.cpu_seconds);
        let metric = encoder.encode_descriptor(
            "process_cpu_seconds",
            "User and system CPU time spent",
            None,
            cpu.metric_type(),
        )?;
        cpu.encode(metric)
    }
}

/// Called once at the start, so that the start time is correct.
pub(crate) fn started_now() {
    LazyLock::force(&STARTED);
}

/// The start time, in seconds since 1970.
pub(crate) fn started() -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // since 1970
    let started = *STARTED as u64;
    started
}

struct Stat {
    cpu_seconds: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl Stat {
    /// proc(5): fields are counted from the end of the command name, which may contain spaces and
    /// parentheses.
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    fn parse(stat: &str) -> Option<Self> {
        let rest = stat.rsplit_once(')')?.1;
        let fields: Vec<u64> = rest
            .split_whitespace()
            .skip(1)
            .map(|field| field.parse().unwrap_or(0))
            .collect();
        // The first element is field 4 (ppid).
        let field = |number: usize| fields.get(number - 4).copied();
        Some(Self {
            cpu_seconds: (field(14)? + field(15)?) as f64 / TICKS_PER_SECOND,
            virtual_bytes: field(23)? as f64,
            resident_bytes: (field(24)? * PAGE_BYTES) as f64,
        })
    }
}

fn max_fds() -> Option<f64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4 0 0 0 0 150 50 0 0 20 0 3 0 99 8192 2 0";
        let stat = Stat::parse(stat).unwrap();
        assert!((stat.cpu_seconds - 2.0).abs() < f64::EPSILON);
        assert!((stat.virtual_bytes - 8192.0).abs() < f64::EPSILON);
        assert!((stat.resident_bytes - 8192.0).abs() < f64::EPSILON);
    }
}
