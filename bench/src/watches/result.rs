//! The results of `watches`.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::process_usage::Memory;
use crate::report::{Spread, Table};

#[derive(Debug, Serialize)]
pub(crate) struct WatchesResult {
    pub(crate) connections: u32,
    pub(crate) streams: u32,
    pub(crate) event_bytes: usize,
    /// Events that every watch received, byte for byte and in order.
    pub(crate) events: u32,
    pub(crate) direct: Delivery,
    pub(crate) bridged: Option<Delivery>,
    pub(crate) memory: Option<MemoryOfBridge>,
}

/// How fast events reached all watchers.
#[derive(Debug, Serialize)]
pub(crate) struct Delivery {
    name: &'static str,
    open_all_ms: f64,
    event_to_all_ms: Spread,
}

impl Delivery {
    pub(crate) fn new(name: &'static str, opened: Duration, events: &[Duration]) -> Result<Self> {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        Ok(Self {
            name,
            open_all_ms: ms(&opened),
            event_to_all_ms: Spread::of(events.iter().map(ms)).context("no events")?,
        })
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct MemoryOfBridge {
    idle: Memory,
    /// All watches open and each has received its first event.
    open: Memory,
    after: Memory,
    open_per_watch: PerWatch,
    after_per_watch: PerWatch,
}

#[derive(Debug, Serialize)]
struct PerWatch {
    rss_kib: f64,
    pss_kib: f64,
}

impl MemoryOfBridge {
    pub(crate) fn new(idle: Memory, open: Memory, after: Memory, watches: u32) -> Self {
        let each = |now: u32, idle: u32| (f64::from(now) - f64::from(idle)) / f64::from(watches);
        let per_watch = |now: Memory| PerWatch {
            rss_kib: each(now.rss_kib, idle.rss_kib),
            pss_kib: each(now.pss_kib, idle.pss_kib),
        };
        Self {
            idle,
            open,
            after,
            open_per_watch: per_watch(open),
            after_per_watch: per_watch(after),
        }
    }
}

impl fmt::Display for WatchesResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} watches: {} connections of {} streams, events of {} bytes\n\
             every watch received all {} events\n",
            self.connections * self.streams,
            self.connections,
            self.streams,
            self.event_bytes,
            self.events
        )?;
        let mut table = Table::new(["ms", "open all", "event to all", ""]);
        for delivery in [Some(&self.direct), self.bridged.as_ref()]
            .into_iter()
            .flatten()
        {
            let [median, spread] = delivery.event_to_all_ms.cells(0);
            let open = format!("{:.0}", delivery.open_all_ms);
            table.row([delivery.name.to_owned(), open, median, spread]);
        }
        write!(f, "{table}")?;
        if let Some(memory) = &self.memory {
            write!(f, "\n{memory}")?;
        }
        Ok(())
    }
}

impl fmt::Display for MemoryOfBridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new([
            "memory of the bridge, KiB",
            "RSS",
            "a watch",
            "PSS",
            "a watch",
        ]);
        let mut row = |name: &str, memory: &Memory, each: Option<&PerWatch>| {
            let each = |pick: fn(&PerWatch) -> f64| {
                each.map_or_else(String::new, |each| format!("{:.1}", pick(each)))
            };
            table.row([
                name.to_owned(),
                memory.rss_kib.to_string(),
                each(|each| each.rss_kib),
                memory.pss_kib.to_string(),
                each(|each| each.pss_kib),
            ]);
        };
        row("idle", &self.idle, None);
        row(
            "all open, first event",
            &self.open,
            Some(&self.open_per_watch),
        );
        row("after all events", &self.after, Some(&self.after_per_watch));
        write!(f, "{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(kib: u32) -> Memory {
        Memory {
            rss_kib: kib + 500,
            pss_kib: kib,
        }
    }

    #[test]
    fn memory_per_watch_is_what_was_added_to_the_idle_bridge() {
        let memory = MemoryOfBridge::new(memory(10_000), memory(210_000), memory(9_000), 10_000);
        let open = memory.open_per_watch;
        assert!((open.rss_kib - 20.0).abs() < 1e-9 && (open.pss_kib - 20.0).abs() < 1e-9);
        assert!(memory.after_per_watch.rss_kib < 0.0);
    }

    #[test]
    fn the_table_fits_80_columns() {
        let slow = [Duration::from_secs(59), Duration::from_mins(1)];
        let result = WatchesResult {
            connections: 1000,
            streams: 100,
            event_bytes: 300,
            events: 1001,
            direct: Delivery::new("direct", slow[0], &slow).unwrap(),
            bridged: Delivery::new("through the bridge", slow[1], &slow).ok(),
            memory: Some(MemoryOfBridge::new(
                memory(10_000),
                memory(100_000_000),
                memory(90_000_000),
                10_000,
            )),
        };
        for line in result.to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
