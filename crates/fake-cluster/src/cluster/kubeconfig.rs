//! The kubeconfig of a playground: a context for each server, for each bridge, and for the
//! read-only user.

use std::fmt::Write as _;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::pki::{ADMIN, Credentials, Token};
use crate::rbac::VISITOR;

/// A server or a bridge, by its name.
pub(super) struct ContextTarget<'a> {
    pub(super) name: &'a str,
    pub(super) address: SocketAddr,
}

/// The file. `current` is the current context.
pub(super) fn kubeconfig(
    places: &[ContextTarget<'_>],
    current: &str,
    visitors_place: &str,
    ca: &str,
    admin: &Credentials,
    visitor: &Token,
) -> String {
    let data = |text: &str| STANDARD.encode(text);
    let mut out = format!(
        "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: {current}\nclusters:\n"
    );
    // Writing to a String does not fail.
    for place in places {
        let _ = write!(
            out,
            "- name: {}\n  cluster:\n    server: https://{}\n    certificate-authority-data: {}\n",
            place.name,
            place.address,
            data(ca)
        );
    }
    out.push_str("users:\n");
    let _ = write!(
        out,
        "- name: {ADMIN}\n  user:\n    client-certificate-data: {}\n    client-key-data: {}\n\
         - name: {VISITOR}\n  user:\n    token: \"{}\"\n",
        data(&admin.certificate),
        data(&admin.key),
        visitor.0
    );
    out.push_str("contexts:\n");
    let admins = places.iter().map(|place| (place.name, place.name, ADMIN));
    for (name, place, user) in admins.chain([(VISITOR, visitors_place, VISITOR)]) {
        let _ = write!(
            out,
            "- name: {name}\n  context:\n    cluster: {place}\n    user: {user}\n    namespace: default\n"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_and_bridge_has_a_context() {
        let admin = Credentials {
            certificate: "C".to_owned(),
            key: "K".to_owned(),
        };
        let visitor = Token("1e1".to_owned());
        let place = ContextTarget {
            name: "bridge-1.28",
            address: "127.0.0.1:1".parse().unwrap(),
        };
        let text = kubeconfig(
            &[place],
            "bridge-1.28",
            "bridge-1.28",
            "CA",
            &admin,
            &visitor,
        );
        let read: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read["current-context"], "bridge-1.28");
        assert_eq!(read["contexts"][0]["context"]["user"], ADMIN);
        assert_eq!(read["contexts"][1]["name"], VISITOR);
        assert_eq!(
            read["clusters"][0]["cluster"]["server"],
            "https://127.0.0.1:1"
        );
        assert_eq!(read["users"][1]["user"]["token"], "1e1");
        assert_eq!(read["users"][0]["user"]["client-key-data"], "Sw==");
    }
}
