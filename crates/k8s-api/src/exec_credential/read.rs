//! Parses an `ExecCredential`. By hand, because serde's errors quote unexpected input, which may be
//! a token, and because serde's intermediate copies are not zeroized.

mod unescape;

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use super::{Cluster, ExecCredential, KIND, ParseError, ProxyConfig, Spec, Status, Version};
use crate::secret::SecretString;
use crate::time::Time;

/// Fields of a document, not yet decoded.
type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// How much of an unknown kind or version an error quotes.
const MAX_QUOTED_CHARS: usize = 80;

impl ExecCredential {
    /// Parses a document. Only white space may follow it.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match Self::parse_first(bytes)? {
            Some((credential, length)) => {
                let rest = &bytes[length..];
                match rest.iter().position(|byte| !byte.is_ascii_whitespace()) {
                    None => Ok(credential),
                    Some(at) => Err(not_json_at(bytes, length + at)),
                }
            }
            None if bytes.iter().all(u8::is_ascii_whitespace) => Err(ParseError::Empty),
            None => Err(ParseError::Truncated),
        }
    }

    /// Parses the first document of a stream, and returns its length; `None` if it is incomplete.
    /// So the output of a plugin that keeps running can be used as soon as it is complete.
    pub fn parse_first(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        let documents = serde_json::Deserializer::from_slice(bytes);
        let mut documents = documents.into_iter::<&RawValue>();
        match documents.next() {
            None => Ok(None),
            Some(Ok(document)) => {
                let length = documents.byte_offset();
                let fields = fields(document).ok_or_else(|| not_json_at(bytes, 0))?;
                Ok(Some((credential(fields)?, length)))
            }
            Some(Err(error)) if error.is_eof() => Ok(None),
            Some(Err(error)) => Err(ParseError::NotJson {
                line: error.line().max(1),
                column: error.column().max(1),
            }),
        }
    }
}

fn not_json_at(bytes: &[u8], at: usize) -> ParseError {
    let before = &bytes[..at];
    let begin = before.iter().rposition(|byte| *byte == b'\n');
    ParseError::NotJson {
        line: before.split(|byte| *byte == b'\n').count(),
        column: at - begin.map_or(0, |begin| begin + 1) + 1,
    }
}

/// `None` if it is not an object.
fn fields(raw: &RawValue) -> Option<Fields<'_>> {
    serde_json::from_str(raw.get()).ok()
}

fn credential(mut fields: Fields<'_>) -> Result<ExecCredential, ParseError> {
    let kind = text(&mut fields, "kind", "kind")?.unwrap_or_default();
    if kind != KIND {
        return Err(ParseError::Kind(
            kind.chars().take(MAX_QUOTED_CHARS).collect(),
        ));
    }
    let version = text(&mut fields, "apiVersion", "apiVersion")?.unwrap_or_default();
    let Some(version) = Version::of(&version) else {
        let found = version.chars().take(MAX_QUOTED_CHARS).collect();
        return Err(ParseError::Version { found });
    };
    Ok(ExecCredential {
        version,
        spec: match object(&mut fields, "spec", "spec")? {
            Some(fields) => spec(fields)?,
            None => Spec::default(),
        },
        status: object(&mut fields, "status", "status")?
            .map(status)
            .transpose()?,
    })
}

fn spec(mut fields: Fields<'_>) -> Result<Spec, ParseError> {
    Ok(Spec {
        cluster: object(&mut fields, "cluster", "spec.cluster")?
            .map(cluster)
            .transpose()?,
        interactive: flag(&mut fields, "interactive", "spec.interactive")?,
        lock_file_path: text(&mut fields, "lockFilePath", "spec.lockFilePath")?.map(Into::into),
    })
}

fn cluster(mut fields: Fields<'_>) -> Result<Cluster, ParseError> {
    Ok(Cluster {
        server: text(&mut fields, "server", "spec.cluster.server")?.unwrap_or_default(),
        tls_server_name: text(
            &mut fields,
            "tls-server-name",
            "spec.cluster.tls-server-name",
        )?,
        insecure_skip_tls_verify: flag(
            &mut fields,
            "insecure-skip-tls-verify",
            "spec.cluster.insecure-skip-tls-verify",
        )?,
        certificate_authority_data: bytes(
            &mut fields,
            "certificate-authority-data",
            "spec.cluster.certificate-authority-data",
        )?,
        proxy_url: secret(&mut fields, "proxy-url", "spec.cluster.proxy-url")?,
        disable_compression: flag(
            &mut fields,
            "disable-compression",
            "spec.cluster.disable-compression",
        )?,
        config: json_value(&mut fields, "config", "spec.cluster.config")?,
    })
}

