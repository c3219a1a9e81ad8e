//! The served APIs of a server as a compact, bounded and versioned record that outlives the process
//! that wrote it.
//!
//! Bridges publish the record of their local server in the registry, and keep the
//! records of all servers in `--state-dir`. A bridge that starts therefore knows
//! what every server with a valid Lease serves, reachable or not.
//!
//! The encoding is a magic number, a format version, and the zlib stream of a JSON
//! object. A reader ignores fields that it does not know; a format version that it
//! does not know makes the record unreadable for it, and nothing else.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde::{Deserialize, Serialize};
use skewbridge_discovery::document::{Group, Schema};
use skewbridge_discovery::{Document, Index};
use skewbridge_k8s_api::version;

use crate::host_time::HostTime;
use crate::identity::Identity;
use crate::served_apis::ServedApis;

/// The largest encoded record. In base64 it takes 128 KiB of the 256 KiB that
/// Kubernetes allows for all annotations of an object; the record of a
/// kube-apiserver 1.36 has 2.4 KiB.
pub const MAX_ENCODED_BYTES: usize = 96 * 1024;

/// The largest JSON inside of a record: zlib turns few bytes into many. The JSON of
/// a kube-apiserver 1.36 has 32 KiB.
pub const MAX_DECODED_BYTES: u64 = 4 * 1024 * 1024;

/// Serving keys that a record names: the current one and one before it.
pub const MAX_SERVING_KEYS: usize = 2;

/// The largest number of records: many more servers than a control plane has.
pub const MAX_RECORDS: usize = 256;

/// Served records, by server.
pub type Records = BTreeMap<Identity, Arc<ServedRecord>>;

const MAGIC: &[u8; 3] = b"SKB";
const FORMAT_VERSION: u8 = 1;

/// The SHA-256 digest of a `SubjectPublicKeyInfo`.
pub type KeyDigest = [u8; 32];

/// The served APIs of one server, and data of its bridge.
#[derive(Debug, Clone)]
pub struct ServedRecord {
    /// The server.
    pub identity: Identity,
    /// Its served APIs, without those that all servers of the cluster share.
    pub served: Arc<ServedApis>,
    /// When the APIs were observed, by the clock of the bridge that observed them.
    pub observed_at: SystemTime,
    /// The address of the server itself, if other hosts may reach it.
    pub server: Option<SocketAddr>,
    /// The address of its bridge, to which the keys belong.
    pub bridge: Option<SocketAddr>,
    /// When the bridge of the server announced its departure. `None` while it runs, and after a
    /// crash.
    pub bridge_left_at: Option<SystemTime>,
    /// Digests of the serving keys of the bridge. Empty if unknown.
    pub serving_keys: Vec<KeyDigest>,
    /// Only in `--state-dir`: the `observed_at` of the published record that this one is as
    /// late as, or later than. It makes the order of records independent of clocks.
    pub supersedes: Option<SystemTime>,
    /// Only in `--state-dir`: when the departure of the server's bridge began.
    pub departure: Option<StoredDeparture>,
}

/// A stored departure of the bridge of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDeparture {
    /// The announcement, as [`ServedRecord::bridge_left_at`].
    pub announced: Option<SystemTime>,
    /// Whether the file of addresses has no entry for the server.
    pub is_missing_in_file: bool,
    /// When it began, by the clock of the host that has stored it.
    pub since: HostTime,
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not the encoding of a record.
    #[error("it is not a served record: {0}")]
    Malformed(String),
    /// Written by a later release.
    #[error("its format version is {0}, and this release reads version {FORMAT_VERSION}")]
    UnknownVersion(u8),
    /// Too large to be written or read.
    #[error("it is larger than {0} bytes")]
    TooLarge(u64),
}

#[derive(Serialize, Deserialize)]
struct Content<'a> {
    identity: &'a str,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(rename = "learnt")]
    observed_at: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    server: Option<SocketAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bridge: Option<SocketAddr>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    left: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    supersedes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    departure: Option<DepartureContent>,
    api: Groups,
    apis: Groups,
}

#[derive(Serialize, Deserialize)]
struct DepartureContent {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    announced: Option<u64>,
    #[serde(default)]
    missing: bool,
    boot: String,
    millis: i64,
}

#[derive(Serialize, Deserialize)]
struct Groups {
    #[serde(default)]
    beta: bool,
    items: Vec<Group>,
}

impl Groups {
    fn of(document: &Document) -> Self {
        Self {
            beta: document.schema == Schema::V2Beta1,
            items: document.items.clone(),
        }
    }

    fn document(self) -> Arc<Document> {
        Arc::new(Document {
            schema: if self.beta {
                Schema::V2Beta1
            } else {
                Schema::V2
            },
            items: self.items,
        })
    }
}

