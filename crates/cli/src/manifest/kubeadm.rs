//! `skewbridge manifest kubeadm`: a bridge beside the kube-apiserver of a kubeadm node.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::configuration::{self, ConfigurationText};
use super::kube_apiserver::{KubeApiserver, loopback};
use super::output::{GeneratedFile, Mode};
use super::sizing::SizeFlags;
use super::static_pod::PodFlags;
use super::systemd;
use crate::local_addresses::InterfaceAddress;

/// A name that every serving certificate of kubeadm has, and that peers verify. It does not have
/// the loopback address.
const SERVER_NAME: &str = "kubernetes.default.svc";

/// Flags of kube-apiserver that the bridge has, too, and their keys in its configuration.
const COMMON_FLAGS: [(&str, &str); 1] = [("request-timeout", "requestTimeout")];

const MIN_TLS_VERSION: (&str, &str) = ("tls-min-version", "tlsMinVersion");

/// What a bridge does not accept, and what it accepts instead.
const OLD_TLS_VERSIONS: [&str; 2] = ["VersionTLS10", "VersionTLS11"];

/// A flag of kube-apiserver that the bridge does not have, and what it would change for clients.
const CIPHER_SUITES: &str = "tls-cipher-suites";
const SNI_CERTIFICATES: &str = "tls-sni-cert-key";

/// How many addresses a warning lists.
const MAX_LISTED_ADDRESSES: usize = 8;

const ETCD_FILES: [(&str, &str); 3] = [
    ("etcd-cafile", "etcdCafile"),
    ("etcd-certfile", "etcdCertfile"),
    ("etcd-keyfile", "etcdKeyfile"),
];

const EGRESS: (&str, &str) = ("egress-selector-config-file", "egressSelectorConfigFile");

/// Those whose values are lists.
const REQUESTHEADER_FLAGS: [(&str, &str); 5] = [
    ("requestheader-allowed-names", "requestheaderAllowedNames"),
    (
        "requestheader-username-headers",
        "requestheaderUsernameHeaders",
    ),
    ("requestheader-uid-headers", "requestheaderUidHeaders"),
    ("requestheader-group-headers", "requestheaderGroupHeaders"),
    (
        "requestheader-extra-headers-prefix",
        "requestheaderExtraHeadersPrefix",
    ),
];

// The flags of `manifest kubeadm`. The comments are the help text.
#[derive(Debug, Clone, Args)]
pub(super) struct Flags {
    /// Manifest of the kube-apiserver of this node
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/kubernetes/manifests/kube-apiserver.yaml"
    )]
    pub(super) from: PathBuf,
    /// Port of the bridge. With another port than kube-apiserver's, kube-apiserver is not changed
    /// [default: that of kube-apiserver, which then listens on its loopback address only]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    secure_port: Option<u16>,
    /// What starts the bridge
    #[arg(long, value_name = "PROGRAM", value_enum, default_value_t = RunWith::Systemd)]
    run_with: RunWith,
    /// Only print kube-apiserver.yaml as it was without a bridge
    #[arg(long)]
    undo: bool,
    /// CAs of the kube-apiservers' serving certificates [default: --client-ca-file of
    /// kube-apiserver, as with kubeadm]
    #[arg(long, value_name = "FILE")]
    serving_ca_file: Option<String>,
    /// As for skewbridge serve: where bridges publish their addresses
    #[arg(long, value_name = "LIST", default_value = "etcd")]
    peer_registry: String,
    /// As for skewbridge serve: networks of peers; required with leases in --peer-registry
    #[arg(long, value_name = "LIST")]
    peer_cidrs: Option<String>,
    /// As for skewbridge serve: an address of the admin port for Prometheus, such as 0.0.0.0:10271
    #[arg(long, value_name = "IP:PORT")]
    admin_secure_address: Option<SocketAddr>,
    /// As for skewbridge serve: a user with the rights of `skewbridge manifest rbac`
    #[arg(long, value_name = "NAME")]
    bridge_user: Option<String>,
    #[command(flatten)]
    size: SizeFlags,
    #[command(flatten)]
    unit: systemd::UnitFlags,
    #[command(flatten)]
    pod: PodFlags,
}

