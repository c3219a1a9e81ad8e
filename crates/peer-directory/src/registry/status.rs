//! Whether a registry can be read and written, as administrators see it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

/// The status of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryStatus {
    /// `etcd`, `leases`, `file`, `memory`, `upstream flags` or `endpoints`, or one of the others and
    /// `endpoints`.
    pub kind: &'static str,
    /// Whether the last attempt of each activity succeeded.
    pub up: bool,
    /// Whether all addresses have been read at least once.
    pub read: bool,
    /// Why addresses cannot be read now.
    pub read_error: Option<String>,
    /// The last error, even after recovery: it names the flag and a remedy.
    pub last_error: Option<String>,
    /// When `up` last changed.
    pub since: SystemTime,
}

impl RegistryStatus {
    /// The status of a working registry.
    pub fn up(kind: &'static str) -> Self {
        Self {
            kind,
            up: true,
            read: true,
            read_error: None,
            last_error: None,
            since: SystemTime::now(),
        }
    }

    /// The current error, if there is one.
    pub fn error(&self) -> Option<&str> {
        (!self.up).then(|| self.last_error.as_deref().unwrap_or("no answer yet"))
    }

    /// Why the address of a peer is not known.
    pub fn no_address(&self) -> String {
        match &self.read_error {
            Some(error) => format!("the registry cannot be read: {error}"),
            None if !self.read => "the registry has not been read yet".to_owned(),
            None => "it has published no address".to_owned(),
        }
    }
}

/// The activities of a registry, which fail independently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Reads the addresses of all servers.
    Read,
    /// Reads the addresses that only bridges publish.
    ReadBridges,
    /// Reads the addresses in `EndpointSlices`.
    ReadEndpoints,
    /// Reads the served records of all servers.
    ReadRecords,
    /// Publishes the address of the local server or its bridge.
    Publish,
    /// Publishes the served record of the local server.
    PublishRecord,
    /// Maintains the identity Lease of the local server, if the server does not.
    KeepLease,
}

impl Activity {
    /// The verb phrase for messages, after "cannot".
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish peer addresses",
            Self::Read | Self::ReadBridges => "read peer addresses",
            Self::ReadEndpoints => "read EndpointSlices",
            Self::ReadRecords => "read served records",
            Self::PublishRecord => "publish the served record",
            Self::KeepLease => "maintain the identity Lease",
        }
    }

    /// What the bridge does while the activity fails.
    pub(crate) fn effect_of_failure(self) -> &'static str {
        if self.is_read() {
            "the last read values stay in use"
        } else {
            "the write is retried"
        }
    }

    fn is_read(self) -> bool {
        match self {
            Self::Read | Self::ReadBridges | Self::ReadEndpoints | Self::ReadRecords => true,
            Self::Publish | Self::PublishRecord | Self::KeepLease => false,
        }
    }
}

/// Collects the outcome of each activity of a registry.
#[derive(Debug)]
pub struct StatusReporter {
    status: watch::Sender<RegistryStatus>,
    /// The outcome of the last attempt; `None` before the first.
    outcomes: Mutex<BTreeMap<Activity, Option<Result<(), String>>>>,
}

impl StatusReporter {
    /// A reporter for these activities, none of which has been tried yet.
    pub fn new(kind: &'static str, activities: &[Activity]) -> Self {
        let outcomes = activities.iter().map(|activity| (*activity, None));
        let status = RegistryStatus {
            up: activities.is_empty(),
            read: activities.is_empty(),
            ..RegistryStatus::up(kind)
        };
        Self {
            status: watch::Sender::new(status),
            outcomes: Mutex::new(outcomes.collect()),
        }
    }

    /// Reads `EndpointSlices` too. The registry then counts as read when both have been read.
    pub fn also_read_endpoints(&self) {
        let mut outcomes = (self.outcomes.lock()).unwrap_or_else(PoisonError::into_inner);
        outcomes.insert(Activity::ReadEndpoints, None);
        self.status.send_modify(|status| {
            status.up = false;
            status.read = false;
            status.kind = match status.kind {
                "etcd" => "etcd,endpoints",
                "leases" => "leases,endpoints",
                "file" => "file,endpoints",
                "memory" => "memory,endpoints",
                kind => kind,
            };
        });
    }

    /// The status, and its changes.
    pub fn subscribe(&self) -> watch::Receiver<RegistryStatus> {
        self.status.subscribe()
    }

    /// An activity succeeded.
    pub fn succeeded(&self, activity: Activity) {
        self.record(activity, Ok(()));
    }

    /// An activity failed. The error names the flag and a remedy.
    pub fn failed(&self, activity: Activity, error: String) {
        self.record(activity, Err(error));
    }

    /// As [`Self::failed`]. Returns whether this activity's last attempt ended in another way,
    /// so that a caller logs each error once.
    pub fn failed_with_new_error(&self, activity: Activity, error: String) -> bool {
        self.record(activity, Err(error))
    }