impl ServedRecord {
    /// The record of a server that was polled at `observed_at`, without the group-versions
    /// that all servers share.
    pub fn new(
        identity: Identity,
        served: &ServedApis,
        is_shared: impl Fn(&str, &str) -> bool,
        observed_at: SystemTime,
    ) -> Self {
        let documents = [0, 1].map(|at| {
            let document = served.documents[at].without(&is_shared);
            Arc::new(document)
        });
        Self {
            identity,
            served: Arc::new(served_apis(
                documents,
                served.version,
                served.version_suffix.clone(),
            )),
            // The precision of an encoded record.
            observed_at: SystemTime::UNIX_EPOCH + Duration::from_millis(unix_millis(observed_at)),
            server: None,
            bridge: None,
            bridge_left_at: None,
            serving_keys: Vec::new(),
            supersedes: None,
            departure: None,
        }
    }

    /// Whether two records have the same APIs.
    pub fn has_same_apis(&self, other: &Self) -> bool {
        self.served.version == other.served.version
            && self.served.version_suffix == other.served.version_suffix
            && self.served.documents == other.served.documents
    }

    /// This record with the bridge data of another one.
    #[must_use]
    pub fn with_bridge_of(mut self, other: &Self) -> Self {
        self.server = other.server;
        self.bridge = other.bridge;
        self.bridge_left_at = other.bridge_left_at;
        self.serving_keys.clone_from(&other.serving_keys);
        self
    }

    /// Whether two records have the same content, apart from the time of observation.
    pub fn has_same_content(&self, other: &Self) -> bool {
        self.identity == other.identity
            && self.has_same_apis(other)
            && self.server == other.server
            && self.bridge == other.bridge
            && self.bridge_left_at == other.bridge_left_at
            && self.serving_keys == other.serving_keys
    }

    /// The bytes of the record.
    pub fn encode(&self) -> Result<Vec<u8>, RecordError> {
        let content = Content {
            identity: self.identity.as_str(),
            version: (self.served.version).map(|it| format!("{it}{}", self.served.version_suffix)),
            observed_at: unix_millis(self.observed_at),
            server: self.server,
            bridge: self.bridge,
            left: self.bridge_left_at.map(unix_millis),
            keys: self.serving_keys.iter().map(encode_hex).collect(),
            supersedes: self.supersedes.map(unix_millis),
            departure: self.departure.as_ref().map(|it| DepartureContent {
                announced: it.announced.map(unix_millis),
                missing: it.is_missing_in_file,
                boot: it.since.boot.clone(),
                millis: it.since.millis,
            }),
            api: Groups::of(&self.served.documents[0]),
            apis: Groups::of(&self.served.documents[1]),
        };
        let malformed = |error: &dyn std::fmt::Display| RecordError::Malformed(error.to_string());
        let json = serde_json::to_vec(&content).map_err(|error| malformed(&error))?;
        if u64::try_from(json.len()).is_ok_and(|length| length > MAX_DECODED_BYTES) {
            return Err(RecordError::TooLarge(MAX_DECODED_BYTES));
        }
        let head = [MAGIC.as_slice(), &[FORMAT_VERSION]].concat();
        let mut encoder = ZlibEncoder::new(head, Compression::best());
        encoder
            .write_all(&json)
            .map_err(|error| malformed(&error))?;
        let bytes = encoder.finish().map_err(|error| malformed(&error))?;
        if bytes.len() > MAX_ENCODED_BYTES {
            return Err(RecordError::TooLarge(MAX_ENCODED_BYTES as u64));
        }
        Ok(bytes)
    }

