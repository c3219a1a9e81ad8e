//! Port specs: `8080:80`, `80`, `:80`, `8080:http`, `unix:/tmp/web.sock:80`.

use std::path::PathBuf;

use skewbridge_client::remote_command::Port;

use crate::pods::{Pod, Service, TargetPort};

/// A local port or socket, and the remote port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) local: Local,
    pub(crate) remote: Remote,
}

/// The local side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Local {
    /// The same port as the remote one.
    Same,
    /// Any free port.
    Any,
    Port(Port),
    Unix(PathBuf),
}

/// A port of a pod, or of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Remote {
    Number(Port),
    Name(String),
}

impl Spec {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if let Some(rest) = text.strip_prefix("unix:") {
            let (path, remote) = rest
                .rsplit_once(':')
                .filter(|(path, _)| !path.is_empty())
                .ok_or_else(|| format!("{text:?}: write a socket like unix:/tmp/web.sock:80"))?;
            return Ok(Self {
                local: Local::Unix(path.into()),
                remote: Remote::parse(remote)?,
            });
        }
        let parts: Vec<_> = text.split(':').collect();
        let (local, remote) = match parts.as_slice() {
            [remote] => (Local::Same, *remote),
            ["" | "0", remote] => (Local::Any, *remote),
            [local, remote] => {
                let port = local.parse();
                let port = port.map_err(|_| format!("error parsing local port {local:?}"))?;
                (Local::Port(port), *remote)
            }
            _ => return Err(format!("invalid port format '{text}'")),
        };
        let remote = Remote::parse(remote)?;
        Ok(Self { local, remote })
    }
}

impl Remote {
    fn parse(text: &str) -> Result<Self, String> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            let port = text.parse();
            return port.map(Self::Number).map_err(|_| match text {
                "0" => "remote port must be > 0".to_owned(),
                _ => format!("error parsing remote port {text:?}"),
            });
        }
        Ok(Self::Name(text.to_owned()))
    }
}

/// A spec that is resolved for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// The port of the pod.
    pub(crate) remote: Port,
    /// The local port, if it is to be the same.
    pub(crate) same: Port,
}

/// The port of the pod, by way of its service if that was named. With kubectl's message if there
/// is none.
pub(crate) fn resolve(
    remote: &Remote,
    pod: &Pod,
    service: Option<(&str, &Service)>,
) -> Result<Resolved, String> {
    let Some((name, service)) = service else {
        let port = match remote {
            Remote::Number(port) => *port,
            Remote::Name(name) => named(pod, name)?,
        };
        let ports = pod.spec.containers.iter().flat_map(|it| &it.ports);
        let ports = ports.map(|it| (it.number, it.protocol.as_str()));
        speaks_tcp(remote, port, ports)?;
        return Ok(Resolved {
            remote: port,
            same: port,
        });
    };
    let mut ports = service.spec.ports.iter();
    let found = match remote {
        Remote::Number(port) => ports.find(|it| it.port == port.number()),
        Remote::Name(name) => ports.find(|it| it.name == *name),
    };
    let Some(found) = found else {
        let what = match remote {
            Remote::Number(port) => {
                format!("{name} does not have a service port {}", port.number())
            }
            Remote::Name(port) => format!("'{name}' does not have a named port '{port}'"),
        };
        let known: Vec<_> = service
            .spec
            .ports
            .iter()
            .map(|it| it.port.to_string())
            .collect();
        let known = known.join(", ");
        return Err(format!("Service {what}; it has: {known}"));
    };
    let own = Port::new(found.port).ok_or("a service port of 0")?;
    let ports = service.spec.ports.iter();
    let ports = ports.map(|it| (it.port, it.protocol.as_str()));
    speaks_tcp(remote, own, ports)?;
    let target = match &found.target_port {
        // A headless service has the ports of its pods.
        _ if service.spec.cluster_ip == "None" => own,
        None | Some(TargetPort::Number(0)) => own,
        Some(TargetPort::Number(number)) => Port::new(*number).unwrap_or(own),
        Some(TargetPort::Name(name)) => named(pod, name)?,
    };
    Ok(Resolved {
        remote: target,
        same: own,
    })
}

/// UDP is not forwarded: a port that is only UDP is refused, with kubectl's message.
fn speaks_tcp<'a>(
    remote: &Remote,
    port: Port,
    known: impl Iterator<Item = (u16, &'a str)>,
) -> Result<(), String> {
    let (mut udp, mut tcp) = (false, false);
    for (_, protocol) in known.filter(|(number, _)| *number == port.number()) {
        udp |= protocol == "UDP";
        tcp |= protocol == "TCP";
    }
    if tcp || !udp {
        return Ok(());
    }
    Err(match remote {
        Remote::Number(port) => format!("UDP protocol is not supported for {}", port.number()),
        Remote::Name(name) => format!("UDP protocol is not supported for {name}"),
    })
}