/// What starts a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RunWith {
    Systemd,
    StaticPod,
}

/// Where a bridge listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// At the address of the node, with kube-apiserver on the same port of its loopback address.
    SamePort,
    /// On another port than kube-apiserver.
    OtherPort(u16),
}

impl Flags {
    /// The files for the node of this manifest, and warnings. The addresses are those of this
    /// machine.
    pub(super) fn generate(
        &self,
        manifest: &str,
        addresses: &[InterfaceAddress],
    ) -> Result<(Vec<GeneratedFile>, Vec<String>), String> {
        let server = KubeApiserver::parse(manifest)?;
        if self.undo {
            return Ok((
                vec![server_manifest(server.without_a_bridge()?)],
                Vec::new(),
            ));
        }
        let layout = match self.secure_port {
            Some(port) if port != server.secure_port()? => Layout::OtherPort(port),
            _ => Layout::SamePort,
        };
        let limits = self.size.limits();
        let node = NodeConfiguration::of(&server, self, layout)?;
        let service = match self.run_with {
            RunWith::Systemd => self.unit.unit(limits),
            RunWith::StaticPod => {
                let named = node.named_files.iter();
                let directories = named.filter_map(|file| Path::new(file).parent()?.to_str());
                self.pod.manifest(directories, limits)
            }
        };
        let mut files = vec![node.file(), service];
        if layout == Layout::SamePort {
            let comment = comment_of_server_manifest(loopback(server.advertise_address()?));
            files.push(server_manifest(server.behind_a_bridge(&comment)?));
        }
        let warning = match layout {
            Layout::SamePort => unserved_addresses(&server, addresses)?,
            Layout::OtherPort(_) => None,
        };
        Ok((files, warning.into_iter().collect()))
    }
}

impl Flags {
    fn uses_etcd(&self) -> bool {
        self.peer_registry.split(',').any(|it| it == "etcd")
    }
}

fn server_manifest(text: String) -> GeneratedFile {
    GeneratedFile {
        name: "kube-apiserver.yaml",
        mode: Mode::Private,
        text,
    }
}

fn comment_of_server_manifest(loopback: IpAddr) -> String {
    format!(
        " (skewbridge manifest kubeadm).\n\
         #\n\
         # What changes: --bind-address={loopback} is the last flag, and `host` of the probes is {loopback}, so\n\
         #          that kubelet does not restart kube-apiserver when the bridge is down. The address in\n\
         #          the EndpointSlice of the Service kubernetes is still that of --advertise-address, where\n\
         #          the bridge listens.\n\
         # Install: Copy this file to /etc/kubernetes/manifests/kube-apiserver.yaml, on one node at a time,\n\
         #          and start the bridge. `skewbridge manifest kubeadm-patches` makes kubeadm keep the change.\n\
         # Undo:    skewbridge manifest kubeadm --undo --output-dir=DIRECTORY writes the file without the\n\
         #          change. Stop the bridge, copy that file to /etc/kubernetes/manifests.\n"
    )
}

/// Without a bridge kube-apiserver serves all addresses of the node. The bridge cannot: its port on
/// the loopback address is that of kube-apiserver.
fn unserved_addresses(
    server: &KubeApiserver,
    addresses: &[InterfaceAddress],
) -> Result<Option<String>, String> {
    let (own, port) = (server.advertise_address()?, server.secure_port()?);
    // Otherwise the manifest is that of another machine.
    let is_own_manifest = addresses.iter().any(|it| it.address == own);
    let others = addresses
        .iter()
        .filter(|it| it.address != own && it.is_for_clients());
    let mut others: Vec<_> = others.map(ToString::to_string).collect();
    if !is_own_manifest || others.is_empty() {
        return Ok(None);
    }
    if others.len() > MAX_LISTED_ADDRESSES {
        let more = others.len() - MAX_LISTED_ADDRESSES;
        others.truncate(MAX_LISTED_ADDRESSES);
        others.push(format!("{more} more"));
    }
    Ok(Some(format!(
        "this node also has {}. Port {port} of other addresses than {own} is not served with this \
         layout. If clients or a load balancer use one of them, give another --secure-port, with \
         which all addresses are served and kube-apiserver is not changed",
        others.join(", ")
    )))
}

