//! Whether the ports of the bridge are free.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;

use skewbridge_gateway::config::Config;

use super::listening_sockets;
use crate::check::admin_port;
use crate::check::finding::{Finding, Remedy, Section};

const SECTION: Section = Section::Ports;

/// kubeadm's manifest of the kube-apiserver of this machine.
const SERVER_MANIFEST: &str = "/etc/kubernetes/manifests/kube-apiserver.yaml";

/// How many ports above a used one are tried.
const MAX_TRIED_PORTS: u16 = 20;

/// A port, and why it cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    flag: &'static str,
    address: SocketAddr,
    error: Option<ErrorKind>,
    /// A port that is free instead.
    free: Option<u16>,
    /// Whether the kube-apiserver of `--upstream` has it.
    is_of_upstream: bool,
}

/// The bridge that answers at the admin address of this configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Running {
    No,
    /// It listens at these addresses.
    At(Vec<SocketAddr>),
    /// It does not report where it listens.
    Somewhere(String),
}

/// Who listens at an address that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Listener {
    Bridge,
    Other,
    NotKnown(String),
}

pub(super) async fn check(config: &Config) -> Vec<Finding> {
    let admin = &config.admin;
    let listen = SocketAddr::new(config.listen.bind_address, config.listen.secure_port);
    let addresses = [
        Some(("--secure-port", listen)),
        Some(("--admin-address", admin.address)),
        (admin.secure_address).map(|address| ("--admin-secure-address", address)),
    ];
    let ports = addresses.into_iter().flatten().map(|(flag, address)| {
        let error = TcpListener::bind(address).err().map(|it| it.kind());
        let free = (error == Some(ErrorKind::AddrInUse)).then(|| free_port(address));
        let in_use = flag == "--secure-port" && error == Some(ErrorKind::AddrInUse);
        Port {
            flag,
            address,
            error,
            free: free.flatten(),
            is_of_upstream: in_use && listens_everywhere(config, address),
        }
    });
    let ports: Vec<_> = ports.collect();
    let running = match admin_port::peers(admin.address).await {
        Ok(_) => match admin_port::listeners(admin.address).await {
            Ok(addresses) => Running::At(addresses),
            Err(why) => Running::Somewhere(why),
        },
        Err(_) => Running::No,
    };
    ports.iter().map(|port| judge(port, &running)).collect()
}

/// Whether one socket has the port of the bridge and that of its kube-apiserver, which has not moved
/// to its loopback address yet.
fn listens_everywhere(config: &Config, address: SocketAddr) -> bool {
    let upstream = &config.upstream;
    let Ok(ip) = upstream.host.parse::<IpAddr>() else {
        return false;
    };
    let upstream_address = SocketAddr::new(ip, upstream.port);
    !upstream.is_balanced() && is_one_socket(address, upstream_address, &listening_sockets::all())
}

fn is_one_socket(address: SocketAddr, upstream: SocketAddr, listening: &[SocketAddr]) -> bool {
    let mut found = listening.iter().filter(|it| {
        it.port() == address.port() && (includes(**it, address) || includes(**it, upstream))
    });
    upstream.ip().is_loopback()
        && upstream.port() == address.port()
        && found.next().is_some_and(|it| it.ip().is_unspecified())
        && found.next().is_none()
}

fn free_port(used: SocketAddr) -> Option<u16> {
    let mut next = used.port().checked_add(1)?..=used.port().saturating_add(MAX_TRIED_PORTS);
    next.find(|port| TcpListener::bind(SocketAddr::new(used.ip(), *port)).is_ok())
}

/// Whether a socket that listens at the first address has the second one.
fn includes(listening: SocketAddr, address: SocketAddr) -> bool {
    let ip = match listening.ip() {
        // A socket of IPv6 for all addresses has those of IPv4, too.
        IpAddr::V6(ip) => ip.is_unspecified() || ip == address.ip(),
        IpAddr::V4(ip) => (ip.is_unspecified() && address.is_ipv4()) || ip == address.ip(),
    };
    ip && listening.port() == address.port()
}

