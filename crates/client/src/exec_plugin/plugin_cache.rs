//! The plugins of this process, shared by all callers with the same configuration.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{FeatureGate, Plugin};
use crate::Secret;
use crate::kubeconfig::{Cluster, Exec, PemSource, Target, User};
use crate::transport::CaRoots;

/// Environment variables, other than `KUBERNETES_EXEC_INFO`, that a plugin or its proxy may use.
const PROXY_VARIABLES: [&str; 8] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
];

/// The cache key (KEP-2718, "Caching"): the cluster, the user, and the proxy variables of the
/// environment. The URL of the plugin's proxy and its certificates are known only later:
/// [`Plugin`] compares them.
#[derive(PartialEq)]
struct CacheKey {
    /// Holds the CA certificates themselves, as in client-go, not their path: the file may
    /// change, and a plugin's proxy keeps the CAs it was started with.
    cluster: Cluster,
    user_name: String,
    user: User,
    environment: Vec<Option<OsString>>,
    gate: FeatureGate,
}

/// Holds plugins while they are in use. Unused ones are removed at the next lookup.
static PLUGIN_CACHE: Mutex<Vec<(CacheKey, Weak<Plugin>)>> = Mutex::new(Vec::new());

/// The plugin of a user, shared with all users of the same configuration.
pub(crate) fn shared_plugin(
    target: &Target,
    exec: &Exec,
    ca_roots: &CaRoots,
    gate: FeatureGate,
) -> Arc<Plugin> {
    let mut cluster = target.cluster.clone();
    if let CaRoots::Pem(pem) = ca_roots {
        cluster.certificate_authority = Some(PemSource::Data(Secret::new(pem.as_slice())));
    }
    shared_plugin_in_env(target, cluster, exec, gate, |name| std::env::var_os(name))
}

/// Like [`shared_plugin`], with a given environment.
fn shared_plugin_in_env(
    target: &Target,
    cluster: Cluster,
    exec: &Exec,
    gate: FeatureGate,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Arc<Plugin> {
    let key = CacheKey {
        cluster: cluster.clone(),
        user_name: target.user_name.clone(),
        user: target.user.clone(),
        environment: PROXY_VARIABLES.map(variable).to_vec(),
        gate,
    };
    let mut cache = PLUGIN_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    cache.retain(|(_, plugin)| plugin.strong_count() > 0);
    let found = cache.iter().find(|(other, _)| *other == key);
    if let Some(plugin) = found.and_then(|(_, plugin)| plugin.upgrade()) {
        return plugin;
    }
    let plugin = Arc::new(Plugin::new(
        exec.clone(),
        cluster,
        target.user_name.clone(),
        gate,
    ));
    cache.push((key, Arc::downgrade(&plugin)));
    plugin
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::kubeconfig::Kubeconfig;

    #[test]
    fn a_different_proxy_environment_uses_a_different_plugin() {
        let config = r#"{"current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "known-by-proxy"}}],
            "clusters": [{"name": "k", "cluster": {"server": "https://k.invalid"}}],
            "users": [{"name": "known-by-proxy", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "x",
                "interactiveMode": "Never"}}}]}"#;
        let config = Kubeconfig::parse(config, Path::new("/nonexistent/config")).unwrap();
        let target = config.target(None).unwrap();
        let exec = target.user.exec.clone().unwrap();
        let plugin_in_env = |set: &[(&str, &str)]| {
            shared_plugin_in_env(
                &target,
                target.cluster.clone(),
                &exec,
                FeatureGate::On,
                |name| {
                    let found = set.iter().find(|(it, _)| *it == name);
                    found.map(|(_, value)| OsString::from(value))
                },
            )
        };
        let none = plugin_in_env(&[]);
        assert!(Arc::ptr_eq(&none, &plugin_in_env(&[])));
        let other = plugin_in_env(&[("LANG", "C")]);
        assert!(Arc::ptr_eq(&none, &other), "an unrelated variable");
        let mut all = vec![none];
        for name in PROXY_VARIABLES {
            for value in ["http://one.invalid:1", "http://two.invalid:1", ""] {
                let plugin = plugin_in_env(&[(name, value)]);
                assert!(Arc::ptr_eq(&plugin, &plugin_in_env(&[(name, value)])));
                let is_cached = all.iter().any(|it| Arc::ptr_eq(it, &plugin));
                assert!(!is_cached, "{name}={value}");
                all.push(plugin);
            }
        }
    }
}