fn status(mut fields: Fields<'_>) -> Result<Status, ParseError> {
    const EXPIRATION: &str = "status.expirationTimestamp";
    let expiration = text(&mut fields, "expirationTimestamp", EXPIRATION)?;
    let expiration = expiration.map(|text| {
        Time::parse(&text)
            .map(SystemTime::from)
            .ok_or(ParseError::Field {
                field: EXPIRATION,
                cause: "is not a time of RFC 3339; write it like 2026-11-15T12:00:00Z",
            })
    });
    Ok(Status {
        expiration_timestamp: expiration.transpose()?,
        token: secret(&mut fields, "token", "status.token")?,
        client_certificate_data: text(
            &mut fields,
            "clientCertificateData",
            "status.clientCertificateData",
        )?,
        client_key_data: secret(&mut fields, "clientKeyData", "status.clientKeyData")?,
        proxy_config: object(&mut fields, "proxyConfig", "status.proxyConfig")?
            .map(proxy)
            .transpose()?,
    })
}

fn proxy(mut fields: Fields<'_>) -> Result<ProxyConfig, ParseError> {
    const URL: &str = "status.proxyConfig.url";
    // The KEP's Go tag (`json: "url"`, with a space) is invalid, so Go uses the field name.
    let url = match text(&mut fields, "url", URL)? {
        Some(url) => Some(url),
        None => text(&mut fields, "URL", URL)?,
    };
    Ok(ProxyConfig {
        url: url.ok_or(ParseError::Field {
            field: URL,
            cause: "is missing",
        })?,
        certificate_authority_data: bytes(
            &mut fields,
            "certificate-authority-data",
            "status.proxyConfig.certificate-authority-data",
        )?,
    })
}

/// Empty or null means absent, as with Go's `omitempty`.
fn secret(
    fields: &mut Fields<'_>,
    name: &str,
    field: &'static str,
) -> Result<Option<SecretString>, ParseError> {
    let invalid = |cause| ParseError::Field { field, cause };
    let Some(raw) = take_non_null(fields, name) else {
        return Ok(None);
    };
    let quoted = raw.strip_prefix('"').and_then(|raw| raw.strip_suffix('"'));
    let quoted = quoted.ok_or_else(|| invalid("is not a string"))?;
    let text = unescape::text(quoted);
    let mut text: Zeroizing<String> =
        text.ok_or_else(|| invalid("contains an unpaired surrogate"))?;
    Ok((!text.is_empty()).then(|| SecretString::new(std::mem::take(&mut *text))))
}

/// The same for a value that is not secret.
fn text(
    fields: &mut Fields<'_>,
    name: &str,
    field: &'static str,
) -> Result<Option<String>, ParseError> {
    let text = secret(fields, name, field)?;
    Ok(text.map(|text| text.expose().to_owned()))
}

fn flag(fields: &mut Fields<'_>, name: &str, field: &'static str) -> Result<bool, ParseError> {
    match take_non_null(fields, name) {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ParseError::Field {
            field,
            cause: "is neither true nor false",
        }),
    }
}

fn bytes(fields: &mut Fields<'_>, name: &str, field: &'static str) -> Result<Vec<u8>, ParseError> {
    let Some(text) = text(fields, name, field)? else {
        return Ok(Vec::new());
    };
    STANDARD.decode(text).map_err(|_| ParseError::Field {
        field,
        cause: "is not base64",
    })
}

fn object<'a>(
    fields: &mut Fields<'a>,
    name: &str,
    field: &'static str,
) -> Result<Option<Fields<'a>>, ParseError> {
    let Some(raw) = fields.remove(name).filter(|raw| raw.get() != NULL) else {
        return Ok(None);
    };
    self::fields(raw).map(Some).ok_or(ParseError::Field {
        field,
        cause: "is not an object",
    })
}

fn json_value(
    fields: &mut Fields<'_>,
    name: &str,
    field: &'static str,
) -> Result<Option<Value>, ParseError> {
    let value = take_non_null(fields, name).map(serde_json::from_str);
    value.transpose().map_err(|_| ParseError::Field {
        field,
        cause: "is nested too deeply",
    })
}

const NULL: &str = "null";

/// Removes a field and returns its JSON; `None` for null.
fn take_non_null<'a>(fields: &mut Fields<'a>, name: &str) -> Option<&'a str> {
    let raw = fields.remove(name).map(RawValue::get);
    raw.filter(|raw| *raw != NULL)
}

#[cfg(test)]
mod tests;