    /// Decodes a record. Memory is bounded by [`MAX_DECODED_BYTES`] for any input.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        if bytes.len() > MAX_ENCODED_BYTES {
            return Err(RecordError::TooLarge(MAX_ENCODED_BYTES as u64));
        }
        let malformed = |cause: &str| RecordError::Malformed(cause.to_owned());
        let rest = bytes
            .strip_prefix(MAGIC)
            .ok_or_else(|| malformed("no magic number"))?;
        let (version, packed) = rest
            .split_first()
            .ok_or_else(|| malformed("no format version"))?;
        if *version != FORMAT_VERSION {
            return Err(RecordError::UnknownVersion(*version));
        }
        let mut json = Vec::new();
        ZlibDecoder::new(packed)
            .take(MAX_DECODED_BYTES + 1)
            .read_to_end(&mut json)
            .map_err(|error| malformed(&error.to_string()))?;
        if u64::try_from(json.len()).is_ok_and(|length| length > MAX_DECODED_BYTES) {
            return Err(RecordError::TooLarge(MAX_DECODED_BYTES));
        }
        let content: Content<'_> =
            serde_json::from_slice(&json).map_err(|error| malformed(&error.to_string()))?;
        let identity =
            Identity::stored(content.identity).map_err(|error| malformed(&error.to_string()))?;
        let time = |millis| {
            SystemTime::UNIX_EPOCH
                .checked_add(Duration::from_millis(millis))
                .ok_or_else(|| malformed("a time that is out of range"))
        };
        let suffix = content.version.as_deref().map_or("", version::suffix);
        let suffix = Arc::from(suffix);
        let version = match content.version {
            None => None,
            Some(text) => Some(text.parse().map_err(|_| malformed("an invalid version"))?),
        };
        let keys = content.keys.iter().take(MAX_SERVING_KEYS);
        let keys: Option<Vec<_>> = keys.map(|key| decode_hex(key)).collect();
        let documents = [content.api.document(), content.apis.document()];
        Ok(Self {
            identity,
            served: Arc::new(served_apis(documents, version, suffix)),
            observed_at: time(content.observed_at)?,
            server: content.server,
            bridge: content.bridge,
            bridge_left_at: content.left.map(time).transpose()?,
            serving_keys: keys.ok_or_else(|| malformed("a key digest that is not hexadecimal"))?,
            supersedes: content.supersedes.map(time).transpose()?,
            departure: match content.departure {
                None => None,
                Some(it) => Some(StoredDeparture {
                    announced: it.announced.map(time).transpose()?,
                    is_missing_in_file: it.missing,
                    since: HostTime {
                        boot: it.boot,
                        millis: it.millis,
                    },
                }),
            },
        })
    }
}

/// Without entity tags: complete documents are requested from the server.
fn served_apis(
    documents: [Arc<Document>; 2],
    version: Option<version::Version>,
    version_suffix: Arc<str>,
) -> ServedApis {
    ServedApis {
        index: Arc::new(Index::new(&[&documents[0], &documents[1]])),
        documents,
        etags: [None, None],
        version,
        version_suffix,
        by_bridge: false,
    }
}

