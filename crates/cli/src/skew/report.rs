//! The servers, and their differences.

use std::collections::BTreeSet;

use skewbridge_discovery::ServerDiscoveryList;
use skewbridge_discovery::diff::{Difference, Missing, Skew, diff};
use skewbridge_discovery::document::{Document, Group, Schema};

/// The servers and their skew.
#[derive(Debug)]
pub(crate) struct Report {
    /// In the order of the command line.
    pub(crate) servers: Vec<Server>,
    /// Between the servers whose APIs are known, by their index among these.
    pub(crate) skew: Skew,
    /// The same between the APIs that their clients reach: through a bridge, these are the APIs
    /// of all servers of its cluster.
    pub(crate) reach: Skew,
    /// The indexes of these servers.
    served: Vec<usize>,
}

/// A server.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    pub(crate) address: Option<String>,
    /// When the bridge last fetched its discovery.
    pub(crate) last_sync: Option<String>,
    pub(crate) served: ServedState,
    /// The bridge in front of it, if one answered for this server alone.
    pub(crate) bridge: Option<Bridge>,
}

/// How a bridge in front of a server routes requests.
#[derive(Debug)]
pub(crate) enum Bridge {
    /// Forwards a request to a server that serves it.
    Peering {
        /// All servers of its cluster, its own included.
        servers: usize,
        /// The number of servers that it cannot reach.
        unreachable: usize,
        /// Their APIs.
        groups: Vec<Group>,
    },
    /// Sends every request to its local server, for this reason.
    LocalOnly(String),
}

impl From<ServerDiscoveryList> for Bridge {
    fn from(list: ServerDiscoveryList) -> Self {
        match list.local_only {
            Some(reason) => Self::LocalOnly(reason),
            None => Self::Peering {
                servers: list.servers.len(),
                unreachable: list.servers.iter().filter(|it| !it.reachable).count(),
                groups: (list.servers.into_iter())
                    .filter_map(|server| server.groups)
                    .flatten()
                    .collect(),
            },
        }
    }
}

/// The known APIs of a server.
#[derive(Debug)]
pub(crate) enum ServedState {
    /// Its current APIs.
    Now(Vec<Group>),
    /// Its APIs at the last successful fetch, and the error since.
    Before(Vec<Group>, String),
    /// Why nothing is known.
    Nothing(String),
}

/// The number of APIs that a client misses.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) resources: usize,
    /// Of resources that the server has.
    pub(crate) subresources: usize,
    /// Of resources and subresources that the server has.
    pub(crate) verbs: usize,
}

impl Report {
    /// Compares the servers.
    pub(crate) fn new(servers: Vec<Server>) -> Self {
        let served: Vec<_> = (0..servers.len())
            .filter(|index| servers[*index].groups().is_some())
            .collect();
        let document = |items: Vec<Group>| Document {
            schema: Schema::V2,
            items,
        };
        let compare = |documents: Vec<Document>| {
            let documents: Vec<_> = documents.iter().map(|it| [it]).collect();
            let documents: Vec<&[&Document]> = documents.iter().map(|it| &it[..]).collect();
            diff(&documents)
        };
        let own = servers.iter().filter_map(Server::groups);
        let reached = servers.iter().filter_map(Server::reached_groups);
        Self {
            skew: compare(own.map(|groups| document(groups.to_vec())).collect()),
            reach: compare(reached.map(document).collect()),
            servers,
            served,
        }
    }

    /// Whether the current APIs of all servers are known.
    pub(crate) fn is_complete(&self) -> bool {
        self.problems().next().is_none()
    }

    /// The reasons, by server.
    pub(crate) fn problems(&self) -> impl Iterator<Item = (&str, &str)> {
        let servers = self.servers.iter();
        servers.filter_map(|server| Some((&*server.name, server.problem()?)))
    }

    /// The index of a server in the skew, if its APIs are known.
    pub(crate) fn index(&self, server: usize) -> Option<usize> {
        self.served.iter().position(|served| *served == server)
    }

    /// A server by its index in the skew.
    pub(crate) fn server(&self, index: usize) -> Option<&Server> {
        self.servers.get(*self.served.get(index)?)
    }

    /// The index among all servers.
    pub(crate) fn number(&self, index: usize) -> usize {
        self.served.get(index).copied().unwrap_or_default()
    }

    /// The APIs that a client of this server misses.
    pub(crate) fn loss(&self, index: usize) -> Loss {
        let mut verbs = 0;
        // A resource can be in several differences, by the verbs that other servers have.
        let (mut resources, mut subresources) = (BTreeSet::new(), BTreeSet::new());
        for it in self.reach.missing_from(index) {
            let resource = (&it.group, &it.version, &it.resource);
            match it.missing_on(index) {
                Some(Missing::Version | Missing::Resource) => {
                    resources.insert(resource);
                }
                Some(Missing::Subresource) => {
                    subresources.insert((resource, &it.subresource));
                }
                Some(Missing::Verbs) => verbs += it.verbs.len(),
                None => {}
            }
        }
        Loss {
            resources: resources.len(),
            subresources: subresources.len(),
            verbs,
        }
    }
}

impl Server {
    /// Its APIs, as far as known.
    pub(crate) fn groups(&self) -> Option<&[Group]> {
        match &self.served {
            ServedState::Now(groups) | ServedState::Before(groups, _) => Some(groups),
            ServedState::Nothing(_) => None,
        }
    }

    /// The APIs that its clients reach, as far as known: with a bridge, those of all servers of
    /// its cluster.
    fn reached_groups(&self) -> Option<Vec<Group>> {
        let mut groups = self.groups()?.to_vec();
        if let Some(Bridge::Peering { groups: others, .. }) = &self.bridge {
            groups.extend_from_slice(others);
        }
        Some(groups)
    }

    /// Why its APIs are not known, or not current.
    pub(crate) fn problem(&self) -> Option<&str> {
        match &self.served {
            ServedState::Now(_) => None,
            ServedState::Before(_, problem) | ServedState::Nothing(problem) => Some(problem),
        }
    }
}

/// `apps/v1`, or `v1`.
pub(crate) fn group_version(group: &str, version: &str) -> String {
    match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    }
}

/// `pods`, or `pods/log`.
pub(crate) fn resource(it: &Difference) -> String {
    match it.subresource.as_str() {
        "" => it.resource.clone(),
        subresource => format!("{}/{subresource}", it.resource),
    }
}

/// Text without control characters: names come from servers.
pub(crate) fn plain(text: &str) -> String {
    let harmless = |letter: char| match letter {
        '\n' | '\t' => letter,
        letter if letter.is_control() => '\u{fffd}',
        letter => letter,
    };
    text.chars().map(harmless).collect()
}
