//! The kubeconfig of the command.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use skewbridge_client::Target;
use skewbridge_k8s_api::secret::SecretString;

/// The address and credentials of the loopback listener.
#[derive(Debug)]
pub(crate) struct Access {
    /// `https://127.0.0.1:PORT`, with the path that the cluster's has.
    pub(crate) server: String,
    /// In PEM.
    pub(crate) authority: String,
    /// In PEM.
    pub(crate) certificate: String,
    /// In PEM.
    pub(crate) key: SecretString,
}

/// One context, with the name of the original one, so that commands with `--context` work. In
/// JSON, which is YAML.
pub(crate) fn text(target: &Target, namespace: Option<&str>, access: &Access) -> SecretString {
    let user = match target.user_name.as_str() {
        "" => "skewbridge",
        name => name,
    };
    let key = SecretString::new(STANDARD.encode(access.key.expose()));
    let config = KubeconfigFile {
        api_version: "v1",
        kind: "Config",
        current_context: &target.context,
        contexts: [NamedEntry {
            name: &target.context,
            context: Some(WrittenContext {
                cluster: &target.cluster_name,
                user,
                namespace: namespace.or(target.namespace.as_deref()),
            }),
            ..NamedEntry::default()
        }],
        clusters: [NamedEntry {
            name: &target.cluster_name,
            cluster: Some(WrittenCluster {
                server: &access.server,
                certificate_authority_data: STANDARD.encode(&access.authority),
            }),
            ..NamedEntry::default()
        }],
        users: [NamedEntry {
            name: user,
            user: Some(WrittenUser {
                client_certificate_data: STANDARD.encode(&access.certificate),
                client_key_data: key.expose(),
            }),
            ..NamedEntry::default()
        }],
    };
    // Usually large enough: a buffer that grows would leave copies of the key behind.
    let mut json = Vec::with_capacity(KUBECONFIG_BUFFER_BYTES);
    // Strings and lists of strings always serialise.
    let _ = serde_json::to_writer(&mut json, &config);
    SecretString::new(String::from_utf8(json).unwrap_or_default())
}

/// More than a certificate, its CA and its key.
const KUBECONFIG_BUFFER_BYTES: usize = 16 * 1024;

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct KubeconfigFile<'a> {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    kind: &'static str,
    current_context: &'a str,
    contexts: [NamedEntry<'a>; 1],
    clusters: [NamedEntry<'a>; 1],
    users: [NamedEntry<'a>; 1],
}

/// An entry of any of the lists.
#[derive(Serialize, Default)]
struct NamedEntry<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<WrittenContext<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<WrittenCluster<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<WrittenUser<'a>>,
}

#[derive(Serialize)]
struct WrittenContext<'a> {
    cluster: &'a str,
    user: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct WrittenCluster<'a> {
    server: &'a str,
    certificate_authority_data: String,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct WrittenUser<'a> {
    client_certificate_data: String,
    client_key_data: &'a str,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use skewbridge_client::Kubeconfig;
    use skewbridge_client::kubeconfig::{PemSource, User};

    use super::*;

    #[test]
    fn names_and_the_namespace_are_kept_and_credentials_are_not() {
        let original = "
            current-context: other
            contexts:
            - {name: prod, context: {cluster: k, user: me, namespace: shop}}
            clusters:
            - {name: k, cluster: {server: 'https://k.example/prefix', proxy-url: 'http://p'}}
            users:
            - {name: me, user: {token: secret, as: you}}";
        let config = Kubeconfig::parse(original, Path::new("/nonexistent/config")).unwrap();
        let target = config.target(Some("prod")).unwrap();
        let access = Access {
            server: "https://127.0.0.1:1234/prefix".to_owned(),
            authority: "ca".to_owned(),
            certificate: "cert".to_owned(),
            key: SecretString::new("key".to_owned()),
        };
        let written = text(&target, None, &access);
        assert!(!written.expose().contains("secret"));
        let read = Kubeconfig::parse(written.expose(), Path::new("/x/config")).unwrap();
        let found = read.target(None).unwrap();
        assert_eq!(found.context, "prod");
        assert_eq!((&*found.cluster_name, &*found.user_name), ("k", "me"));
        assert_eq!(found.namespace.as_deref(), Some("shop"));
        assert_eq!(found.cluster.server, access.server);
        assert_eq!(found.cluster.proxy_url, None);
        let data = |text: &str| Some(PemSource::Data(skewbridge_client::Secret::new(text)));
        assert_eq!(found.cluster.certificate_authority, data("ca"));
        let user = User {
            client_certificate: data("cert"),
            client_key: data("key"),
            ..User::default()
        };
        assert_eq!(found.user, user);
        let other = text(&target, Some("else"), &access);
        let read = Kubeconfig::parse(other.expose(), Path::new("/x/config")).unwrap();
        assert_eq!(
            read.target(None).unwrap().namespace.as_deref(),
            Some("else")
        );
    }
}
