//! `skewbridge manifest balancer`: one bridge in front of several kube-apiservers.

#![expect(clippy::doc_markdown, reason = "comments on fields are the help text")]

use clap::Args;

use super::configuration::{self, ConfigurationText};
use super::kubeadm::RunWith;
use super::output::{GeneratedFile, Mode};
use super::sizing::SizeFlags;
use super::static_pod::PodFlags;
use super::systemd;

// The flags of `manifest balancer`. The comments are the help text.
#[derive(Debug, Clone, Args)]
pub(super) struct Flags {
    /// A kube-apiserver, such as https://10.0.0.11:6443; may be repeated
    #[arg(long, value_name = "URL", required = true, value_parser = url)]
    upstream: Vec<String>,
    /// Port of the balancer
    #[arg(long, value_name = "PORT", default_value = "6443",
        value_parser = clap::value_parser!(u16).range(1..))]
    secure_port: u16,
    /// Directory with kubeadm's certificates on the machine of the balancer
    #[arg(long, value_name = "DIRECTORY", default_value = "/etc/kubernetes/pki")]
    cert_dir: String,
    /// What starts the balancer
    #[arg(long, value_name = "PROGRAM", value_enum, default_value_t = RunWith::Systemd)]
    run_with: RunWith,
    #[command(flatten)]
    size: SizeFlags,
    #[command(flatten)]
    unit: systemd::UnitFlags,
    #[command(flatten)]
    pod: PodFlags,
}

fn url(text: &str) -> Result<String, String> {
    if text.starts_with("https://") {
        Ok(text.to_owned())
    } else {
        Err("write https://HOST:PORT".to_owned())
    }
}

impl Flags {
    pub(super) fn files(&self) -> Vec<GeneratedFile> {
        let limits = self.size.limits();
        let started_by = match self.run_with {
            RunWith::Systemd => self.unit.unit(limits),
            RunWith::StaticPod => self.pod.manifest([self.cert_dir.as_str()], limits),
        };
        vec![self.configuration(), started_by]
    }

    fn configuration(&self) -> GeneratedFile {
        let mut text = ConfigurationText::new(&self.comment());
        let directory = self.cert_dir.trim_end_matches('/');
        let file = |name: &str| format!("{directory}/{name}");
        text.paragraph("On all addresses, also on one that keepalived moves here later.");
        text.value("bindAddress", "0.0.0.0");
        text.value("securePort", &self.secure_port.to_string());
        text.paragraph("The certificate must be valid for the name in controlPlaneEndpoint.");
        text.value("tlsCertFile", &file("apiserver.crt"));
        text.value("tlsPrivateKeyFile", &file("apiserver.key"));
        text.value("clientCaFile", &file("ca.crt"));
        text.value("requestheaderClientCaFile", &file("front-proxy-ca.crt"));
        text.list("requestheaderAllowedNames", ["front-proxy-client"]);
        text.paragraph("The kube-apiservers.");
        text.list("upstream", self.upstream.iter().map(String::as_str));
        text.value("upstreamCaFile", &file("ca.crt"));
        text.value("proxyClientCertFile", &file("front-proxy-client.crt"));
        text.value("proxyClientKeyFile", &file("front-proxy-client.key"));
        text.paragraph(
            "Ends a client's connection after one of 1,000 requests, so that clients spread over\n\
             several balancers again.",
        );
        text.value("goawayChance", "0.001");
        text.paragraph(
            "What each server serves, for a restart while one of them does not answer: what only that\n\
             server has stays protected.",
        );
        text.value("stateDir", configuration::STATE_DIRECTORY);
        self.size.limits().configure(&mut text);
        GeneratedFile {
            name: "config.yaml",
            mode: Mode::Readable,
            text: text.text(),
        }
    }

    fn comment(&self) -> String {
        let Self {
            cert_dir,
            secure_port,
            ..
        } = self;
        format!(
            "# One bridge in front of several kube-apiservers (skewbridge manifest balancer).\n\
             #\n\
             # What changes: nothing on the control plane nodes. Clients that connect to port {secure_port} of this\n\
             #          machine are served by all kube-apiservers below. It names keys and holds none.\n\
             # Install: Copy this file to {path}. From a control plane node, copy apiserver.crt,\n\
             #          apiserver.key, ca.crt, front-proxy-ca.crt, front-proxy-client.crt and\n\
             #          front-proxy-client.key to {cert_dir}, with keys that only root and the group\n\
             #          skewbridge can read (chgrp skewbridge, chmod 0640).\n\
             # Undo:    Stop the balancer after the former load balancer has its address again, remove this\n\
             #          file and those that were copied.\n",
            path = configuration::PATH
        )
    }
}
