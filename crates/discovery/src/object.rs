//! Objects in each format that kube-apiserver offers.

use serde::Serialize;
use skewbridge_k8s_api::cbor;
use skewbridge_k8s_api::content_negotiation::Format;
use skewbridge_k8s_api::protobuf::{Writer, envelope};

/// A discovery response.
pub trait Object: Serialize {
    /// The kind of the object.
    const KIND: &'static str;

    /// The API version of the object; lists have `v1`.
    fn api_version(&self) -> &'static str {
        "v1"
    }

    /// Its fields, by number as in Kubernetes' `generated.proto`.
    fn protobuf(&self) -> Writer;

    /// Serialises it. Fields are in the order of Go's structures; JSON ends with a newline
    /// unless it is pretty-printed.
    fn write(&self, format: Format, layout: Layout) -> Vec<u8>
    where
        Self: Sized,
    {
        let typed = Typed {
            kind: Self::KIND,
            api_version: self.api_version(),
            object: self,
        };
        let written = match (format, layout) {
            (Format::Json, Layout::Compact) => serde_json::to_vec(&typed).map(|mut bytes| {
                bytes.push(b'\n');
                bytes
            }),
            // JSON is valid YAML (YAML 1.2, 1.3).
            (Format::Json, Layout::Pretty) | (Format::Yaml, _) => serde_json::to_vec_pretty(&typed),
            (Format::Protobuf, _) => Ok(envelope(self.api_version(), Self::KIND, self.protobuf())),
            (Format::Cbor, _) => serde_json::to_value(&typed).map(|value| cbor::write(&value)),
        };
        // Serialising plain structures with string keys cannot fail.
        written.unwrap_or_default()
    }
}

/// The layout of JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// On one line.
    Compact,
    /// Indented.
    Pretty,
}

/// An object with its type metadata.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Typed<'a, T> {
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'static str,
    #[serde(flatten)]
    object: &'a T,
}
