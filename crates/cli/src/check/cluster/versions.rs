//! Versions: that of the bridges, which is one, and those of the kube-apiservers, whose distance
//! Kubernetes limits.

use std::collections::BTreeMap;

use skewbridge_discovery::ServerDiscovery;
use skewbridge_released_apis::Minor;
use skewbridge_upgrade_check::skew_policy::MAX_SERVER_SKEW_MINORS;

use super::bridges::{OtherServer, host};
use super::server::{BridgeReport, ServerReachability};
use crate::check::finding::{Finding, Remedy, Section};

const SECTION: Section = Section::Bridges;

/// A bridge and its version. Old bridges do not report it.
type VersionOfBridge<'a> = (String, Option<&'a str>);

/// The findings about the bridge at `server` and the others.
pub(super) fn judge(server: &str, answer: &BridgeReport, others: &[OtherServer]) -> Vec<Finding> {
    let mut bridges = vec![(server.to_owned(), answer.list.bridge_version.as_deref())];
    for other in others {
        if let (Some(ServerReachability::Bridge(answer)), Some(address)) =
            (&other.contact, &other.listed.address)
        {
            bridges.push((address.clone(), answer.list.bridge_version.as_deref()));
        }
    }
    let servers = of_servers(&answer.list.servers);
    [of_bridges(&bridges)].into_iter().chain(servers).collect()
}

fn of_bridges(bridges: &[VersionOfBridge<'_>]) -> Finding {
    let name = "all bridges have the same version";
    let mut by_version = BTreeMap::<_, Vec<&str>>::new();
    for (address, version) in bridges {
        by_version.entry(*version).or_default().push(address);
    }
    let versions = by_version.iter().map(|(version, addresses)| {
        let version = version.unwrap_or("an unknown version");
        format!("{version} at {}", addresses.join(", "))
    });
    let versions = versions.collect::<Vec<_>>().join("; ");
    if by_version.len() > 1 {
        let remedy = Remedy::command(
            "skewbridge version",
            "install the newest of them on the machines of the others, and restart one bridge after \
             the other; the command shows the installed version",
        );
        Finding::warning(SECTION, name, versions, remedy)
    } else if by_version.contains_key(&None) {
        Finding::not_known(SECTION, name, versions)
    } else {
        Finding::ok(SECTION, name).message(versions)
    }
}

/// `None` if the bridge lists no servers: it runs local-only.
fn of_servers(servers: &[ServerDiscovery]) -> Option<Finding> {
    let name = "kube-apiservers are at most one minor version apart";
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for server in servers {
        let version = server.version.as_deref();
        match version.and_then(|it| it.parse::<Minor>().ok()) {
            Some(minor) => known.push((minor, server)),
            None => unknown.push(host(server)),
        }
    }
    known.sort_by_key(|(minor, _)| *minor);
    let [(oldest, old), .., (newest, new)] = known.as_slice() else {
        return match (known.as_slice(), unknown.as_slice()) {
            ([(_, only)], []) => Some(Finding::ok(SECTION, name).message(host(only))),
            (_, []) => None,
            (_, unknown) => Some(without_version(name, unknown)),
        };
    };
    let apart = newest.ahead_of(*oldest);
    Some(if apart > MAX_SERVER_SKEW_MINORS {
        Finding::warning(
            SECTION,
            name,
            format!(
                "{} and {} are {apart} apart, which the version skew policy of Kubernetes does not \
                 support",
                host(old),
                host(new)
            ),
            Remedy::command(
                format!("skewbridge check upgrade --target={newest}"),
                "upgrade the older servers, one minor version at a time; the command finds what \
                 that has to wait for",
            ),
        )
    } else if unknown.is_empty() {
        let mut minors: Vec<_> = known.iter().map(|(minor, _)| minor.to_string()).collect();
        minors.dedup();
        Finding::ok(SECTION, name).message(minors.join(", "))
    } else {
        without_version(name, &unknown)
    })
}

fn without_version(name: &str, servers: &[String]) -> Finding {
    let why = format!("the version of {} is not known", servers.join(", "));
    Finding::not_known(SECTION, name, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Outcome::{self, NotKnown, Ok, Warning};

    #[test]
    fn bridges_have_one_version() {
        let [old, new] = [Some("0.1.0"), Some("0.2.0")];
        let rows: [(&[Option<&str>], Outcome, &str); 6] = [
            (&[new], Ok, "0.2.0 at bridge-0"),
            (&[new, new], Ok, "0.2.0 at bridge-0, bridge-1"),
            (
                &[new, old, new],
                Warning,
                "0.1.0 at bridge-1; 0.2.0 at bridge-0, bridge-2",
            ),
            (
                &[new, None],
                Warning,
                "an unknown version at bridge-1; 0.2.0 at bridge-0",
            ),
            (&[None], NotKnown, "an unknown version at bridge-0"),
            (
                &[None, None],
                NotKnown,
                "an unknown version at bridge-0, bridge-1",
            ),
        ];
        for (versions, outcome, message) in rows {
            let numbered = versions.iter().enumerate();
            let bridges: Vec<_> = numbered
                .map(|(number, version)| (format!("bridge-{number}"), *version))
                .collect();
            let found = of_bridges(&bridges);
            assert_eq!((found.outcome, &*found.message), (outcome, message));
        }
    }

    #[test]
    fn servers_are_at_most_one_minor_version_apart() {
        assert_eq!(of_servers(&[]), None);
        let rows: [(&[Option<&str>], Outcome, &str); 8] = [
            (&[Some("v1.36.4")], Ok, "cp-0 (v1.36.4)"),
            (&[Some("v1.36.4"), Some("v1.36.1")], Ok, "1.36"),
            (
                &[Some("v1.36.4"), Some("v1.35.8"), Some("v1.36.4")],
                Ok,
                "1.35, 1.36",
            ),
            (
                &[Some("v1.36.4"), Some("v1.35.8"), Some("v1.34.4")],
                Warning,
                "cp-2 (v1.34.4) and cp-0 (v1.36.4) are 2 apart, which the version skew policy of \
                 Kubernetes does not support",
            ),
            // Compared as numbers.
            (&[Some("v1.9.9"), Some("v1.10.1")], Ok, "1.9, 1.10"),
            (
                &[Some("v1.36.4"), None],
                NotKnown,
                "the version of cp-1 is not known",
            ),
            (
                &[None, Some("v1.36.4"), Some("v1.33.0")],
                Warning,
                "cp-2 (v1.33.0) and cp-1 (v1.36.4) are 3 apart, which the version skew policy of \
                 Kubernetes does not support",
            ),
            (
                &[Some("x"), None],
                NotKnown,
                "the version of cp-0 (x), cp-1 is not known",
            ),
        ];
        for (versions, outcome, message) in rows {
            let numbered = versions.iter().enumerate();
            let servers: Vec<_> = numbered
                .map(|(number, version)| ServerDiscovery {
                    host: Some(format!("cp-{number}")),
                    version: version.map(str::to_owned),
                    ..ServerDiscovery::default()
                })
                .collect();
            let found = of_servers(&servers).unwrap();
            assert_eq!((found.outcome, &*found.message), (outcome, message));
        }
    }

    #[test]
    fn a_distance_has_the_command_that_finds_what_an_upgrade_waits_for() {
        let server = |version: &str| ServerDiscovery {
            version: Some(version.to_owned()),
            ..ServerDiscovery::default()
        };
        let found = of_servers(&[server("v1.34.4"), server("v1.36.4")]).unwrap();
        let command = found.remedy.unwrap().command.unwrap();
        assert_eq!(command, "skewbridge check upgrade --target=1.36");
    }
}
