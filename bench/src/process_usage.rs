//! The cost of a process, read from /proc.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

/// Linux reports times to user space in hundredths of a second (`USER_HZ`) on every
/// supported architecture, independent of the kernel's own tick.
const CPU_TIME_TICK: Duration = Duration::from_millis(10);

/// User and system time so far of every process in the group of `leader`.
pub(crate) fn cpu_of_group(leader: u32) -> Result<Duration> {
    let mut ticks = 0;
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process that ended since the listing is not a measured one: those keep running.
        if let Some(stat) = stat(pid).filter(|stat| stat.group == leader) {
            ticks += stat.ticks;
        }
    }
    Ok(CPU_TIME_TICK * ticks)
}

/// User and system time so far of one process, all its threads together.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let stat = stat(pid).with_context(|| format!("process {pid} has ended"))?;
    Ok(CPU_TIME_TICK * stat.ticks)
}

/// Whether `pid` still runs; a zombie does not.
pub(crate) fn is_running(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X'))
}

/// Memory of one process, in KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Memory {
    pub(crate) rss_kib: u32,
    pub(crate) pss_kib: u32,
}

pub(crate) fn memory(pid: u32) -> Result<Memory> {
    let read = |file: &str, field: &str| {
        let path = format!("/proc/{pid}/{file}");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        kib_field(&text, field).with_context(|| format!("no {field} in {path}"))
    };
    Ok(Memory {
        rss_kib: read("status", "VmRSS:")?,
        pss_kib: read("smaps_rollup", "Pss:")?,
    })
}

fn kib_field(text: &str, field: &str) -> Option<u32> {
    text.lines()
        .find_map(|line| line.strip_prefix(field))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()
}

fn stat(pid: u32) -> Option<Stat> {
    Stat::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    state: char,
    group: u32,
    ticks: u32,
}

impl Stat {
    fn parse(text: &str) -> Option<Self> {
        // The name of the command may contain spaces and parentheses.
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse::<u32>().ok();
        Some(Self {
            state: fields.first()?.chars().next()?,
            group: number(2)?,
            ticks: number(11)?.checked_add(number(12)?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_command_name_does_not_shift_the_fields() {
        let text = "42 (a) R 1) S 1 40 40 0 -1 4194560 9 0 0 0 120 34 0 0 20 0 1 0 7 8 9";
        let expected = Stat {
            state: 'S',
            group: 40,
            ticks: 154,
        };
        assert_eq!(Stat::parse(text), Some(expected));
    }

    #[test]
    fn fields_of_memory_are_found_by_their_whole_name() {
        let text = "Rss:   100 kB\nPss_Anon:  7 kB\nPss:    50 kB\n";
        assert_eq!(kib_field(text, "Pss:"), Some(50));
        assert_eq!(kib_field(text, "Swap:"), None);
    }

    #[test]
    fn this_process_runs_and_has_memory() {
        let pid = std::process::id();
        assert!(is_running(pid));
        assert!(memory(pid).unwrap().rss_kib > 0);
    }
}