/// The configuration of a bridge, from the flags of its kube-apiserver.
struct NodeConfiguration<'s> {
    server: &'s KubeApiserver,
    flags: &'s Flags,
    text: ConfigurationText,
    /// The files that it names.
    named_files: Vec<String>,
}

impl<'s> NodeConfiguration<'s> {
    fn of(server: &'s KubeApiserver, flags: &'s Flags, layout: Layout) -> Result<Self, String> {
        if let Some(value) = server.flag(SNI_CERTIFICATES) {
            return Err(format!(
                "has --{SNI_CERTIFICATES}={value}, and a bridge has one serving certificate: clients \
                 that use these names would reject it; issue --tls-cert-file for all names (kubeadm: \
                 apiServer.certSANs), and remove the flag"
            ));
        }
        let keys = [
            Some(server.required("tls-private-key-file")?),
            Some(server.required("proxy-client-key-file")?),
            flags
                .uses_etcd()
                .then(|| server.flag("etcd-keyfile"))
                .flatten(),
        ];
        let keys: Vec<_> = keys.into_iter().flatten().collect();
        let comment = comment(server.advertise_address()?, &keys);
        let mut node = Self {
            server,
            flags,
            text: ConfigurationText::new(&comment),
            named_files: Vec::new(),
        };
        node.listener(layout)?;
        node.authentication()?;
        node.upstream()?;
        node.peers()?;
        node.text
            .paragraph("What other servers serve, for the next start.");
        node.text.value("stateDir", configuration::STATE_DIRECTORY);
        flags.size.limits().configure(&mut node.text);
        Ok(node)
    }

    fn file(self) -> GeneratedFile {
        GeneratedFile {
            name: "config.yaml",
            mode: Mode::Readable,
            text: self.text.text(),
        }
    }

    fn listener(&mut self, layout: Layout) -> Result<(), String> {
        let (address, port) = (self.server.advertise_address()?, self.server.secure_port()?);
        let text = &mut self.text;
        match layout {
            Layout::SamePort => {
                let loopback = loopback(address);
                text.paragraph(&format!(
                    "The address of this node. kube-apiserver has the same port on {loopback}."
                ));
                text.value("bindAddress", &address.to_string());
                text.value("securePort", &port.to_string());
            }
            Layout::OtherPort(own) => {
                let all = if address.is_ipv4() { "0.0.0.0" } else { "::" };
                text.paragraph(&format!("Beside kube-apiserver, which has port {port}."));
                text.value("bindAddress", all);
                text.value("securePort", &own.to_string());
                text.value("advertiseAddress", &address.to_string());
            }
        }
        if let Some(admin) = self.flags.admin_secure_address {
            text.paragraph(
                "For Prometheus. kube-apiserver authenticates and authorizes its clients.",
            );
            text.value("adminSecureAddress", &admin.to_string());
        }
        Ok(())
    }

    fn authentication(&mut self) -> Result<(), String> {
        self.text.paragraph(
            "As kube-apiserver: clients see the same certificate, and are authenticated alike.",
        );
        self.named("tlsCertFile", "tls-cert-file")?;
        self.named("tlsPrivateKeyFile", "tls-private-key-file")?;
        self.named("clientCaFile", "client-ca-file")?;
        self.named("requestheaderClientCaFile", "requestheader-client-ca-file")?;
        for (flag, key) in REQUESTHEADER_FLAGS {
            if let Some(value) = self.server.flag(flag) {
                self.text.list(key, value.split(','));
            }
        }
        self.shared(&COMMON_FLAGS);
        self.tls_parameters();
        Ok(())
    }

    /// Clients of kube-apiserver that need older versions or other cipher suites of TLS.
    fn tls_parameters(&mut self) {
        match self.server.flag(MIN_TLS_VERSION.0) {
            Some(version) if OLD_TLS_VERSIONS.contains(&version) => self.text.paragraph(&format!(
                "Not as kube-apiserver, which has --{}={version}: the bridge accepts TLS 1.2 and\n\
                 later. Older clients are rejected.",
                MIN_TLS_VERSION.0
            )),
            _ => self.shared(&[MIN_TLS_VERSION]),
        }
        if self.server.flag(CIPHER_SUITES).is_some() {
            self.text.paragraph(&format!(
                "Not as kube-apiserver, which has --{CIPHER_SUITES}: the bridge has those of TLS 1.3,\n\
                 and of TLS 1.2 those with ECDHE and AES-GCM or ChaCha20-Poly1305. Clients that have\n\
                 none of them are rejected.",
            ));
        }
    }

