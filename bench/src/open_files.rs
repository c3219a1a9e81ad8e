//! The limit of open files: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files of a process that are not connections of clients.
const RESERVED_FILES: u64 = 1000;

/// Raises the soft limit of this process and of its future children to the hard limit, and that to
/// `wanted` connections where this is permitted. Returns how many connections a process can have.
pub(crate) fn allow_connections(wanted: u32) -> u32 {
    let files = u64::from(wanted) + RESERVED_FILES;
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.map(|maximum| maximum.max(files));
    let raised = |maximum| Rlimit {
        current: maximum,
        maximum,
    };
    // Only root may raise the hard limit, and not in every container.
    if setrlimit(Resource::Nofile, raised(maximum)).is_err() {
        let _ = setrlimit(Resource::Nofile, raised(limit.maximum));
    }
    connections(getrlimit(Resource::Nofile).current, wanted)
}

fn connections(files: Option<u64>, wanted: u32) -> u32 {
    let Some(files) = files else { return wanted };
    let possible = files.saturating_sub(RESERVED_FILES);
    u32::try_from(possible).map_or(wanted, |possible| possible.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_files_are_reserved() {
        let rows = [
            (Some(20_000), 20_000, 19_000),
            (Some(1 << 20), 20_000, 20_000),
            (Some(1_024), 5_000, 24),
            (Some(10), 5_000, 0),
            (None, 5_000, 5_000),
            (Some(u64::MAX), 5_000, 5_000),
        ];
        for (files, wanted, expected) in rows {
            assert_eq!(connections(files, wanted), expected, "{files:?} {wanted}");
        }
    }
}
