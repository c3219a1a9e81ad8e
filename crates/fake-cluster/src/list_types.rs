//! List types of the API: atomic, sets, and lists with keys. Patches and server-side apply use
//! them.
//!
//! Paths are field names; items in between are implied. Only built-in types are known: an
//! unknown list is atomic, as it is in the API for tolerations, commands and most others.

use serde_json::Value;

/// The type of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// Replaced as a whole.
    Atomic,
    /// Scalars without duplicates.
    Set,
    /// Objects, identified by these fields. A strategic merge uses only the first.
    Keyed(&'static [&'static str]),
}

/// The type of the list at a path.
pub fn list_kind(path: &[&str]) -> ListKind {
    use ListKind::{Atomic, Keyed, Set};
    let parent = path.len().checked_sub(2).map(|place| path[place]);
    match (path, parent, path.last().copied().unwrap_or_default()) {
        (["metadata", "finalizers"] | ["spec", "podCIDRs"], ..) => Set,
        (["metadata", "ownerReferences"], ..) => Keyed(&["uid"]),
        (["spec", "ports"], ..) => Keyed(&["port", "protocol"]),
        (["status", "addresses"], ..) | (_, Some("status"), "conditions") => Keyed(&["type"]),
        (["status", "podIPs" | "hostIPs"], ..) | (_, Some("spec"), "hostAliases") => Keyed(&["ip"]),
        (["webhooks" | "secrets" | "imagePullSecrets"], ..)
        | (
            _,
            Some("spec"),
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "volumes"
            | "imagePullSecrets"
            | "schedulingGates"
            | "resourceClaims",
        ) => Keyed(&["name"]),
        (_, Some("spec"), "topologySpreadConstraints") => {
            Keyed(&["topologyKey", "whenUnsatisfiable"])
        }
        (_, Some("containers" | "initContainers" | "ephemeralContainers"), field) => match field {
            "ports" => Keyed(&["containerPort", "protocol"]),
            "env" => Keyed(&["name"]),
            "volumeMounts" => Keyed(&["mountPath"]),
            "volumeDevices" => Keyed(&["devicePath"]),
            _ => Atomic,
        },
        _ => Atomic,
    }
}

/// The value of a key of an item, with the API's default where it has one.
pub fn key_value(item: &Value, key: &str) -> Option<Value> {
    match item.get(key) {
        None | Some(Value::Null) if key == "protocol" => Some("TCP".into()),
        other => other.cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_types_match_the_api() {
        let rows: [(&[&str], ListKind); 12] = [
            (&["metadata", "finalizers"], ListKind::Set),
            (&["metadata", "ownerReferences"], ListKind::Keyed(&["uid"])),
            (&["spec", "containers"], ListKind::Keyed(&["name"])),
            (
                &["spec", "template", "spec", "containers"],
                ListKind::Keyed(&["name"]),
            ),
            (
                &["spec", "template", "spec", "containers", "ports"],
                ListKind::Keyed(&["containerPort", "protocol"]),
            ),
            (&["spec", "containers", "args"], ListKind::Atomic),
            (&["spec", "containers", "env"], ListKind::Keyed(&["name"])),
            (&["spec", "ports"], ListKind::Keyed(&["port", "protocol"])),
            (&["subsets", "ports"], ListKind::Atomic),
            (&["status", "conditions"], ListKind::Keyed(&["type"])),
            (&["spec", "tolerations"], ListKind::Atomic),
            (&["rules"], ListKind::Atomic),
        ];
        for (path, expected) in rows {
            assert_eq!(list_kind(path), expected, "{path:?}");
        }
    }
}
