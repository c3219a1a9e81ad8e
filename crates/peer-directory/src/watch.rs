//! Lists and watches of any kind of object in JSON.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Error;

/// An object that a watch cache can hold.
pub trait WatchedObject: DeserializeOwned {
    /// Unique among the objects that are watched together.
    fn name(&self) -> &str;
    /// The resource version from which a watch resumes after this object.
    fn resource_version(&self) -> &str;
}

/// The metadata that every object has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) resource_version: String,
}

/// A list, or a page of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List<T> {
    /// The resource version from which a watch starts after this list.
    pub resource_version: String,
    /// The token of the next page; `None` on the last.
    pub next: Option<String>,
    /// The objects.
    pub items: Vec<T>,
}

impl<T: DeserializeOwned> List<T> {
    /// Parses a list.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let raw: RawList<T> = serde_json::from_slice(json)?;
        Ok(Self {
            resource_version: raw.metadata.resource_version,
            next: Some(raw.metadata.next).filter(|token| !token.is_empty()),
            items: raw.items.unwrap_or_default(),
        })
    }
}

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct RawList<T> {
    metadata: ListMetadata,
    // An empty list may be encoded as null.
    items: Option<Vec<T>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent<T> {
    /// The object was created.
    Added(T),
    /// The object was changed.
    Modified(T),
    /// The object was deleted; this was its last state.
    Deleted(T),
    /// All events up to this resource version have been sent.
    Bookmark {
        /// The resource version from which a watch resumes.
        resource_version: String,
        /// Whether all objects that existed when the watch began have been sent
        /// (`sendInitialEvents`).
        initial_events_end: bool,
    },
    /// The watch has failed.
    Error(WatchError),
}

/// Why a watch has failed: the `metav1.Status` that it sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct WatchError {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason.
    pub reason: String,
    /// The human-readable message.
    pub message: String,
}

impl WatchError {
    /// Whether the resource version is too old for the server, so that a new list is
    /// needed.
    pub fn is_gone(&self) -> bool {
        self.code == 410 || matches!(&*self.reason, "Expired" | "Gone")
    }
}

impl<T: WatchedObject> WatchEvent<T> {
    /// Parses one event: a line of a watch.
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let raw: RawEvent = serde_json::from_slice(json)?;
        let object = |value| serde_json::from_value(value);
        Ok(match &*raw.kind {
            "ADDED" => Self::Added(object(raw.object)?),
            "MODIFIED" => Self::Modified(object(raw.object)?),
            "DELETED" => Self::Deleted(object(raw.object)?),
            "BOOKMARK" => {
                let metadata = &raw.object["metadata"];
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                Self::Bookmark {
                    resource_version: text(&metadata["resourceVersion"]),
                    initial_events_end: metadata["annotations"]["k8s.io/initial-events-end"]
                        == "true",
                }
            }
            "ERROR" => Self::Error(serde_json::from_value(raw.object)?),
            _ => return Err(Error::Event(raw.kind)),
        })
    }

    /// The resource version from which a watch resumes after this event.
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) => {
                Some(object.resource_version())
            }
            Self::Bookmark {
                resource_version, ..
            } => Some(resource_version),
            Self::Error(_) => None,
        }
    }
}

#[derive(Deserialize)]
struct RawEvent {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct TestObject {
        metadata: Metadata,
    }

    impl WatchedObject for TestObject {
        fn name(&self) -> &str {
            &self.metadata.name
        }

        fn resource_version(&self) -> &str {
            &self.metadata.resource_version
        }
    }

    fn thing(name: &str, resource_version: &str) -> TestObject {
        TestObject {
            metadata: Metadata {
                name: name.to_owned(),
                resource_version: resource_version.to_owned(),
            },
        }
    }

    #[test]
    fn events_are_parsed() {
        let object =
            r#"{"kind":"TestObject","metadata":{"name":"a","resourceVersion":"7"},"spec":{}}"#;
        let bookmark = |end| WatchEvent::Bookmark {
            resource_version: "243".to_owned(),
            initial_events_end: end,
        };
        let expired = WatchError {
            code: 410,
            reason: "Expired".to_owned(),
            message: "too old resource version: 1 (200)".to_owned(),
        };
        for (kind, object, expected) in [
            ("ADDED", object, WatchEvent::Added(thing("a", "7"))),
            ("MODIFIED", object, WatchEvent::Modified(thing("a", "7"))),
            ("DELETED", object, WatchEvent::Deleted(thing("a", "7"))),
            // As kube-apiserver 1.36.4 sends it.
            (
                "BOOKMARK",
                r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"resourceVersion":"243","annotations":{"k8s.io/initial-events-end":"true"}},"spec":{}}"#,
                bookmark(true),
            ),
            (
                "BOOKMARK",
                r#"{"metadata":{"resourceVersion":"243"}}"#,
                bookmark(false),
            ),
            (
                "ERROR",
                r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: 1 (200)","reason":"Expired","code":410}"#,
                WatchEvent::Error(expired),
            ),
        ] {
            let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
            assert_eq!(WatchEvent::parse(line.as_bytes()).unwrap(), expected);
        }
    }

    #[test]
    fn malformed_events_are_rejected() {
        for line in [
            "",
            "{}",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"ADDED","object":[]}"#,
            r#"{"type":"SHOUTED","object":{}}"#,
        ] {
            assert!(
                WatchEvent::<TestObject>::parse(line.as_bytes()).is_err(),
                "{line}"
            );
        }
    }

    #[test]
    fn a_watch_resumes_at_the_version_of_its_last_event() {
        let bookmark = WatchEvent::<TestObject>::Bookmark {
            resource_version: "9".to_owned(),
            initial_events_end: false,
        };
        assert_eq!(bookmark.resource_version(), Some("9"));
        let deleted = WatchEvent::Deleted(thing("a", "8"));
        assert_eq!(deleted.resource_version(), Some("8"));
        let failed = WatchEvent::<TestObject>::Error(WatchError::default());
        assert_eq!(failed.resource_version(), None);
    }

    #[test]
    fn only_an_expired_resource_version_needs_a_new_list() {
        for (code, reason, expected) in [
            (410, "", true),
            (0, "Expired", true),
            (0, "Gone", true),
            (500, "InternalError", false),
            (429, "TooManyRequests", false),
        ] {
            let failure = WatchError {
                code,
                reason: reason.to_owned(),
                message: String::new(),
            };
            assert_eq!(failure.is_gone(), expected, "{code} {reason}");
        }
    }

    #[test]
    fn lists_are_parsed_page_by_page() {
        let page = List::<TestObject>::parse(
            br#"{"kind":"ThingList","metadata":{"resourceVersion":"12","continue":"abc"},
                "items":[{"metadata":{"name":"a","resourceVersion":"7"}}]}"#,
        );
        let page = page.unwrap();
        assert_eq!(page.resource_version, "12");
        assert_eq!(page.next.as_deref(), Some("abc"));
        assert_eq!(page.items, [thing("a", "7")]);

        let last =
            List::<TestObject>::parse(br#"{"metadata":{"resourceVersion":"12"},"items":null}"#);
        let last = last.unwrap();
        assert!(last.next.is_none() && last.items.is_empty());
    }
}