fn named(pod: &Pod, name: &str) -> Result<Port, String> {
    let ports = || pod.containers().flat_map(|(it, _)| &it.ports);
    let found = ports().find(|port| port.name == name);
    found
        .and_then(|port| Port::new(port.number))
        .ok_or_else(|| {
            let known: Vec<_> = ports()
                .map(|it| it.name.as_str())
                .filter(|it| !it.is_empty())
                .collect();
            let known = match known.as_slice() {
                [] => "its ports have no names".to_owned(),
                known => format!("it has: {}", known.join(", ")),
            };
            format!(
                "Pod '{}' does not have a named port '{name}'; {known}",
                pod.metadata.name
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u16) -> Port {
        Port::new(number).unwrap()
    }

    #[test]
    fn ports_are_written_as_for_kubectl() {
        let number = |it| Remote::Number(port(it));
        let name = |it: &str| Remote::Name(it.to_owned());
        let rows = [
            ("80", Ok((Local::Same, number(80)))),
            ("8080:80", Ok((Local::Port(port(8080)), number(80)))),
            (":80", Ok((Local::Any, number(80)))),
            ("0:80", Ok((Local::Any, number(80)))),
            ("http", Ok((Local::Same, name("http")))),
            ("8443:https", Ok((Local::Port(port(8443)), name("https")))),
            (
                "unix:/tmp/a:b:80",
                Ok((Local::Unix("/tmp/a:b".into()), number(80))),
            ),
            (
                "unix:80",
                Err("\"unix:80\": write a socket like unix:/tmp/web.sock:80"),
            ),
            ("1:2:3", Err("invalid port format '1:2:3'")),
            ("x:80", Err("error parsing local port \"x\"")),
            ("80:0", Err("remote port must be > 0")),
            ("80:", Err("error parsing remote port \"\"")),
            ("99999", Err("error parsing remote port \"99999\"")),
        ];
        for (text, expected) in rows {
            let found = Spec::parse(text).map(|it| (it.local, it.remote));
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|it| *it),
                "{text}"
            );
        }
    }

    #[test]
    fn ports_of_services_are_resolved_to_ports_of_pods() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"web"},"spec":{"containers":[{"name":"a","ports":[{"name":"http","containerPort":8080}]}]}}"#,
        )
        .unwrap();
        let service = |ip: &str| -> Service {
            serde_json::from_str(&format!(
                r#"{{"spec":{{"clusterIP":"{ip}","ports":[{{"name":"web","port":80,"targetPort":"http"}},
                {{"name":"tls","port":443,"targetPort":8443}},{{"port":9}},{{"port":7,"targetPort":"none"}}]}}}}"#
            ))
            .unwrap()
        };
        let (normal, headless) = (service("10.0.0.1"), service("None"));
        let number = |it| Remote::Number(port(it));
        let rows = [
            (number(80), Some(&normal), Ok((8080, 80))),
            (
                Remote::Name("web".to_owned()),
                Some(&normal),
                Ok((8080, 80)),
            ),
            (number(443), Some(&normal), Ok((8443, 443))),
            (number(9), Some(&normal), Ok((9, 9))),
            (number(80), Some(&headless), Ok((80, 80))),
            (Remote::Name("http".to_owned()), None, Ok((8080, 8080))),
            (number(1), None, Ok((1, 1))),
            (
                number(1),
                Some(&normal),
                Err("Service web does not have a service port 1; it has: 80, 443, 9, 7"),
            ),
            (
                Remote::Name("no".to_owned()),
                Some(&normal),
                Err("Service 'web' does not have a named port 'no'; it has: 80, 443, 9, 7"),
            ),
            (
                number(7),
                Some(&normal),
                Err("Pod 'web' does not have a named port 'none'; it has: http"),
            ),
        ];
        for (remote, service, expected) in rows {
            let found = resolve(&remote, &pod, service.map(|it| ("web", it)));
            let found = found.map(|it| (it.remote.number(), it.same.number()));
            assert_eq!(
                found.as_ref().map_err(String::as_str),
                expected.as_ref().map_err(|it| *it),
                "{remote:?}"
            );
        }
    }

    #[test]
    fn udp_ports_are_refused() {
        let pod: Pod = serde_json::from_str(
            r#"{"metadata":{"name":"dns"},"spec":{"containers":[{"name":"a","ports":[
            {"name":"dns","containerPort":53,"protocol":"UDP"},{"name":"dns-tcp","containerPort":53,"protocol":"TCP"},
            {"name":"ntp","containerPort":123,"protocol":"UDP"}]}]}}"#,
        )
        .unwrap();
        let service: Service = serde_json::from_str(
            r#"{"spec":{"clusterIP":"10.0.0.1","ports":[{"name":"dns","port":53,"protocol":"UDP"},
            {"name":"dns-tcp","port":53,"protocol":"TCP"},{"name":"ntp","port":123,"protocol":"UDP"}]}}"#,
        )
        .unwrap();
        let number = |it| Remote::Number(port(it));
        let name = |it: &str| Remote::Name(it.to_owned());
        let rows = [
            (number(53), Ok(53)),
            (name("dns"), Ok(53)),
            (number(80), Ok(80)),
            (number(123), Err("UDP protocol is not supported for 123")),
            (name("ntp"), Err("UDP protocol is not supported for ntp")),
        ];
        for (remote, expected) in rows {
            for service in [None, Some(("dns", &service))] {
                if service.is_some() && remote == number(80) {
                    continue;
                }
                let found = resolve(&remote, &pod, service).map(|it| it.remote.number());
                assert_eq!(
                    found.as_ref().map_err(String::as_str),
                    expected.as_ref().map_err(|it| *it)
                );
            }
        }
    }
}