/// Milliseconds since 1970; a time before that is 1970.
fn unix_millis(time: SystemTime) -> u64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn encode_hex(digest: &KeyDigest) -> String {
    use std::fmt::Write as _;
    digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn decode_hex(text: &str) -> Option<KeyDigest> {
    let mut digest = KeyDigest::default();
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (at, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use skewbridge_discovery::document::{Metadata, Resource, Version};

    use super::*;

    /// A document with one resource in each of these group-versions.
    pub(crate) fn document(group_versions: &[(String, String)]) -> Document {
        let group = |(group, version): &(String, String)| Group {
            metadata: Metadata {
                name: group.clone(),
                null_timestamp: false,
            },
            versions: vec![Version {
                version: version.clone(),
                resources: vec![Resource {
                    resource: "things".to_owned(),
                    verbs: vec!["get".to_owned(), "list".to_owned()],
                    ..Resource::default()
                }],
                ..Version::default()
            }],
        };
        Document {
            items: group_versions.iter().map(group).collect(),
            ..Document::default()
        }
    }

    pub(crate) fn record(name: &str, groups: &[&str], observed_at: SystemTime) -> ServedRecord {
        let groups: Vec<_> = groups
            .iter()
            .map(|group| ((*group).to_owned(), "v1".to_owned()))
            .collect();
        let documents = [Arc::default(), Arc::new(document(&groups))];
        let served = served_apis(documents, "1.36.4".parse().ok(), "-rc.1+k3s1".into());
        let identity = Identity::named(name).unwrap();
        ServedRecord::new(identity, &served, |_, _| false, observed_at)
    }

    fn instant(millis: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn shared_group_versions_are_not_in_a_record() {
        let whole = record("a", &["apps", "example.com"], instant(1));
        let record = ServedRecord::new(
            whole.identity.clone(),
            &whole.served,
            |group, version| (group, version) == ("example.com", "v1"),
            instant(1),
        );
        let names = |record: &ServedRecord| -> Vec<_> {
            let items = &record.served.documents[1].items;
            items.iter().map(|group| group.name().to_owned()).collect()
        };
        assert_eq!(names(&whole), ["apps", "example.com"]);
        assert_eq!(names(&record), ["apps"]);
    }

    /// With all APIs enabled.
    #[test]
    fn the_record_of_a_real_server_has_a_few_kib() {
        let document = |bytes: &[u8]| Arc::new(Document::parse(bytes).unwrap());
        let documents = [
            document(include_bytes!(
                "../../discovery/tests/data/1.36.4-all-api.json"
            )),
            document(include_bytes!(
                "../../discovery/tests/data/1.36.4-all-apis.json"
            )),
        ];
        let served = served_apis(documents, "1.36.4".parse().ok(), "-rc.1+k3s1".into());
        let identity = Identity::named("apiserver-a").unwrap();
        let record = ServedRecord::new(identity, &served, |_, _| false, instant(1));
        let length = record.encode().unwrap().len();
        assert!((2_000..12_000).contains(&length), "{length} bytes");
        let read = ServedRecord::decode(&record.encode().unwrap()).unwrap();
        assert!(read.has_same_content(&record));
    }

    #[test]
    fn a_later_format_version_is_distinguished_from_malformed_bytes() {
        let mut bytes = record("a", &["apps"], instant(1)).encode().unwrap();
        bytes[3] = 2;
        let later = ServedRecord::decode(&bytes);
        assert!(matches!(later, Err(RecordError::UnknownVersion(2))));
        for garbage in [
            &b""[..],
            b"SK",
            b"SKB",
            b"SKB\x01",
            b"SKB\x01garbage",
            b"{}",
        ] {
            let decoded = ServedRecord::decode(garbage);
            assert!(
                matches!(decoded, Err(RecordError::Malformed(_))),
                "{garbage:?}"
            );
        }
    }

    #[test]
    fn a_decompression_bomb_is_rejected() {
        let mut encoder = ZlibEncoder::new([MAGIC.as_slice(), &[1]].concat(), Compression::best());
        let spaces = vec![b' '; 1024 * 1024];
        for _ in 0..=MAX_DECODED_BYTES / (1024 * 1024) {
            encoder.write_all(&spaces).unwrap();
        }
        let bomb = encoder.finish().unwrap();
        assert!(bomb.len() < MAX_ENCODED_BYTES);
        let decoded = ServedRecord::decode(&bomb);
        assert!(matches!(decoded, Err(RecordError::TooLarge(_))));
        let long = vec![0; MAX_ENCODED_BYTES + 1];
        let decoded = ServedRecord::decode(&long);
        assert!(matches!(decoded, Err(RecordError::TooLarge(_))));
    }

    #[test]
    fn a_record_above_the_size_limit_is_not_written() {
        let groups: Vec<_> = (0..60_000).map(|n| format!("g{n}.example.com")).collect();
        let groups: Vec<_> = groups.iter().map(String::as_str).collect();
        let encoded = record("a", &groups, instant(1)).encode();
        assert!(matches!(encoded, Err(RecordError::TooLarge(_))));
    }

    proptest! {
        #[test]
        fn an_encoded_record_decodes_to_the_same_content(
            name in "[a-z0-9]([a-z0-9.]?[a-z0-9]){0,60}",
            groups in prop::collection::vec(("[a-z]{0,9}", "v[1-9]"), 0..9),
            observed_at in 0..u64::MAX / 2_000_000,
            left in prop::option::of(0..u64::MAX / 2_000_000),
            server: Option<([u8; 4], u16)>,
            keys in prop::collection::vec(any::<KeyDigest>(), 0..=MAX_SERVING_KEYS),
            beta: bool,
        ) {
            let mut apis = document(&groups);
            if beta {
                apis.schema = Schema::V2Beta1;
            }
            let served = served_apis([Arc::default(), Arc::new(apis)], None, Arc::default());
            let identity = Identity::named(&name).unwrap();
            let mut record = ServedRecord::new(identity, &served, |_, _| false, instant(observed_at));
            record.server = server.map(SocketAddr::from);
            record.bridge = server.map(|(ip, port)| SocketAddr::from((ip, port ^ 1)));
            record.bridge_left_at = left.map(instant);
            record.serving_keys = keys;
            record.supersedes = left.map(instant);
            record.departure = server.map(|(_, port)| StoredDeparture {
                announced: record.bridge_left_at,
                is_missing_in_file: beta,
                since: HostTime {
                    boot: name.clone(),
                    millis: i64::from(port) - 9,
                },
            });
            let read = ServedRecord::decode(&record.encode().unwrap()).unwrap();
            prop_assert!(read.has_same_content(&record));
            prop_assert_eq!(read.observed_at, record.observed_at);
            prop_assert_eq!(read.supersedes, record.supersedes);
            prop_assert_eq!(read.departure, record.departure);
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(bytes: Vec<u8>, at: prop::sample::Index, byte: u8) {
            let _ = ServedRecord::decode(&bytes);
            let _ = ServedRecord::decode(&[MAGIC.as_slice(), &[1], &bytes].concat());
            let mut damaged = record("a", &["apps"], instant(7)).encode().unwrap();
            let at = at.index(damaged.len());
            damaged[at] = byte;
            let _ = ServedRecord::decode(&damaged);
            let _ = ServedRecord::decode(&damaged[..at]);
        }
    }
}
