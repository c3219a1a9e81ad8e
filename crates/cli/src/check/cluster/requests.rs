//! Requests through each bridge: merged discovery, a read that another server answers, a write
//! (as a dry run), and a command in a pod.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use skewbridge_client::remote_command::{ExecRequest, ExitStatus};
use skewbridge_client::{Endpoint, Request, Target};
use skewbridge_discovery::document::Group;
use skewbridge_discovery::{Document, ServerDiscovery, accept};

use super::ClusterOptions;
use super::bridges::OtherServer;
use super::server::{BridgeReport, ServerReachability};
use crate::check::finding::{Finding, Remedy, Section};
use crate::check::{http, parallel};

const SECTION: Section = Section::Requests;

/// A resource that can be listed: group, version, resource.
type Listable = (String, String, String);

pub(super) async fn check(
    options: &ClusterOptions,
    target: &Target,
    answer: &BridgeReport,
    others: &[OtherServer],
) -> Vec<Finding> {
    let mut bridges = vec![(target.server(), target.clone(), answer)];
    for other in others {
        if let (Some(ServerReachability::Bridge(answer)), Some(target)) =
            (&other.contact, &other.target)
        {
            bridges.push((target.server(), target.clone(), &**answer));
        }
    }
    let namespace = options
        .namespace
        .clone()
        .or_else(|| target.namespace.clone());
    let namespace = namespace.unwrap_or_else(|| "default".to_owned());
    let probes = bridges
        .iter()
        .map(|(name, target, answer)| -> parallel::Probe<'_, _> {
            Box::pin(through(name, target, answer, options, &namespace))
        });
    parallel::all(probes.collect())
        .await
        .into_iter()
        .flatten()
        .collect()
}

async fn through(
    server: &str,
    target: &Target,
    answer: &BridgeReport,
    options: &ClusterOptions,
    namespace: &str,
) -> Vec<Finding> {
    let endpoint = match http::prepared(target).await {
        Ok(endpoint) => endpoint,
        Err(why) => {
            return vec![Finding::not_known(
                SECTION,
                format!("requests through {server}"),
                why,
            )];
        }
    };
    let (discovery, read, write) = tokio::join!(
        merged_discovery(server, &endpoint, &answer.list.servers),
        rerouted_read(server, &endpoint, &answer.list.servers),
        dry_run(server, &endpoint, namespace),
    );
    let mut findings = vec![discovery, read, write];
    if let Some(pod) = &options.exec {
        findings.push(command(server, endpoint, namespace, pod).await);
    }
    findings
}

/// What can be listed, by the servers that serve it.
fn listable<'a>(
    servers: impl Iterator<Item = &'a ServerDiscovery>,
) -> BTreeMap<Listable, Vec<&'a str>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for server in servers {
        for resource in server.groups.iter().flatten().flat_map(of_group) {
            found
                .entry(resource)
                .or_default()
                .push(server.identity.as_str());
        }
    }
    found
}

fn of_group(group: &Group) -> impl Iterator<Item = Listable> + '_ {
    group.versions.iter().flat_map(move |version| {
        let resources = version.resources.iter();
        let listable = resources.filter(|it| it.verbs.iter().any(|verb| verb == "list"));
        listable.map(move |it| {
            (
                group.metadata.name.clone(),
                version.version.clone(),
                it.resource.clone(),
            )
        })
    })
}

fn path_of((group, version, resource): &Listable) -> String {
    if group.is_empty() {
        format!("/api/{version}/{resource}")
    } else {
        format!("/apis/{group}/{version}/{resource}")
    }
}

async fn merged_discovery(
    server: &str,
    endpoint: &Endpoint,
    servers: &[ServerDiscovery],
) -> Finding {
    let name = format!("{server}: discovery has the APIs of all servers");
    let mut found = BTreeSet::new();
    for path in ["/api", "/apis"] {
        let request = Request::get(path).header("accept", accept::V2);
        let document = match http::send(endpoint, request, None).await {
            Err(why) => return Finding::not_known(SECTION, name, why),
            Ok(answer) if !answer.response.status.is_success() => {
                let why = crate::skew::refusal(path, &answer.response);
                return Finding::not_known(SECTION, name, why);
            }
            Ok(answer) => Document::parse(&answer.response.body),
        };
        match document {
            Ok(document) => found.extend(document.items.iter().flat_map(of_group)),
            Err(error) => return Finding::not_known(SECTION, name, format!("{path}: {error}")),
        }
    }
    let all = listable(servers.iter());
    judge_discovery(name, &all, &found)
}

