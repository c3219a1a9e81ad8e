//! Finds the servers, and queries their discovery and OpenAPI concurrently.

use std::time::Duration;

use skewbridge_client::{Endpoint, Target};
use skewbridge_field_sets::ServerFields;

use super::fetch::{self, Source};
use super::report::{FieldReport, FieldServer};
use crate::skew::collect::{ResolvedTargets, from_bridge, list_of_bridge, query_all, resolve};
use crate::skew::fetch::{ServerClient, served};
use crate::skew::flags::Options;
use crate::skew::report::ServedState;

/// The report, or why there is none.
pub(in crate::skew) async fn collect(options: &Options) -> Result<FieldReport, String> {
    let servers = match resolve(options)? {
        ResolvedTargets::Bridge(target) => of_bridge(&target, options.timeout).await?,
        ResolvedTargets::Servers(servers) => of_servers(servers, options.timeout).await,
    };
    FieldReport::new(servers)
}

async fn client(target: &Target, timeout: Option<Duration>) -> Result<ServerClient, String> {
    let endpoint = Endpoint::prepare(target, timeout).await;
    Ok(ServerClient::new(
        endpoint.map_err(|error| error.to_string())?,
    ))
}

/// All servers of a cluster. Each request names its server: behind a load balancer, several bridges answer.
async fn of_bridge(target: &Target, timeout: Option<Duration>) -> Result<Vec<FieldServer>, String> {
    let list = list_of_bridge(target, timeout).await?;
    let mut servers = Vec::new();
    let mut queries = Vec::new();
    for reported in list.servers {
        let source = Source::Of(reported.identity.clone());
        let server = from_bridge(reported);
        let (target, name) = (target.clone(), server.name.clone());
        let query = async move {
            match server.served {
                ServedState::Now(groups) => {
                    let mut client = client(&target, timeout).await?;
                    fetch::fields(&mut client, &groups, &source).await
                }
                ServedState::Before(_, problem) | ServedState::Nothing(problem) => Err(problem),
            }
        };
        queries.push((name.clone(), query));
        servers.push((name, server.version));
    }
    let answers = query_all(queries).await;
    let servers = servers.into_iter().zip(answers);
    let servers = servers.map(|((name, version), fields)| FieldServer {
        name,
        version,
        address: None,
        fields,
    });
    Ok(servers.collect())
}

/// Queries each server directly, not through a bridge.
async fn of_servers(servers: Vec<(String, Target)>, timeout: Option<Duration>) -> Vec<FieldServer> {
    let named: Vec<_> = servers
        .iter()
        .map(|(name, target)| (name.clone(), target.server()))
        .collect();
    let queries = servers.into_iter().map(|(name, target)| {
        let query = async move {
            let mut client = client(&target, timeout).await?;
            let served = served(&mut client).await?;
            let fields = fetch::fields(&mut client, &served.groups, &Source::Own).await?;
            Ok::<(Option<String>, ServerFields), String>((served.version, fields))
        };
        (name, query)
    });
    let answers = query_all(queries.collect()).await;
    let servers = named.into_iter().zip(answers);
    let servers = servers.map(|((name, address), answer)| {
        let (version, fields) = match answer {
            Ok((version, fields)) => (version, Ok(fields)),
            Err(problem) => (None, Err(problem)),
        };
        FieldServer {
            name,
            version,
            address: Some(address),
            fields,
        }
    });
    servers.collect()
}
