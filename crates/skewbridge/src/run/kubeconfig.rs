//! The kubeconfig that a command is given.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use skewbridge_api::exec_credential::Sensitive;
use skewbridge_client::Target;

/// How the command gets to us, and to nobody else.
#[derive(Debug)]
pub(crate) struct Access {
    /// `https://127.0.0.1:PORT`, with the path that the cluster's has.
    pub(crate) server: String,
    /// In PEM.
    pub(crate) authority: String,
    /// In PEM.
    pub(crate) certificate: String,
    /// In PEM.
    pub(crate) key: Sensitive,
}

/// One context, named as in the kubeconfig that it stands for, so that commands with
/// `--context` work as well. In JSON, which is YAML.
pub(crate) fn text(target: &Target, namespace: Option<&str>, access: &Access) -> Sensitive {
    let user = match target.user_name.as_str() {
        "" => "skewbridge",
        name => name,
    };
    let mut context = json!({"cluster": target.cluster_name, "user": user});
    if let Some(namespace) = namespace.or(target.namespace.as_deref()) {
        context["namespace"] = namespace.into();
    }
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": target.context,
        "contexts": [{"name": target.context, "context": context}],
        "clusters": [{"name": target.cluster_name, "cluster": {
            "server": access.server,
            "certificate-authority-data": STANDARD.encode(&access.authority),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": STANDARD.encode(&access.certificate),
            "client-key-data": STANDARD.encode(access.key.expose()),
        }}],
    });
    Sensitive::new(config.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use skewbridge_client::Kubeconfig;
    use skewbridge_client::kubeconfig::{Material, User};

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
            key: Sensitive::new("key".to_owned()),
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
        let data = |text: &str| Some(Material::Data(skewbridge_client::Secret::new(text)));
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
