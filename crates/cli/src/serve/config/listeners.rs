//! The ports on which a bridge listens, and its serving certificate.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use skewbridge_gateway::config::{Admin, Listen, ServingTls, TlsVersion};

use super::non_empty;
use crate::flag_values::{self, Parsed};
use crate::serve::diagnostics::Diagnostics;
use crate::serve::flags::{AdminFlags, Flags, GenericFlags, ServingFlags};

const ADMIN_ADDRESS: &str = "--admin-address";
const ADMIN_SECURE_ADDRESS: &str = "--admin-secure-address";

pub(super) fn admin(flags: &AdminFlags, diagnostics: &mut Diagnostics) -> Option<Admin> {
    let address = diagnostics.value(
        ADMIN_ADDRESS,
        flag_values::loopback_socket(&flags.admin_address),
    );
    let secure = non_empty(flags.admin_secure_address.as_ref());
    let secure = secure.map(flag_values::any_socket).transpose();
    let secure_address = diagnostics.value(ADMIN_SECURE_ADDRESS, secure);
    let watch_target = non_empty(flags.watch_target.as_ref());
    let watch_target = watch_target.map(flag_values::released_minor).transpose();
    let watch_target = diagnostics.value("--watch-target", watch_target);
    Some(Admin {
        address: address?,
        secure_address: secure_address?,
        watch_target: watch_target?,
        // Set when all sources of flags are known.
        flags: BTreeMap::new(),
    })
}

pub(super) fn listen(
    serving: &ServingFlags,
    generic: &GenericFlags,
    diagnostics: &mut Diagnostics,
) -> Option<Listen> {
    let bind_address = diagnostics.value("--bind-address", flag_values::ip(&serving.bind_address));
    let secure_port = diagnostics.value(
        "--secure-port",
        flag_values::number(&serving.secure_port, &(0..=u16::MAX)),
    );
    let advertise_address = non_empty(generic.advertise_address.as_ref())
        .and_then(|ip| diagnostics.value("--advertise-address", flag_values::advertised_ip(ip)));
    let proxy_protocol_cidrs = diagnostics.values(
        "--proxy-protocol-cidrs",
        &serving.proxy_protocol_cidrs,
        flag_values::cidr,
    );
    Some(Listen {
        proxy_protocol_cidrs,
        bind_address: bind_address?,
        secure_port: secure_port?,
        advertise_address,
    })
}

pub(super) fn serving(flags: &ServingFlags, diagnostics: &mut Diagnostics) -> Option<ServingTls> {
    let cert = ("--tls-cert-file", non_empty(flags.tls_cert_file.as_ref()));
    let key = (
        "--tls-private-key-file",
        non_empty(flags.tls_private_key_file.as_ref()),
    );
    if cert.1.is_none() && key.1.is_none() {
        diagnostics.problem(cert.0, None, "required: the serving certificate");
        diagnostics.problem(key.0, None, "required: the private key of --tls-cert-file");
    }
    let key_pair = diagnostics.key_pair(cert, key);
    let min_version = diagnostics.value("--tls-min-version", tls_version(&flags.tls_min_version));
    Some(ServingTls {
        key_pair: key_pair?,
        min_version: min_version?,
    })
}

fn tls_version(text: &str) -> Parsed<TlsVersion> {
    if matches!(text, "VersionTLS10" | "VersionTLS11") {
        return Err(format!(
            "{text} is insecure (RFC 8996) and not supported; use VersionTLS12 or VersionTLS13"
        ));
    }
    flag_values::keyword(
        text,
        &[
            ("VersionTLS12", TlsVersion::Tls12),
            ("VersionTLS13", TlsVersion::Tls13),
        ],
    )
}

/// With the defaults, a bridge on the kube-apiserver's own port would be its own upstream.
pub(super) fn check_upstream_is_not_self(
    listen: &Listen,
    host: &str,
    port: u16,
    diagnostics: &mut Diagnostics,
) {
    let is_own_address = ip_of(host).is_some_and(|ip| {
        ip == listen.bind_address
            || Some(ip) == listen.advertise_address
            || (listen.bind_address.is_unspecified() && (ip.is_loopback() || ip.is_unspecified()))
    });
    if is_own_address && port == listen.secure_port {
        diagnostics.problem(
            "--upstream",
            None,
            format!(
                "{host}:{port} is where this bridge listens; use another port for kube-apiserver, \
                 or another --secure-port for the bridge",
            ),
        );
    }
}

pub(super) fn check_upstream_is_not_admin(
    admin: &Admin,
    host: &str,
    port: u16,
    diagnostics: &mut Diagnostics,
) {
    for (flag, address) in admin_ports(admin) {
        if port == address.port() && ip_of(host) == Some(address.ip()) {
            let message =
                format!("{host}:{port} is this bridge's {flag}; set the address of kube-apiserver");
            diagnostics.problem("--upstream", None, message);
        }
    }
}

/// The admin ports and their flags.
fn admin_ports(admin: &Admin) -> impl Iterator<Item = (&'static str, SocketAddr)> {
    let secure = admin.secure_address.map(|it| (ADMIN_SECURE_ADDRESS, it));
    [(ADMIN_ADDRESS, admin.address)].into_iter().chain(secure)
}

/// The address of a host that needs no resolver.
fn ip_of(host: &str) -> Option<IpAddr> {
    match host {
        "localhost" => Some([127, 0, 0, 1].into()),
        host => host.parse().ok(),
    }
}

pub(super) fn check_listeners_differ(
    listen: &Listen,
    admin: &Admin,
    diagnostics: &mut Diagnostics,
) {
    let main = SocketAddr::new(listen.bind_address, listen.secure_port);
    for (flag, address) in admin_ports(admin) {
        if are_one_port(main, address) {
            let message = format!("{address} is used by --secure-port; choose another port");
            diagnostics.problem(flag, None, message);
        }
    }
    if let Some(secure) = admin.secure_address
        && are_one_port(admin.address, secure)
    {
        let message = format!("{secure} is used by {ADMIN_ADDRESS}; choose another port");
        diagnostics.problem(ADMIN_SECURE_ADDRESS, None, message);
    }
}

/// Whether two listeners cannot both be opened.
fn are_one_port(one: SocketAddr, other: SocketAddr) -> bool {
    let same_ip =
        one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    same_ip && one.port() != 0 && one.port() == other.port()
}

/// Reviews are sent as `--bridge-user`, which the front-proxy certificate asserts.
pub(super) fn check_reviews_can_be_sent(flags: &Flags, diagnostics: &mut Diagnostics) {
    let secure = non_empty(flags.admin.admin_secure_address.as_ref());
    if secure.is_some() && non_empty(flags.upstream.proxy_client_cert_file.as_ref()).is_none() {
        let message = "needs --proxy-client-cert-file, with which the bridge sends TokenReviews and \
                       SubjectAccessReviews of the port's clients to kube-apiserver";
        diagnostics.problem(ADMIN_SECURE_ADDRESS, None, message);
    }
}