fn judge_discovery(
    name: String,
    all: &BTreeMap<Listable, Vec<&str>>,
    served: &BTreeSet<Listable>,
) -> Finding {
    let missing: Vec<_> = all
        .keys()
        .filter(|it| !served.contains(*it))
        .map(path_of)
        .collect();
    match missing.as_slice() {
        [] => Finding::ok(SECTION, name).message(format!("{} resources", all.len())),
        [first, rest @ ..] => {
            let more = match rest.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            Finding::failure(
                SECTION,
                name,
                format!("{first}{more} is missing: informers and garbage collection do not see it"),
                Remedy::flag(
                    "--feature-gates",
                    "do not disable UnknownVersionInteroperabilityProxy and CompleteDiscovery",
                ),
            )
        }
    }
}

/// Resources that the local server does not serve.
fn rerouted(servers: &[ServerDiscovery]) -> BTreeMap<Listable, Vec<&str>> {
    let local: BTreeSet<_> = (servers.iter().filter(|it| it.local))
        .flat_map(|it| it.groups.iter().flatten())
        .flat_map(of_group)
        .collect();
    let mut others = listable(servers.iter().filter(|it| !it.local && it.reachable));
    others.retain(|resource, _| !local.contains(resource));
    others
}

async fn rerouted_read(server: &str, endpoint: &Endpoint, servers: &[ServerDiscovery]) -> Finding {
    let name = format!("{server}: a read that its server cannot answer is rerouted");
    let rerouted = rerouted(servers);
    let Some((resource, by)) = rerouted.first_key_value() else {
        return Finding::ok(SECTION, name).message("its server serves all APIs of the others");
    };
    let path = format!("{}?limit=1", path_of(resource));
    let answer = http::send(endpoint, http::get(&path), None).await;
    let answer = answer.map(|it| (it.response.status.as_u16(), it.json(&path).err()));
    judge_read(name, &path, &by.join(", "), answer)
}

fn judge_read(
    name: String,
    path: &str,
    by: &str,
    answer: Result<(u16, Option<String>), String>,
) -> Finding {
    let why = match answer {
        Ok((200..=299, None)) => {
            return Finding::ok(SECTION, name).message(format!("{path} by {by}"));
        }
        Ok((401 | 403, why)) => {
            return Finding::not_known(SECTION, name, why.unwrap_or_default());
        }
        Ok((_, why)) => why.unwrap_or_default(),
        Err(why) => why,
    };
    let remedy = Remedy::command(
        format!("skewbridge route GET '{path}'"),
        format!("the command, on the machine of the bridge, shows why {by} does not get it"),
    );
    Finding::failure(SECTION, name, why, remedy)
}

async fn dry_run(server: &str, endpoint: &Endpoint, namespace: &str) -> Finding {
    let name = format!("{server}: a write works (as a dry run)");
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?dryRun=All");
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"generateName": "skewbridge-check-"}});
    let answer = http::send(endpoint, http::post(&path, body.to_string()), None).await;
    let answer = answer.map(|it| {
        let created = it.response.status.as_u16();
        let body: Value = serde_json::from_slice(&it.response.body).unwrap_or_default();
        (created, body["message"].as_str().map(str::to_owned))
    });
    match answer {
        Ok((201, _)) => Finding::ok(SECTION, name),
        Ok((status, why)) if status < 500 => {
            let why = why.unwrap_or_else(|| status.to_string());
            Finding::not_known(SECTION, name, why)
        }
        Ok((status, why)) => {
            let why = format!("{status}: {}", why.unwrap_or_default());
            Finding::failure(SECTION, name, why, write_remedy(namespace))
        }
        Err(why) => Finding::failure(SECTION, name, why, write_remedy(namespace)),
    }
}

fn write_remedy(namespace: &str) -> Remedy {
    Remedy::command(
        format!("skewbridge route POST /api/v1/namespaces/{namespace}/configmaps"),
        "the command, on the machine of the bridge, shows which server gets it",
    )
}

