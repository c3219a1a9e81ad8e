//! The record in etcd with the address at which a kube-apiserver is reached by its peers.
//!
//! It is an `Endpoints` that never passes through the API (KEP-4020, Identifying
//! destination apiserver's network location): users cannot write it, so it is
//! trusted.

use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;

use crate::{Error, Identity};
use skewbridge_k8s_api::protobuf::{DecodeError, Field, Fields, Writer, envelope};

/// The address at which a kube-apiserver is reached by its peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRecord {
    /// The server.
    pub identity: Identity,
    /// Its address.
    pub address: SocketAddr,
    /// Counts the writes of the record: kube-apiserver increments it each time, because its storage
    /// skips writes that change nothing.
    pub generation: i64,
}

/// The TTL of the etcd lease of a record.
pub const TTL_SECONDS: i64 = 15;

/// How often a record is written.
pub const WRITE_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);

const MAGIC: &[u8] = b"k8s\0";
const IDENTITY_LABEL: &str = "apiserverIdentity";
const DIRECTORY: &str = "/peerserverleases/";

impl AddressRecord {
    /// The common prefix of all record keys, under a prefix such as `/registry`.
    pub fn directory(prefix: &str) -> String {
        let prefix = prefix.trim_matches('/');
        match prefix {
            "" => DIRECTORY.to_owned(),
            _ => format!("/{prefix}{DIRECTORY}"),
        }
    }

    /// The key of this identity's record.
    pub fn key(prefix: &str, identity: &Identity) -> String {
        Self::directory(prefix) + identity.as_str()
    }

    /// The value, byte for byte as kube-apiserver writes it. Fields by number,
    /// as in the `generated.proto` of core/v1 and of apimachinery.
    pub fn encode(&self) -> Vec<u8> {
        let message = Writer::default;
        let label = message()
            .text(1, IDENTITY_LABEL)
            .text(2, self.identity.as_str());
        let metadata = (1..=6)
            .fold(message(), |writer, number| writer.text(number, ""))
            .number(7, self.generation)
            .message(8, message())
            .message(11, label);
        let address = message()
            .text(1, &self.address.ip().to_string())
            .text(3, "");
        let port = message()
            .text(1, "https")
            .number(2, self.address.port().into())
            .text(3, "TCP");
        let subset = message().message(1, address).message(3, port);
        let endpoints = message().message(1, metadata).message(2, subset);
        envelope("v1", "Endpoints", endpoints)
    }

    /// Decodes a record: protobuf, or the JSON of a kube-apiserver that is
    /// configured to store JSON. The label names the server, as for kube-apiserver; without a label
    /// the last part of the key does.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, Error> {
        let stored = match value.strip_prefix(MAGIC) {
            Some(unknown) => Stored::from_protobuf(unknown)?,
            None if value.starts_with(b"{") => serde_json::from_slice::<Json>(value)?.into(),
            None => return Err(Error::Record("neither protobuf nor JSON")),
        };
        stored.record(key)
    }
}

/// The fields of a stored record.
#[derive(Debug, Default)]
struct Stored {
    identity: Option<String>,
    generation: i64,
    ip: Option<String>,
    port: Option<i64>,
}

impl Stored {
    fn record(self, key: &str) -> Result<AddressRecord, Error> {
        let (_, name) = key.rsplit_once('/').unwrap_or(("", key));
        let identity = self.identity.filter(|identity| !identity.is_empty());
        let identity = Identity::named(identity.as_deref().unwrap_or(name))?;
        let (ip, port) = (self.ip.unwrap_or_default(), self.port.unwrap_or_default());
        let address = match (ip.parse::<IpAddr>(), u16::try_from(port)) {
            (Ok(ip), Ok(port @ 1..)) => SocketAddr::new(ip, port),
            _ => return Err(Error::Address { ip, port }),
        };
        Ok(AddressRecord {
            identity,
            address,
            generation: self.generation,
        })
    }

    fn from_protobuf(unknown: &[u8]) -> Result<Self, Error> {
        let mut raw: &[u8] = &[];
        for field in Fields::of(unknown) {
            match field? {
                Field::Bytes(1, type_meta) => is_endpoints(type_meta)?,
                Field::Bytes(2, message) => raw = message,
                Field::Bytes(3, [_, ..]) => return Err(Error::Record("its content is encoded")),
                _ => {}
            }
        }
        let mut stored = Self::default();
        let mut subset = None;
        for field in Fields::of(raw) {
            match field? {
                Field::Bytes(1, metadata) => stored.metadata(metadata)?,
                Field::Bytes(2, message) => _ = subset.get_or_insert(message),
                _ => {}
            }
        }
        stored.subset(subset.unwrap_or_default())?;
        Ok(stored)
    }

