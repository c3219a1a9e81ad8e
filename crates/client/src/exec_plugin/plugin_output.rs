//! Validation of a plugin's output. Error messages never repeat the output.

use std::time::SystemTime;

use skewbridge_k8s_api::exec_credential::{ExecCredential, ProxyConfig, Status, Version};

use super::feature_gate::FeatureGate;
use crate::Secret;
use crate::transport::Certificate;

/// The validated output of a plugin.
#[derive(Debug)]
pub(super) struct PluginOutput {
    /// Bearer token for the cluster.
    pub(super) token: Option<Secret>,
    /// Client certificate for the cluster, or for the proxy if there is one.
    pub(super) certificate: Option<Certificate>,
    /// The plugin's proxy.
    pub(super) proxy: Option<ProxyConfig>,
    /// When all of it expires.
    pub(super) expires: Option<SystemTime>,
}

/// Validates a plugin's output. The errors are kubectl's where it has them.
pub(super) fn validate_output(
    credential: ExecCredential,
    version: Version,
    gate: FeatureGate,
) -> Result<PluginOutput, String> {
    if credential.version != version {
        return Err(format!(
            "plugin is configured to use API version {version}, plugin returned version {}",
            credential.version
        ));
    }
    let Some(status) = credential.status else {
        return Err("plugin didn't return a status field".to_owned());
    };
    let Status {
        expiration_timestamp: expires,
        token,
        client_certificate_data,
        client_key_data,
        proxy_config: proxy,
    } = status;
    let certificate = match (client_certificate_data, client_key_data) {
        (Some(chain), Some(key)) => Some(Certificate {
            chain: Secret::new(chain),
            key: Secret::new(key.expose()),
        }),
        (None, None) => None,
        _ => return Err("plugin returned only certificate or key, not both".to_owned()),
    };
    match (&proxy, gate) {
        (Some(_), FeatureGate::Off) => {
            return Err("plugin returned a proxyConfig, which is turned off by \
                 $KUBE_FEATURE_ClientExecProxy"
                .to_owned());
        }
        // KEP-2718, "Authentication to Proxy", option 1.
        (Some(proxy), FeatureGate::On) if proxy.certificate_authority_data.is_empty() => {
            return Err(
                "plugin returned a proxyConfig without certificate-authority-data".to_owned(),
            );
        }
        (Some(_), FeatureGate::On) if certificate.is_none() => {
            return Err(
                "plugin returned a proxyConfig without the client certificate and key for it"
                    .to_owned(),
            );
        }
        (None, _) if token.is_none() && certificate.is_none() => {
            return Err("plugin didn't return a token or cert/key pair".to_owned());
        }
        (Some(_), FeatureGate::On) | (None, _) => {}
    }
    Ok(PluginOutput {
        token: token.map(|token| Secret::new(token.expose())),
        certificate,
        proxy,
        expires,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(status: &Value, gate: FeatureGate) -> Result<PluginOutput, String> {
        let document = json!({
            "kind": "ExecCredential",
            "apiVersion": Version::V1.as_str(),
            "status": status,
        });
        let credential = ExecCredential::parse(document.to_string().as_bytes()).unwrap();
        validate_output(credential, Version::V1, gate)
    }

    #[test]
    fn a_credential_needs_a_token_or_certificate_and_a_proxy_needs_a_certificate_and_ca() {
        let proxy = json!({"url": "unix:///s", "certificate-authority-data": "aGVsbG8="});
        let rows = [
            (Value::Null, "plugin didn't return a status field"),
            (json!({}), "plugin didn't return a token or cert/key pair"),
            (json!({"token": ""}), "plugin didn't return a token or"),
            (json!({"token": "secret"}), ""),
            (
                json!({"clientKeyData": "secret"}),
                "plugin returned only certificate or key, not both",
            ),
            (
                json!({"clientCertificateData": "c", "clientKeyData": "secret"}),
                "",
            ),
            (
                json!({"clientCertificateData": "c", "clientKeyData": "secret", "proxyConfig": proxy}),
                "",
            ),
            (
                json!({"token": "secret", "proxyConfig": proxy}),
                "plugin returned a proxyConfig without the client certificate",
            ),
            (
                json!({"clientCertificateData": "c", "clientKeyData": "secret",
                       "proxyConfig": {"url": "unix:///s"}}),
                "plugin returned a proxyConfig without certificate-authority-data",
            ),
        ];
        for (status, expected) in rows {
            match read(&status, FeatureGate::On) {
                Ok(output) => {
                    assert_eq!(expected, "", "{status}");
                    assert!(!format!("{output:?}").contains("secret"));
                }
                Err(error) => {
                    assert!(
                        error.starts_with(expected) && !expected.is_empty(),
                        "{error}"
                    );
                    assert!(!error.contains("secret"), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_proxy_is_rejected_when_the_feature_is_off() {
        let pair = json!({"clientCertificateData": "c", "clientKeyData": "k",
            "proxyConfig": {"url": "unix:///s", "certificate-authority-data": "aGVsbG8="}});
        let error = read(&pair, FeatureGate::Off).unwrap_err();
        assert!(error.contains("KUBE_FEATURE_ClientExecProxy"), "{error}");
        assert!(read(&json!({"token": "t"}), FeatureGate::Off).is_ok());
    }

    #[test]
    fn a_plugin_must_answer_in_its_configured_api_version() {
        let document = json!({"kind": "ExecCredential", "apiVersion": Version::V1Beta1.as_str(),
            "status": {"token": "t"}});
        let credential = ExecCredential::parse(document.to_string().as_bytes()).unwrap();
        let error = validate_output(credential, Version::V1, FeatureGate::On).unwrap_err();
        assert_eq!(
            error,
            "plugin is configured to use API version client.authentication.k8s.io/v1, plugin \
             returned version client.authentication.k8s.io/v1beta1"
        );
    }
}