fn listener(address: SocketAddr, running: &Running) -> Listener {
    match running {
        Running::No => Listener::Other,
        Running::Somewhere(why) => Listener::NotKnown(why.clone()),
        Running::At(all) if all.iter().any(|it| includes(*it, address)) => Listener::Bridge,
        // The bridge has one of the addresses: other programs may have others.
        Running::At(all) => match all.iter().find(|it| includes(address, **it)) {
            Some(one) => Listener::NotKnown(format!(
                "the running bridge has {one}: repeat the check when it is stopped"
            )),
            None => Listener::Other,
        },
    }
}

fn judge(port: &Port, running: &Running) -> Finding {
    let Port { flag, address, .. } = port;
    let name = format!("{address} ({flag}) can be opened");
    let Some(error) = port.error else {
        return Finding::ok(SECTION, name);
    };
    let (message, remedy) = match error {
        ErrorKind::AddrInUse => {
            match listener(*address, running) {
                Listener::Bridge => {
                    return Finding::ok(SECTION, name).message("the running bridge listens there");
                }
                Listener::NotKnown(why) => return Finding::not_known(SECTION, name, why),
                Listener::Other if port.is_of_upstream => return not_moved(name),
                Listener::Other => {}
            }
            let text = "let the other program listen elsewhere (kube-apiserver: \
                        --bind-address=127.0.0.1), or choose another port; the command shows the \
                        program";
            let value = port.free.map(|free| match *flag {
                "--secure-port" => free.to_string(),
                _ => SocketAddr::new(address.ip(), free).to_string(),
            });
            let remedy = Remedy {
                value,
                command: Some(format!("ss -ltnp 'sport = :{}'", address.port())),
                ..Remedy::flag(flag, text)
            };
            ("another program listens there".to_owned(), remedy)
        }
        ErrorKind::AddrNotAvailable => {
            let flag = if *flag == "--secure-port" {
                "--bind-address"
            } else {
                *flag
            };
            let text = format!("set {flag} to an address of this machine; the command lists them");
            let remedy = Remedy {
                command: Some("ip -brief address".to_owned()),
                ..Remedy::flag(flag, text)
            };
            (
                "no interface of this machine has this address".to_owned(),
                remedy,
            )
        }
        ErrorKind::PermissionDenied => (
            "this user may not open a port below 1024".to_owned(),
            Remedy::flag(flag, format!("set {flag} to a port from 1024 on")),
        ),
        other => (
            other.to_string(),
            Remedy::flag(flag, format!("set another {flag}")),
        ),
    };
    Finding::failure(SECTION, name, message, remedy)
}

