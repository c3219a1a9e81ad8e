//! The servers, and how the fields that they know differ.

use skewbridge_field_sets::{ComparedServer, FieldDifference, FieldPath, FieldSkew, ServerFields};

/// The servers and how their fields differ.
#[derive(Debug)]
pub(in crate::skew) struct FieldReport {
    /// In the order of the command line.
    pub(super) servers: Vec<FieldServer>,
    /// Between the servers whose fields are known, by their index among these.
    pub(in crate::skew) skew: FieldSkew,
    /// The indexes of these servers.
    known: Vec<usize>,
}

/// A server.
#[derive(Debug)]
pub(super) struct FieldServer {
    pub(super) name: String,
    pub(super) version: Option<String>,
    pub(super) address: Option<String>,
    /// Its fields, or why they are not known.
    pub(super) fields: Result<ServerFields, String>,
}

impl FieldReport {
    /// Compares the servers.
    pub(super) fn new(servers: Vec<FieldServer>) -> Result<Self, String> {
        let known: Vec<usize> = (0..servers.len())
            .filter(|index| servers[*index].fields.is_ok())
            .collect();
        let compared: Vec<_> = servers
            .iter()
            .filter_map(|server| {
                Some(ComparedServer {
                    version: server.version.as_deref().and_then(|it| it.parse().ok()),
                    fields: server.fields.as_ref().ok()?,
                })
            })
            .collect();
        // Only built-in kinds have fields here.
        let skew = FieldSkew::compare(&compared, |_group, _resource| false);
        Ok(Self {
            skew: skew.map_err(|error| error.to_string())?,
            servers,
            known,
        })
    }

    /// Why the fields of servers are not known, by server.
    pub(in crate::skew) fn problems(&self) -> impl Iterator<Item = (&str, &str)> {
        let servers = self.servers.iter();
        servers.filter_map(|server| Some((&*server.name, &**server.fields.as_ref().err()?)))
    }

    /// The number of servers whose fields are known.
    pub(super) fn known_count(&self) -> usize {
        self.known.len()
    }

    /// The index of a server of the skew among all servers.
    pub(super) fn place(&self, index: usize) -> usize {
        self.known.get(index).copied().unwrap_or_default()
    }
}

/// The servers that know a field of a kind.
pub(super) fn known_by(difference: &FieldDifference, path: &FieldPath) -> Vec<usize> {
    let lacks = |server: usize| {
        let mut lacking = difference.lacking(server).iter();
        lacking.any(|it| path.steps().starts_with(it.steps()))
    };
    difference.servers().filter(|it| !lacks(*it)).collect()
}

/// The name of a resource as kubectl takes it: `pods`, `csidrivers.storage.k8s.io`.
pub(super) fn resource_name(group: &str, resource: &str) -> String {
    match group {
        "" => resource.to_owned(),
        group => format!("{resource}.{group}"),
    }
}