/// Runs `true` in a pod.
async fn command(server: &str, endpoint: Endpoint, namespace: &str, pod: &str) -> Finding {
    let name = format!("{server}: a command runs in the pod {namespace}/{pod}");
    let failure = |why: String| {
        let remedy = Remedy::command(
            format!("skewbridge exec -v1 -n {namespace} {pod} -- true"),
            "name a pod that runs, and that has the program `true`; the command shows the stream \
             protocol",
        );
        Finding::failure(SECTION, name.clone(), why, remedy)
    };
    let request = ExecRequest {
        namespace: namespace.to_owned(),
        pod: pod.to_owned(),
        command: vec!["true".to_owned()],
        stdout: true,
        ..ExecRequest::default()
    };
    let executor = crate::session::executor(endpoint);
    let run = async {
        let mut process = executor
            .start(&request)
            .await
            .map_err(|error| error.to_string())?;
        Ok::<_, String>(process.wait().await)
    };
    match tokio::time::timeout(crate::check::handshake::PROBE_TIMEOUT * 2, run).await {
        Ok(Ok(ExitStatus::Success)) => Finding::ok(SECTION, name),
        // The stream works; the image has no such program, or it fails.
        Ok(Ok(ExitStatus::Code(code))) => {
            Finding::ok(SECTION, name).message(format!("exit code {}", code.number()))
        }
        Ok(Ok(ExitStatus::Failed(why))) => failure(why.message),
        Ok(Ok(ExitStatus::Disconnected(cut))) => failure(cut.cause),
        Ok(Err(why)) => failure(why),
        Err(_) => failure("it does not end within 10 s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_discovery::document::{Metadata, Resource, Version};

    use super::*;
    use crate::check::finding::Outcome;

    fn server(identity: &str, local: bool, resources: &[&str]) -> ServerDiscovery {
        let resource = |name: &str| Resource {
            resource: name.to_owned(),
            verbs: vec!["get".to_owned(), "list".to_owned()],
            ..Resource::default()
        };
        let version = Version {
            version: "v1".to_owned(),
            resources: resources.iter().map(|it| resource(it)).collect(),
            ..Version::default()
        };
        ServerDiscovery {
            identity: identity.to_owned(),
            local,
            reachable: true,
            groups: Some(vec![Group {
                metadata: Metadata {
                    name: "example.com".to_owned(),
                    ..Metadata::default()
                },
                versions: vec![version],
            }]),
            ..ServerDiscovery::default()
        }
    }

    #[test]
    fn what_only_others_serve_is_rerouted() {
        let servers = [server("a", true, &["x"]), server("b", false, &["x", "y"])];
        let found = rerouted(&servers);
        let y = ("example.com".to_owned(), "v1".to_owned(), "y".to_owned());
        assert_eq!(found, BTreeMap::from([(y.clone(), vec!["b"])]));
        assert_eq!(path_of(&y), "/apis/example.com/v1/y");
        let core = (String::new(), "v1".to_owned(), "pods".to_owned());
        assert_eq!(path_of(&core), "/api/v1/pods");
        assert!(rerouted(&servers[..1]).is_empty());
    }

    #[test]
    fn discovery_has_to_have_the_resources_of_all_servers() {
        let servers = [server("a", true, &["x"]), server("b", false, &["y"])];
        let all = listable(servers.iter());
        let both: BTreeSet<_> = all.keys().cloned().collect();
        let outcome = |served: &BTreeSet<_>| judge_discovery("a".to_owned(), &all, served).outcome;
        assert_eq!(outcome(&both), Outcome::Ok);
        let one = both.into_iter().take(1).collect();
        assert_eq!(outcome(&one), Outcome::Failure);
    }

    #[test]
    fn a_read_that_is_not_permitted_proves_nothing() {
        let rows = [
            (Ok((200, None)), Outcome::Ok),
            (Ok((403, Some("no".to_owned()))), Outcome::NotKnown),
            (Ok((404, Some("no".to_owned()))), Outcome::Failure),
            (Ok((503, Some("no".to_owned()))), Outcome::Failure),
            (Err("cut".to_owned()), Outcome::Failure),
        ];
        for (answer, expected) in rows {
            let found = judge_read("a".to_owned(), "/x", "b", answer.clone());
            assert_eq!(found.outcome, expected, "{answer:?}");
        }
    }
}
