//! `skewbridge manifest kubeadm-patches`: patches with which kubeadm itself writes the layout "the
//! same port on two addresses".

#![expect(clippy::doc_markdown, reason = "comments on fields are the help text")]

use std::net::IpAddr;

use clap::Args;

use super::output::{GeneratedFile, Mode};

/// kubeadm takes the target and the type of the patch from the name.
const NAME: &str = "kube-apiserver+json.yaml";

const PATCH: &str = include_str!("kube-apiserver+json.yaml");

// The flags of `manifest kubeadm-patches`. The comments are the help text.
#[derive(Debug, Clone, Args)]
pub(super) struct Flags {
    /// Loopback address of kube-apiserver; ::1 where nodes have IPv6 addresses
    #[arg(long, value_name = "IP", default_value = "127.0.0.1", value_parser = loopback_address)]
    bind_address: IpAddr,
}

impl Flags {
    pub(super) fn patches(&self) -> GeneratedFile {
        let address = self.bind_address.to_string();
        // A plain `::1` would be a map in YAML.
        let quoted = if self.bind_address.is_ipv6() {
            format!("\"{address}\"")
        } else {
            address.clone()
        };
        GeneratedFile {
            name: NAME,
            mode: Mode::Readable,
            text: PATCH
                .replace("@HOST@", &quoted)
                .replace("@ADDRESS@", &address),
        }
    }
}

fn loopback_address(text: &str) -> Result<IpAddr, String> {
    let address: IpAddr = text
        .parse()
        .map_err(|_| "is not an IP address".to_owned())?;
    if address.is_loopback() {
        Ok(address)
    } else {
        Err("must be a loopback address; the bridge listens on that of the node".to_owned())
    }
}
