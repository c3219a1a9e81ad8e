//! Two kubeconfigs of one user: one with the key, and one with the plugin that has it.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use skewbridge_e2e::ControlPlane;

use crate::scratch_dir::ScratchDir;

/// Writes the direct one and the one with the plugin.
pub(super) fn write(
    scratch: &ScratchDir,
    plane: &ControlPlane,
    program: &Path,
) -> Result<[PathBuf; 2]> {
    let admin = plane.ca().client("admin", &["system:masters"]);
    let ca = scratch.write("user/ca.crt", plane.ca().pem())?;
    let certificate = scratch.write("user/tls.crt", &admin.cert_pem)?;
    let key = scratch.write("user/tls.key", &admin.key_pem)?;
    let server = format!("https://{}", plane.servers[0].address);
    let config = |user: &Value| text(&server, &ca, user).to_string();
    Ok([
        scratch.write("direct.kubeconfig", config(&direct(&certificate, &key)))?,
        scratch.write(
            "plugin.kubeconfig",
            config(&plugin(program, &certificate, &key)),
        )?,
    ])
}

fn text(server: &str, ca: &Path, user: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{
            "name": "c",
            "cluster": {"server": server, "certificate-authority": ca},
        }],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    })
}

fn direct(certificate: &Path, key: &Path) -> Value {
    json!({"client-certificate": certificate, "client-key": key})
}

fn plugin(program: &Path, certificate: &Path, key: &Path) -> Value {
    let flag = |name: &str, value: &dyn Display| format!("--{name}={value}");
    json!({
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": program,
            "args": [
                "agent",
                "--signer=file",
                flag("client-certificate", &certificate.display()),
                flag("client-key", &key.display()),
            ],
            "provideClusterInfo": true,
            "interactiveMode": "Never",
        },
    })
}

#[cfg(test)]
mod tests {
    use skewbridge_client::Kubeconfig;

    use super::*;

    #[test]
    fn only_the_direct_one_has_the_key() {
        let [program, certificate, key] = ["/skewbridge", "/tls.crt", "/tls.key"].map(Path::new);
        for user in [direct(certificate, key), plugin(program, certificate, key)] {
            let has_plugin = user["exec"].is_object();
            let text = text("https://127.0.0.1:6443", Path::new("/ca.crt"), &user).to_string();
            let config = Kubeconfig::parse(&text, Path::new("/config")).unwrap();
            let target = config.target(None).unwrap();
            assert_eq!(target.user.exec.is_some(), has_plugin);
            assert_eq!(target.user.client_key.is_some(), !has_plugin);
        }
    }
}
