//! Whether the limits of the kernel are enough for `--max-connections`.

use std::fs;

use rustix::process::{Resource, getrlimit};
use skewbridge_gateway::config::Config;

use crate::check::finding::{Finding, Remedy, Section};

/// Files that a bridge has open beside connections: listeners, files that are read, connections
/// to etcd and to peers, timers.
const OTHER_FILES: u64 = 256;

/// The backlog of the listener; `net.core.somaxconn` cuts it.
const BACKLOG: u64 = 1024;

/// The limits of this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    /// The hard limit of open files; `None` is no limit.
    open_files: Option<u64>,
    /// `net.core.somaxconn`, if it can be read.
    backlog: Option<u64>,
}

pub(super) fn check(config: &Config) -> Vec<Finding> {
    let backlog = fs::read_to_string("/proc/sys/net/core/somaxconn").ok();
    let limits = Limits {
        // A bridge raises its limit to the hard one when it starts.
        open_files: getrlimit(Resource::Nofile).maximum,
        backlog: backlog.and_then(|text| text.trim().parse().ok()),
    };
    let max_connections = u64::try_from(config.limits.max_connections).unwrap_or(u64::MAX);
    judge(limits, max_connections)
}

fn judge(limits: Limits, max_connections: u64) -> Vec<Finding> {
    const SECTION: Section = Section::Kernel;
    let files = "open files are enough for --max-connections";
    // A stream, and a request of HTTP/1.1, take a connection to a client and one to a server.
    let enough = max_connections
        .saturating_mul(2)
        .saturating_add(OTHER_FILES);
    let files = match limits.open_files {
        Some(limit) if limit < enough => {
            let fitting = limit.saturating_sub(OTHER_FILES) / 2;
            let remedy = Remedy {
                command: Some(format!("ulimit -Hn {enough}")),
                ..Remedy::set("--max-connections", fitting.max(1))
            };
            let remedy = remedy.text(format!(
                "raise the limit (systemd: LimitNOFILE={enough}; in a shell: the command below), or \
                 set --max-connections={}",
                fitting.max(1)
            ));
            let message = format!(
                "this shell may have {limit} files open; {max_connections} connections of clients \
                 need up to {enough}: two each, and {OTHER_FILES} others"
            );
            if limit < max_connections.saturating_add(OTHER_FILES) {
                Finding::failure(SECTION, files, message, remedy)
            } else {
                Finding::warning(SECTION, files, message, remedy)
            }
        }
        Some(limit) => Finding::ok(SECTION, files).message(format!("{limit}, of {enough}")),
        None => Finding::ok(SECTION, files).message("no limit"),
    };
    let name = "connections can wait until they are accepted";
    let backlog = match limits.backlog {
        None => Finding::not_known(SECTION, name, "net.core.somaxconn cannot be read"),
        Some(backlog) if backlog < BACKLOG => Finding::warning(
            SECTION,
            name,
            format!(
                "net.core.somaxconn is {backlog}: after a restart of a bridge all clients connect at \
                 once, and connections beyond it are dropped and tried again seconds later"
            ),
            Remedy::command(
                format!("sysctl -w net.core.somaxconn={BACKLOG}"),
                "raise it, also in /etc/sysctl.d",
            ),
        ),
        Some(backlog) => {
            Finding::ok(SECTION, name).message(format!("net.core.somaxconn is {backlog}"))
        }
    };
    vec![files, backlog]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Outcome;

    #[test]
    fn a_limit_below_two_files_for_each_connection_is_reported() {
        let rows = [
            (None, Outcome::Ok, None),
            (Some(2256), Outcome::Ok, None),
            (Some(2255), Outcome::Warning, Some("999")),
            (Some(1256), Outcome::Warning, Some("500")),
            (Some(1255), Outcome::Failure, Some("499")),
            (Some(64), Outcome::Failure, Some("1")),
        ];
        for (open_files, expected, value) in rows {
            let limits = Limits {
                open_files,
                backlog: Some(4096),
            };
            let found = &judge(limits, 1000)[0];
            assert_eq!(found.outcome, expected, "{found:?}");
            let remedy = found.remedy.as_ref();
            assert_eq!(remedy.and_then(|it| it.value.as_deref()), value);
        }
        // The value of the remedy is enough.
        let limits = Limits {
            open_files: Some(1255),
            backlog: None,
        };
        let found = judge(limits, 499);
        assert_eq!(found[0].outcome, Outcome::Ok);
        assert_eq!(found[1].outcome, Outcome::NotKnown);
    }

    #[test]
    fn a_short_backlog_is_a_warning() {
        for (backlog, expected) in [(128, Outcome::Warning), (1024, Outcome::Ok)] {
            let limits = Limits {
                open_files: None,
                backlog: Some(backlog),
            };
            assert_eq!(judge(limits, 1)[1].outcome, expected);
        }
    }
}
