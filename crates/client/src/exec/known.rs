//! The plugins of this process: one for all who would run it for the same.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{Gate, Plugin};
use crate::kubeconfig::{Cluster, Exec, Target, User};

/// What a plugin, or its proxy, goes by beside what we tell it.
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

/// What makes two wishes the same (KEP-2718, "Caching"): the cluster, whose plugin it
/// is, and the proxies of the environment. The URL of the plugin's proxy and its
/// certificates are known later: [`Plugin`] compares them.
#[derive(PartialEq)]
struct Key {
    cluster: Cluster,
    user_name: String,
    user: User,
    environment: Vec<Option<std::ffi::OsString>>,
    gate: Gate,
}

/// As long as somebody uses them. Those that nobody does are let go by the next who
/// asks.
static KNOWN: Mutex<Vec<(Key, Weak<Plugin>)>> = Mutex::new(Vec::new());

/// The plugin of a user, shared with all who asked for the same and still use it.
pub(crate) fn plugin_of(target: &Target, exec: &Exec, gate: Gate) -> Arc<Plugin> {
    let key = Key {
        cluster: target.cluster.clone(),
        user_name: target.user_name.clone(),
        user: target.user.clone(),
        environment: PROXY_VARIABLES.map(std::env::var_os).to_vec(),
        gate,
    };
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|(_, plugin)| plugin.strong_count() > 0);
    let found = known.iter().find(|(other, _)| *other == key);
    if let Some(plugin) = found.and_then(|(_, plugin)| plugin.upgrade()) {
        return plugin;
    }
    let plugin = Arc::new(Plugin::new(
        exec.clone(),
        target.cluster.clone(),
        target.user_name.clone(),
        gate,
    ));
    known.push((key, Arc::downgrade(&plugin)));
    plugin
}
