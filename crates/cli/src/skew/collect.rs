//! Finds the servers, and queries them concurrently.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use skewbridge_client::{Endpoint, Kubeconfig, Target};
use skewbridge_discovery::{ServerDiscovery, ServerDiscoveryList};
use tokio::task::JoinSet;

use super::fetch::{self, FetchResult};
use super::flags::{Options, ServerLocation, Targets};
use super::report::{Bridge, Report, ServedState, Server, plain};

/// After this time a progress message is printed on a terminal.
const PROGRESS_DELAY: Duration = Duration::from_secs(1);

/// The servers of the command line.
pub(super) enum ResolvedTargets {
    /// A bridge, for all servers of its cluster.
    Bridge(Box<Target>),
    /// Each for itself, with its name in the report.
    Servers(Vec<(String, Target)>),
}

/// Reads the kubeconfig.
pub(super) fn resolve(options: &Options) -> Result<ResolvedTargets, String> {
    let config =
        Kubeconfig::load(options.kubeconfig.as_deref()).map_err(|error| error.to_string())?;
    let target = |context: Option<&String>| {
        let target = config.target(context.map(String::as_str));
        target.map_err(|error| error.to_string())
    };
    let servers = match &options.targets {
        Targets::Bridge { context, at } => {
            let target = moved(target(context.as_ref())?, at.as_ref());
            return Ok(ResolvedTargets::Bridge(Box::new(target)));
        }
        Targets::Contexts(contexts) => {
            let mut servers = Vec::new();
            for context in contexts {
                servers.push((context.clone(), target(Some(context))?));
            }
            servers
        }
        Targets::Servers { context, at } => {
            let target = target(context.as_ref())?;
            let named = |at: &ServerLocation| {
                let target = moved(target.clone(), Some(at));
                let url = target.server();
                let name = url.split_once("://").map_or(&*url, |it| it.1);
                (name.trim_end_matches('/').to_owned(), target)
            };
            at.iter().map(named).collect()
        }
    };
    Ok(ResolvedTargets::Servers(servers))
}

/// The report, or why there is none.
pub(crate) async fn collect(options: &Options) -> Result<Report, String> {
    match resolve(options)? {
        ResolvedTargets::Bridge(target) => {
            let list = list_of_bridge(&target, options.timeout).await?;
            let servers = list.servers.into_iter().map(from_bridge);
            Ok(Report::new(servers.collect()))
        }
        ResolvedTargets::Servers(servers) => Ok(of_servers(servers, options.timeout).await),
    }
}

fn moved(target: Target, at: Option<&ServerLocation>) -> Target {
    match at {
        Some(at) => target.with_server(&at.server, at.tls_server_name.as_deref()),
        None => target,
    }
}

/// The servers of a cluster, from its bridge.
pub(super) async fn list_of_bridge(
    target: &Target,
    timeout: Option<Duration>,
) -> Result<ServerDiscoveryList, String> {
    let client = async {
        let endpoint = Endpoint::prepare(target, timeout).await;
        let endpoint = endpoint.map_err(|error| error.to_string())?;
        let server = endpoint.server();
        Ok::<_, String>((server, fetch::bridge(endpoint).await?))
    };
    let waiting = || vec![target.context.clone()];
    let requested = with_progress(client, waiting).await;
    let failed = |cause: &str| Err(format!("{}: {cause}", target.context));
    match requested {
        Err(cause) => failed(&cause),
        Ok((server, FetchResult::NoBridge)) => failed(&format!(
            "the server {server} has no bridge (skewbridge serve), so there is no other server to \
             compare with; use several --context, or several --server"
        )),
        Ok((
            server,
            FetchResult::Bridge(ServerDiscoveryList {
                local_only: Some(reason),
                ..
            }),
        )) => failed(&format!(
            "the bridge {server} runs local-only ({reason}), so there is no other server to \
             compare with; use several --context, or several --server"
        )),
        Ok((_, FetchResult::Bridge(list))) if list.servers.is_empty() => {
            failed("the bridge does not know any server yet; try again")
        }
        Ok((_, FetchResult::Bridge(list))) => Ok(list),
    }
}