    fn upstream(&mut self) -> Result<(), String> {
        let loopback = loopback(self.server.advertise_address()?);
        let upstream = SocketAddr::new(loopback, self.server.secure_port()?);
        self.text.paragraph(&format!(
            "kube-apiserver. Its certificate need not be valid for {loopback}; it is for this name."
        ));
        self.text.value("upstream", &format!("https://{upstream}"));
        self.serving_ca("upstreamCaFile")?;
        self.text.value("upstreamServerName", SERVER_NAME);
        self.named("proxyClientCertFile", "proxy-client-cert-file")?;
        self.named("proxyClientKeyFile", "proxy-client-key-file")?;
        if let Some(user) = &self.flags.bridge_user {
            self.text.value("bridgeUser", user);
        }
        Ok(())
    }

    fn peers(&mut self) -> Result<(), String> {
        let Flags {
            peer_registry,
            peer_cidrs,
            ..
        } = self.flags;
        if peer_registry.split(',').any(|it| it == "leases") && peer_cidrs.is_none() {
            let missing = "--peer-registry=leases needs --peer-cidrs, the networks of the nodes";
            return Err(missing.to_owned());
        }
        self.text.paragraph(
            "The bridges of the other nodes. Their certificates are verified by this CA.",
        );
        self.serving_ca("peerCaFile")?;
        self.text.list("peerRegistry", peer_registry.split(','));
        if let Some(networks) = peer_cidrs {
            self.text.list("peerCidrs", networks.split(','));
        }
        if self.flags.uses_etcd() {
            let servers = self.server.required("etcd-servers").map_err(|wrong| {
                format!("{wrong}, or give --peer-registry=leases and --peer-cidrs")
            })?;
            self.text.list("etcdServers", servers.split(','));
            for (flag, key) in ETCD_FILES {
                if self.server.flag(flag).is_some() {
                    self.named(key, flag)?;
                }
            }
            self.shared(&[("etcd-prefix", "etcdPrefix")]);
        }
        if self.server.flag(EGRESS.0).is_some() {
            self.named(EGRESS.1, EGRESS.0)?;
        }
        Ok(())
    }

    /// A file that a flag of kube-apiserver names.
    fn named(&mut self, key: &str, flag: &str) -> Result<(), String> {
        let path = self.server.required(flag)?;
        self.named_files.push(path.to_owned());
        self.text.value(key, path);
        Ok(())
    }

    /// The CA of kube-apiserver's certificate, which no flag of kube-apiserver names.
    fn serving_ca(&mut self, key: &str) -> Result<(), String> {
        let path = match &self.flags.serving_ca_file {
            Some(path) => path,
            None => self.server.required("client-ca-file")?,
        };
        self.named_files.push(path.to_owned());
        self.text.value(key, path);
        Ok(())
    }

    fn shared(&mut self, flags: &[(&str, &str)]) {
        for (flag, key) in flags {
            if let Some(value) = self.server.flag(flag) {
                self.text.value(key, value);
            }
        }
    }
}

fn comment(address: IpAddr, keys: &[&str]) -> String {
    let keys = keys.join(" \\\n#            ");
    format!(
        "# The bridge beside the kube-apiserver at {address} (skewbridge manifest kubeadm).\n\
         #\n\
         # What changes: nothing by itself. The service or static pod skewbridge reads this file when it starts.\n\
         #          It names keys and holds none.\n\
         # Install: Copy this file to {path}. The group of the bridge must be able to read\n\
         #          these keys (chgrp skewbridge, chmod g+r; kubeadm keeps both when it renews certificates):\n\
         #            {keys}\n\
         # Undo:    Stop the bridge and remove the file. chmod g-r and chgrp root for the keys.\n",
        path = configuration::PATH
    )
}