    fn record(&self, activity: Activity, outcome: Result<(), String>) -> bool {
        let mut outcomes = (self.outcomes.lock()).unwrap_or_else(PoisonError::into_inner);
        let error = outcome.as_ref().err().cloned();
        let is_new = outcomes.get(&activity) != Some(&Some(outcome.clone()));
        outcomes.insert(activity, Some(outcome));
        let up = outcomes.values().all(|it| matches!(it, Some(Ok(()))));
        // An activity that still fails takes precedence over the one that was just tried.
        let failing = outcomes.values().find_map(|it| it.clone()?.err());
        let reads = || outcomes.iter().filter(|(it, _)| it.is_read());
        let read = reads().all(|(_, outcome)| matches!(outcome, Some(Ok(()))));
        let read_error = reads().find_map(|(_, outcome)| outcome.clone()?.err());
        self.status.send_if_modified(|status| {
            let mut now = status.clone();
            now.up = up;
            now.read |= read;
            now.read_error = read_error;
            if let Some(error) = failing.or(error) {
                now.last_error = Some(error);
            }
            if now.up != status.up {
                now.since = SystemTime::now();
            }
            let changed = now != *status;
            *status = now;
            changed
        });
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Activity = Activity::Read;
    const PUBLISH: Activity = Activity::Publish;

    #[test]
    fn a_registry_is_up_when_all_of_its_activities_succeed() {
        type Step<'a> = (Activity, Result<(), &'a str>);
        let ok = |activity| (activity, Ok(()));
        let no = |activity, error| (activity, Err(error));
        let table: [(&[Step<'_>], bool, bool, Option<&str>); 8] = [
            (&[], false, false, None),
            (&[ok(READ)], false, true, None),
            (&[ok(PUBLISH)], false, false, None),
            (&[ok(READ), ok(PUBLISH)], true, true, None),
            (&[no(READ, "a")], false, false, Some("a")),
            (
                &[ok(READ), ok(PUBLISH), no(READ, "b")],
                false,
                true,
                Some("b"),
            ),
            (&[ok(READ), no(PUBLISH, "c")], false, true, Some("c")),
            (
                &[no(READ, "d"), no(PUBLISH, "e"), ok(READ), ok(PUBLISH)],
                true,
                true,
                Some("e"),
            ),
        ];
        for (steps, up, read, last_error) in table {
            let reporter = StatusReporter::new("etcd", &[READ, PUBLISH]);
            for (activity, outcome) in steps {
                match outcome {
                    Ok(()) => reporter.succeeded(*activity),
                    Err(error) => reporter.failed(*activity, (*error).to_owned()),
                }
            }
            let status = reporter.subscribe().borrow().clone();
            assert_eq!((status.up, status.read), (up, read), "{steps:?}");
            assert_eq!(status.last_error.as_deref(), last_error, "{steps:?}");
            let error = if up {
                None
            } else {
                last_error.or(Some("no answer yet"))
            };
            assert_eq!(status.error(), error, "{steps:?}");
        }
    }

    #[test]
    fn with_endpoint_slices_both_sources_have_to_be_read() {
        let reporter = StatusReporter::new("file", &[READ]);
        reporter.also_read_endpoints();
        let seen = reporter.subscribe();
        assert_eq!(seen.borrow().kind, "file,endpoints");
        reporter.succeeded(READ);
        assert!(!seen.borrow().read && !seen.borrow().up);
        reporter.failed(Activity::ReadEndpoints, "403".to_owned());
        let expected = "the registry cannot be read: 403";
        assert_eq!(seen.borrow().no_address(), expected);
        reporter.succeeded(Activity::ReadEndpoints);
        assert!(seen.borrow().read && seen.borrow().up);
    }

    /// No record is written before the local server has answered.
    #[test]
    fn a_record_that_cannot_be_written_makes_the_registry_unhealthy() {
        const RECORD: Activity = Activity::PublishRecord;
        let reporter = StatusReporter::new("etcd", &[READ, PUBLISH]);
        let seen = reporter.subscribe();
        reporter.succeeded(READ);
        reporter.succeeded(PUBLISH);
        assert!(seen.borrow().up, "no record yet");
        reporter.failed(RECORD, "permission denied".to_owned());
        assert_eq!(seen.borrow().error(), Some("permission denied"));
        assert_eq!(seen.borrow().read_error, None);
        reporter.succeeded(PUBLISH);
        assert_eq!(seen.borrow().error(), Some("permission denied"));
        reporter.succeeded(RECORD);
        assert!(seen.borrow().up);
    }

    #[test]
    fn the_reason_for_a_missing_address_is_the_registry_while_it_is_down() {
        let reporter = StatusReporter::new("etcd", &[READ]);
        let seen = reporter.subscribe();
        reporter.failed(READ, "no connection".to_owned());
        let expected = "the registry cannot be read: no connection";
        assert_eq!(seen.borrow().no_address(), expected);
        reporter.succeeded(READ);
        assert_eq!(seen.borrow().no_address(), "it has published no address");
        reporter.failed(PUBLISH, "read-only".to_owned());
        assert_eq!(seen.borrow().no_address(), "it has published no address");
        let unread = StatusReporter::new("etcd", &[READ]).subscribe();
        assert_eq!(
            unread.borrow().no_address(),
            "the registry has not been read yet"
        );
    }
}