pub(super) fn from_bridge(reported: ServerDiscovery) -> Server {
    let problem = match (reported.problem, reported.reachable, &reported.groups) {
        (Some(problem), _, _) => Some(problem),
        (None, true, Some(_)) => None,
        (None, false, _) => Some("the bridge cannot reach it".to_owned()),
        (None, true, None) => Some("the bridge has not fetched its discovery yet".to_owned()),
    };
    Server {
        name: match reported.host {
            Some(host) => format!("{host} ({})", reported.identity),
            None => reported.identity,
        },
        version: reported.version,
        address: reported.address,
        last_sync: reported.last_sync,
        served: match (reported.groups, problem) {
            (Some(groups), None) => ServedState::Now(groups),
            (Some(groups), Some(problem)) => ServedState::Before(groups, problem),
            (None, problem) => ServedState::Nothing(problem.unwrap_or_default()),
        },
        bridge: None,
    }
}

/// The discovery of each server.
async fn of_servers(servers: Vec<(String, Target)>, timeout: Option<Duration>) -> Report {
    let addresses: Vec<_> = servers.iter().map(|(_, target)| target.server()).collect();
    let names: Vec<_> = servers.iter().map(|(name, _)| name.clone()).collect();
    let queries = servers.into_iter().map(|(name, target)| {
        let query = async move {
            let endpoint = Endpoint::prepare(&target, timeout).await;
            fetch::server(endpoint.map_err(|error| error.to_string())?).await
        };
        (name, query)
    });
    let answers = query_all(queries.collect()).await;
    let servers = names.into_iter().zip(addresses).zip(answers);
    let servers = servers.map(|((name, address), answer)| {
        let (version, served, bridge) = match answer {
            Ok(reported) => (
                reported.version,
                ServedState::Now(reported.groups),
                reported.bridge,
            ),
            Err(problem) => (None, ServedState::Nothing(problem), None),
        };
        Server {
            name,
            version,
            address: Some(address),
            last_sync: None,
            served,
            bridge: bridge.map(Bridge::from),
        }
    });
    Report::new(servers.collect())
}

/// Queries servers concurrently, and prints a progress message after a while.
pub(super) async fn query_all<T: Send + 'static>(
    queries: Vec<(
        String,
        impl Future<Output = Result<T, String>> + Send + 'static,
    )>,
) -> Vec<Result<T, String>> {
    let mut waiting = Vec::new();
    let mut answers = Vec::new();
    let mut client = JoinSet::new();
    for (index, (name, query)) in queries.into_iter().enumerate() {
        waiting.push(Some(name));
        answers.push(Err("it could not be queried".to_owned()));
        client.spawn(async move { (index, query.await) });
    }
    let mut reported = false;
    loop {
        let next = tokio::select! {
            next = client.join_next() => next,
            () = tokio::time::sleep(PROGRESS_DELAY), if !reported => {
                reported = true;
                print_pending(&waiting.iter().flatten().cloned().collect::<Vec<_>>());
                continue;
            }
        };
        match next {
            None => return answers,
            Some(Ok((index, answer))) => {
                waiting[index] = None;
                answers[index] = answer;
            }
            // The task is never aborted, so it panicked; its server stays unknown.
            Some(Err(_)) => {}
        }
    }
}

/// Waits, and prints a progress message after a while.
async fn with_progress<T>(client: impl Future<Output = T>, targets: impl Fn() -> Vec<String>) -> T {
    let mut client = std::pin::pin!(client);
    tokio::select! {
        requested = &mut client => return requested,
        () = tokio::time::sleep(PROGRESS_DELAY) => print_pending(&targets()),
    }
    client.await
}

fn print_pending(targets: &[String]) {
    let mut stderr = std::io::stderr();
    if stderr.is_terminal() {
        let _ = writeln!(stderr, "waiting for {} ...", plain(&targets.join(", ")));
    }
}