    fn metadata(&mut self, metadata: &[u8]) -> Result<(), Error> {
        for field in Fields::of(metadata) {
            match field? {
                Field::Number(7, generation) => self.generation = generation,
                Field::Bytes(11, entry) if first(entry, 1)? == Some(IDENTITY_LABEL.as_bytes()) => {
                    self.identity = first(entry, 2)?.map(text).transpose()?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The first address and the first port, as kube-apiserver reads it.
    fn subset(&mut self, subset: &[u8]) -> Result<(), Error> {
        if let Some(address) = first(subset, 1)? {
            self.ip = first(address, 1)?.map(text).transpose()?;
        }
        for field in Fields::of(first(subset, 3)?.unwrap_or_default()) {
            if let Field::Number(2, port) = field? {
                self.port = Some(port);
            }
        }
        Ok(())
    }
}

/// kube-apiserver keeps other kinds under other keys.
fn is_endpoints(type_meta: &[u8]) -> Result<(), Error> {
    match first(type_meta, 2)? {
        None | Some(b"" | b"Endpoints") => Ok(()),
        Some(_) => Err(Error::Record("not an Endpoints")),
    }
}

/// The first field of this number that holds bytes.
fn first(message: &[u8], wanted: u64) -> Result<Option<&[u8]>, Error> {
    for field in Fields::of(message) {
        match field? {
            Field::Bytes(number, value) if number == wanted => return Ok(Some(value)),
            _ => {}
        }
    }
    Ok(None)
}

fn text(bytes: &[u8]) -> Result<String, Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(Error::Record("a text is not UTF-8")),
    }
}

impl From<DecodeError> for Error {
    fn from(_: DecodeError) -> Self {
        Self::Record("not protobuf")
    }
}

#[derive(Deserialize)]
struct Json {
    #[serde(default)]
    metadata: JsonMetadata,
    #[serde(default)]
    subsets: Vec<JsonSubset>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonMetadata {
    generation: i64,
    labels: JsonLabels,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonLabels {
    #[serde(rename = "apiserverIdentity")]
    identity: Option<String>,
}

#[derive(Deserialize)]
struct JsonSubset {
    #[serde(default)]
    addresses: Vec<JsonAddress>,
    #[serde(default)]
    ports: Vec<JsonPort>,
}

#[derive(Deserialize)]
struct JsonAddress {
    ip: String,
}

#[derive(Deserialize)]
struct JsonPort {
    port: i64,
}

impl From<Json> for Stored {
    fn from(json: Json) -> Self {
        let subset = json.subsets.into_iter().next();
        let (ip, port) = subset.map_or((None, None), |subset| {
            (
                subset.addresses.into_iter().next().map(|first| first.ip),
                subset.ports.first().map(|first| first.port),
            )
        });
        Self {
            identity: json.metadata.labels.identity,
            generation: json.metadata.generation,
            ip,
            port,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Captured from etcd: the third write of kube-apiserver 1.36.4 under the host name
    /// `kube-apiserver-0-1-36-4`, on 127.0.0.1:58175. (1.34.4 wrote the same except for the
    /// generation.)
    const CAPTURED: &str = "\
        6b3873000a0f0a0276311209456e64706f696e747312700a4b0a0012001a0022002a0032\
        00380342005a390a116170697365727665724964656e7469747912246170697365727665\
        722d696871767a7264616c377078337a71663573366563717335656912210a0d0a093132\
        372e302e302e311a001a100a05687474707310bfc6031a035443501a002200";

    const NAME: &str = "apiserver-ihqvzrdal7px3zqf5s6ecqs5ei";
    const KEY: &str = "/registry/peerserverleases/apiserver-ihqvzrdal7px3zqf5s6ecqs5ei";

    fn bytes(hex: &str) -> Vec<u8> {
        let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
        hex.as_bytes().chunks(2).map(pair).collect()
    }

    fn captured() -> AddressRecord {
        AddressRecord {
            identity: Identity::named(NAME).unwrap(),
            address: "127.0.0.1:58175".parse().unwrap(),
            generation: 3,
        }
    }

    #[test]
    fn an_encoded_record_equals_that_of_kube_apiserver() {
        assert_eq!(captured().encode(), bytes(CAPTURED));
    }

    #[test]
    fn a_record_of_kube_apiserver_is_decoded() {
        assert_eq!(
            AddressRecord::decode(KEY, &bytes(CAPTURED)).unwrap(),
            captured()
        );
    }

    #[test]
    fn the_key_is_that_of_kube_apiserver() {
        let identity = Identity::named(NAME).unwrap();
        for (prefix, expected) in [
            ("/registry", KEY),
            ("registry/", KEY),
            (
                "/a/b",
                "/a/b/peerserverleases/apiserver-ihqvzrdal7px3zqf5s6ecqs5ei",
            ),
            (
                "/",
                "/peerserverleases/apiserver-ihqvzrdal7px3zqf5s6ecqs5ei",
            ),
        ] {
            assert_eq!(AddressRecord::key(prefix, &identity), expected, "{prefix}");
        }
    }

    #[test]
    fn a_json_record_is_decoded() {
        let json = format!(
            r#"{{"kind":"Endpoints","apiVersion":"v1","metadata":{{"generation":3,"labels":{{"apiserverIdentity":"{NAME}"}}}},
                "subsets":[{{"addresses":[{{"ip":"127.0.0.1"}}],"ports":[{{"name":"https","port":58175,"protocol":"TCP"}}]}}]}}"#
        );
        assert_eq!(
            AddressRecord::decode(KEY, json.as_bytes()).unwrap(),
            captured()
        );
    }

    /// A stored value whose `Endpoints` is this.
    fn stored(endpoints: Writer) -> Vec<u8> {
        let unknown = Writer::default().message(2, endpoints);
        [MAGIC, &unknown.finish()].concat()
    }

    fn subset(ip: &str, port: i64) -> Writer {
        let address = Writer::default().text(1, ip);
        let port = Writer::default().number(2, port);
        Writer::default().message(1, address).message(3, port)
    }

    #[test]
    fn without_a_label_the_key_names_the_server() {
        let value = stored(Writer::default().message(2, subset("10.0.0.1", 6443)));
        let record =
            AddressRecord::decode("/registry/peerserverleases/apiserver-b", &value).unwrap();
        assert_eq!(record.identity.as_str(), "apiserver-b");
        assert_eq!(record.generation, 0);
        let unnamed = AddressRecord::decode("/registry/peerserverleases/", &value);
        assert!(matches!(unnamed, Err(Error::Identity(_))));
    }

    #[test]
    fn the_first_subset_is_used_and_unknown_fields_are_ignored() {
        let endpoints = Writer::default()
            .text(9, "from the future")
            .number(10, 7)
            .message(2, subset("fd00::12", 6444).text(12, "new"))
            .message(2, subset("10.0.0.2", 1));
        let record = AddressRecord::decode("a", &stored(endpoints)).unwrap();
        assert_eq!(record.address, "[fd00::12]:6444".parse().unwrap());
    }

    #[test]
    fn an_unusable_address_is_an_error() {
        for (ip, port) in [
            ("", 6443),
            ("master-1", 6443),
            ("10.0.0.1", 0),
            ("10.0.0.1", -1),
            ("10.0.0.1", 65_536),
        ] {
            let value = stored(Writer::default().message(2, subset(ip, port)));
            let decoded = AddressRecord::decode("a", &value);
            assert!(matches!(decoded, Err(Error::Address { .. })), "{ip}:{port}");
        }
        let nowhere = AddressRecord::decode("a", &stored(Writer::default()));
        assert!(matches!(nowhere, Err(Error::Address { .. })));
    }

    #[test]
    fn a_malformed_record_is_an_error() {
        let pod = Writer::default().message(1, Writer::default().text(2, "Pod"));
        let encoded = Writer::default().text(3, "gzip");
        for value in [
            vec![],
            b"k8s".to_vec(),
            b"k8s:enc:aescbc:v1:key1:xxxx".to_vec(),
            b"{".to_vec(),
            b"{\"subsets\":7}".to_vec(),
            [MAGIC, &pod.finish()].concat(),
            [MAGIC, &encoded.finish()].concat(),
            stored(Writer::default().bytes(1, &[0xff])),
            stored(Writer::default().bytes(2, &[0x0a, 9])),
            stored(Writer::default().message(2, Writer::default().bytes(1, b"\x0a\x01\xff"))),
        ] {
            assert!(AddressRecord::decode("a", &value).is_err(), "{value:?}");
        }
    }

    proptest! {
        #[test]
        fn an_encoded_record_decodes_to_the_same_record(
            name in "[a-z0-9]([a-z0-9.]?[a-z0-9]){0,100}",
            ip: IpAddr,
            port in 1_u16..,
            generation: i64,
        ) {
            let identity = Identity::named(&name).unwrap();
            let address = SocketAddr::new(ip, port);
            let record = AddressRecord { identity, address, generation };
            prop_assert_eq!(AddressRecord::decode("x", &record.encode()).unwrap(), record);
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(bytes: Vec<u8>, at: prop::sample::Index, byte: u8) {
            let _ = AddressRecord::decode("a", &bytes);
            let _ = AddressRecord::decode("a", &[MAGIC, &bytes].concat());
            let mut damaged = captured().encode();
            let at = at.index(damaged.len());
            damaged[at] = byte;
            let _ = AddressRecord::decode("a", &damaged);
            let _ = AddressRecord::decode("a", &damaged[..at]);
        }
    }
}
