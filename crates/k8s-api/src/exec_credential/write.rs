//! Serializes an `ExecCredential` with the field names of Kubernetes and KEP-2718.

use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::{Cluster, ExecCredential, KIND, ProxyConfig, Spec, Status};
use crate::secret::SecretString;
use crate::time::Time;

impl ExecCredential {
    /// Serializes to JSON. May contain a token, a key or a password.
    pub fn to_json(&self) -> SecretString {
        let written = WrittenCredential {
            kind: KIND,
            api_version: self.version.as_str(),
            spec: WrittenSpec::of(&self.spec),
            status: self.status.as_ref().map(WrittenStatus::of),
        };
        // Usually the whole size: a buffer that grows leaves copies in memory.
        let mut json = Vec::with_capacity(CREDENTIAL_CAPACITY_BYTES);
        // Strings, numbers and maps with string keys always serialize, and JSON is UTF-8.
        let _ = serde_json::to_writer(&mut json, &written);
        SecretString::new(String::from_utf8(json).unwrap_or_default())
    }
}

/// More than most certificates with a key and a token.
const CREDENTIAL_CAPACITY_BYTES: usize = 32 * 1024;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenCredential<'a> {
    kind: &'static str,
    api_version: &'static str,
    spec: WrittenSpec<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<WrittenStatus<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenSpec<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<WrittenCluster<'a>>,
    interactive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock_file_path: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct WrittenCluster<'a> {
    server: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tls_server_name: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    insecure_skip_tls_verify: bool,
    #[serde(skip_serializing_if = "String::is_empty")]
    certificate_authority_data: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_url: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    disable_compression: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<&'a serde_json::Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenStatus<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    expiration_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate_data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key_data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    proxy_config: Option<WrittenProxy<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct WrittenProxy<'a> {
    url: &'a str,
    certificate_authority_data: String,
}

impl<'a> WrittenSpec<'a> {
    fn of(spec: &'a Spec) -> Self {
        let lock = spec.lock_file_path.as_ref();
        Self {
            cluster: spec.cluster.as_ref().map(WrittenCluster::of),
            interactive: spec.interactive,
            lock_file_path: lock.map(|path| path.to_string_lossy().into_owned()),
        }
    }
}

impl<'a> WrittenCluster<'a> {
    fn of(cluster: &'a Cluster) -> Self {
        Self {
            server: &cluster.server,
            tls_server_name: cluster.tls_server_name.as_deref(),
            insecure_skip_tls_verify: cluster.insecure_skip_tls_verify,
            certificate_authority_data: STANDARD.encode(&cluster.certificate_authority_data),
            proxy_url: cluster.proxy_url.as_ref().map(SecretString::expose),
            disable_compression: cluster.disable_compression,
            config: cluster.config.as_ref(),
        }
    }
}

impl<'a> WrittenStatus<'a> {
    fn of(status: &'a Status) -> Self {
        Self {
            expiration_timestamp: status.expiration_timestamp.map(expiration),
            token: status.token.as_ref().map(SecretString::expose),
            client_certificate_data: status.client_certificate_data.as_deref(),
            client_key_data: status.client_key_data.as_ref().map(SecretString::expose),
            proxy_config: status.proxy_config.as_ref().map(WrittenProxy::of),
        }
    }
}

/// A time before 1970 is written as the beginning of 1970.
fn expiration(time: SystemTime) -> String {
    Time::from(time.max(UNIX_EPOCH)).to_string()
}

impl<'a> WrittenProxy<'a> {
    fn of(proxy: &'a ProxyConfig) -> Self {
        Self {
            url: &proxy.url,
            certificate_authority_data: STANDARD.encode(&proxy.certificate_authority_data),
        }
    }
}