/// The bridge waits until the port is free.
fn not_moved(name: String) -> Finding {
    let why = "the kube-apiserver of --upstream listens there, as on all addresses: the bridge \
               starts when kube-apiserver has moved to its loopback address";
    let remedy = Remedy {
        file: Some(Path::new(SERVER_MANIFEST).to_owned()),
        ..Remedy::command(
            "skewbridge manifest kubeadm --output-dir=/etc/skewbridge",
            format!("replace {SERVER_MANIFEST} by that which the command writes"),
        )
    };
    Finding::warning(SECTION, name, why, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Outcome;

    #[test]
    fn each_error_has_its_flag() {
        let port = |flag, error, free| Port {
            flag,
            address: "10.0.0.11:6443".parse().unwrap(),
            error,
            free,
            is_of_upstream: false,
        };
        let ok = judge(&port("--secure-port", None, None), &Running::No);
        assert_eq!(ok.outcome, Outcome::Ok);
        let used = Some(ErrorKind::AddrInUse);
        let rows = [
            (
                "--secure-port",
                used,
                Some(6444),
                "--secure-port",
                Some("6444"),
            ),
            (
                "--admin-address",
                used,
                Some(6444),
                "--admin-address",
                Some("10.0.0.11:6444"),
            ),
            (
                "--admin-secure-address",
                used,
                Some(6444),
                "--admin-secure-address",
                Some("10.0.0.11:6444"),
            ),
            (
                "--secure-port",
                Some(ErrorKind::AddrNotAvailable),
                None,
                "--bind-address",
                None,
            ),
            (
                "--secure-port",
                Some(ErrorKind::PermissionDenied),
                None,
                "--secure-port",
                None,
            ),
        ];
        for (flag, error, free, expected, value) in rows {
            let found = judge(&port(flag, error, free), &Running::No);
            assert_eq!(found.outcome, Outcome::Failure);
            let remedy = found.remedy.unwrap();
            assert_eq!(remedy.flag.as_deref(), Some(expected));
            assert_eq!(remedy.value.as_deref(), value);
        }
    }

    /// kube-apiserver may still have the port to which a running bridge is to move.
    #[test]
    fn a_used_port_is_good_only_if_the_running_bridge_has_it() {
        use Outcome::{Failure, NotKnown, Ok};
        let rows: [(&str, &[&str], Outcome); 9] = [
            ("10.0.0.11:6443", &["10.0.0.11:6443"], Ok),
            ("10.0.0.11:6443", &["127.0.0.1:10270", "0.0.0.0:6443"], Ok),
            ("10.0.0.11:6443", &["[::]:6443"], Ok),
            ("0.0.0.0:6443", &["0.0.0.0:6443"], Ok),
            ("10.0.0.11:6443", &["0.0.0.0:7443"], Failure),
            ("10.0.0.11:6443", &["10.0.0.12:6443"], Failure),
            ("10.0.0.11:6443", &[], Failure),
            ("[fd00::1]:6443", &["0.0.0.0:6443"], Failure),
            ("0.0.0.0:6443", &["10.0.0.11:6443"], NotKnown),
        ];
        for (address, listening, expected) in rows {
            let port = Port {
                flag: "--secure-port",
                address: address.parse().unwrap(),
                error: Some(ErrorKind::AddrInUse),
                free: None,
                is_of_upstream: false,
            };
            let running = listening.iter().map(|it| it.parse().unwrap()).collect();
            let found = judge(&port, &Running::At(running));
            assert_eq!(found.outcome, expected, "{address} {listening:?}");
            let found = judge(&port, &Running::Somewhere("no /flagz".to_owned()));
            assert_eq!(found.outcome, NotKnown);
        }
    }

    #[test]
    fn a_kube_apiserver_that_has_not_moved_yet_is_recognised() {
        let rows: [(&str, &str, &[&str], bool); 8] = [
            ("10.0.0.11:6443", "127.0.0.1:6443", &["[::]:6443"], true),
            (
                "10.0.0.11:6443",
                "127.0.0.1:6443",
                &["0.0.0.0:6443", "[::]:22"],
                true,
            ),
            ("[fd00::11]:6443", "[::1]:6443", &["[::]:6443"], true),
            // Another program has the port, and kube-apiserver has moved.
            (
                "10.0.0.11:6443",
                "127.0.0.1:6443",
                &["127.0.0.1:6443", "10.0.0.11:6443"],
                false,
            ),
            (
                "10.0.0.11:6443",
                "127.0.0.1:6443",
                &["10.0.0.11:6443"],
                false,
            ),
            // The bridge is to have the port of another program.
            (
                "10.0.0.11:7443",
                "127.0.0.1:6443",
                &["[::]:6443", "[::]:7443"],
                false,
            ),
            ("10.0.0.11:6443", "10.0.0.12:6443", &["[::]:6443"], false),
            ("10.0.0.11:6443", "127.0.0.1:6443", &[], false),
        ];
        for (address, upstream, listening, expected) in rows {
            let listening: Vec<_> = listening.iter().map(|it| it.parse().unwrap()).collect();
            let (address, upstream) = (address.parse().unwrap(), upstream.parse().unwrap());
            let found = is_one_socket(address, upstream, &listening);
            assert_eq!(found, expected, "{address} {upstream} {listening:?}");
        }
        let port = Port {
            flag: "--secure-port",
            address: "10.0.0.11:6443".parse().unwrap(),
            error: Some(ErrorKind::AddrInUse),
            free: Some(6444),
            is_of_upstream: true,
        };
        let found = judge(&port, &Running::No);
        assert_eq!(found.outcome, Outcome::Warning);
        let remedy = found.remedy.unwrap();
        // Another port would be another layout.
        assert_eq!(remedy.value, None);
        assert_eq!(remedy.file.as_deref(), Some(Path::new(SERVER_MANIFEST)));
    }
}
