//! What `/debug/vanishing` shows, and what `skewbridge vanishing` reads.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use skewbridge_k8s_api::time::Time;
use skewbridge_released_apis::Minor;

use super::apis::Reason;

/// The ledger of a bridge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// When the bridge started to count.
    #[serde(with = "time")]
    pub since: Time,
    /// The newest server of the cluster; absent until its version is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest_server: Option<Minor>,
    /// The release whose missing APIs are watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Minor>,
    /// Whether the APIs of the newest server and those of the target are known. If not, only calls
    /// that the server reports as deprecated are counted.
    pub target_known: bool,
    /// One entry for each caller, API and verb.
    pub calls: Vec<Call>,
    /// Calls of further callers, beyond the limit of the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<CallStats>,
}

/// The calls of one caller to one API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// The user who has authenticated.
    pub user: String,
    /// The user who is impersonated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub impersonated_user: Option<String>,
    /// Empty if the caller sends none.
    pub user_agent: String,
    /// Empty for the core group.
    pub group: String,
    /// The version of the group.
    pub version: String,
    /// The plural resource name.
    pub resource: String,
    /// The verb, as in RBAC.
    pub verb: String,
    /// Why the call is counted.
    pub reason: Reason,
    /// A minor version that does not serve the API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable_in: Option<Minor>,
    /// The API to use instead, if the server names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replacement: Option<String>,
    /// How many calls there were, and when.
    #[serde(flatten)]
    pub stats: CallStats,
}

impl Call {
    /// What distinguishes calls: the API, the caller, and the verb.
    pub fn key(&self) -> impl Ord + '_ {
        let api = (&self.group, &self.version, &self.resource);
        let caller = (&self.user, &self.impersonated_user, &self.user_agent);
        (api, caller, &self.verb)
    }
}

/// How many calls there were, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CallStats {
    /// The number of calls.
    pub count: u64,
    /// The time of the first one.
    #[serde(with = "time")]
    pub first_seen: Time,
    /// The time of the last one.
    #[serde(with = "time")]
    pub last_seen: Time,
}

impl CallStats {
    /// One call.
    pub fn one(at: Time) -> Self {
        Self {
            count: 1,
            first_seen: at,
            last_seen: at,
        }
    }

    /// The calls of both.
    pub fn add(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.first_seen = self.first_seen.min(other.first_seen);
        self.last_seen = self.last_seen.max(other.last_seen);
    }
}

/// RFC 3339, as `metav1.Time`.
mod time {
    use super::{Deserialize, Deserializer, Serializer, Time};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature of serde")]
    pub(super) fn serialize<S: Serializer>(time: &Time, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Time, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || serde::de::Error::custom(format!("{text:?} is not a time of RFC 3339"));
        Time::parse(&text).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_is_json_and_is_read_as_it_is_written() {
        let json = json!({
            "since": "2026-11-19T15:00:00Z",
            "newestServer": "1.36",
            "target": "1.37",
            "targetKnown": true,
            "calls": [{
                "user": "alice", "impersonatedUser": "bob", "userAgent": "kubectl/v1.30.0",
                "group": "storage.k8s.io", "version": "v1beta1",
                "resource": "volumeattributesclasses", "verb": "list",
                "reason": "off-by-default", "unavailableIn": "1.37",
                "replacement": "storage.k8s.io/v1 VolumeAttributesClass",
                "count": 3,
                "firstSeen": "2026-11-19T15:00:01Z", "lastSeen": "2026-11-19T15:00:02Z",
            }],
            "other": {
                "count": 1,
                "firstSeen": "2026-11-19T15:00:01Z", "lastSeen": "2026-11-19T15:00:01Z",
            },
        });
        let report: Report = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&report).unwrap(), json);
        let empty = json!({"since": "2026-11-19T15:00:00Z", "targetKnown": false, "calls": []});
        let report: Report = serde_json::from_value(empty.clone()).unwrap();
        assert_eq!(serde_json::to_value(&report).unwrap(), empty);
        let wrong = json!({"since": "yesterday", "targetKnown": false, "calls": []});
        assert!(serde_json::from_value::<Report>(wrong).is_err());
    }

    #[test]
    fn stats_add_up() {
        let at = |second| Time::from_unix(second);
        let mut stats = CallStats::one(at(5));
        stats.add(CallStats::one(at(3)));
        stats.add(CallStats::one(at(9)));
        let expected = CallStats {
            count: 3,
            first_seen: at(3),
            last_seen: at(9),
        };
        assert_eq!(stats, expected);
    }
}
