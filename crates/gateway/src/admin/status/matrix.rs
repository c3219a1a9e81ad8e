//! What only some of the servers serve, what each serves alone, and what is lost if it stops. Computed
//! again only when a server serves something else, stops or returns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_discovery::Index;

use crate::status::{ApiMatrix, ApiMatrixRow};

/// The rows that are shown.
const MAX_ROWS: usize = 200;

/// How long a result is used although no server serves something else: which APIs all servers share
/// depends on time.
const DIFFERENCES_TTL: Duration = Duration::from_secs(5);

/// A server, by its name.
#[derive(Debug, Clone)]
pub(super) struct ServerColumn {
    pub(super) name: String,
    /// What it serves, or served when it was last reached.
    pub(super) index: Option<Arc<Index>>,
    /// Whether it takes requests now.
    pub(super) takes_requests: bool,
}

/// The differences of the servers.
#[derive(Debug, Clone, Default)]
pub(super) struct ApiDifferences {
    pub(super) matrix: ApiMatrix,
    /// For each column, what no other server serves, whether the others answer or not.
    pub(super) served_alone: Vec<Vec<String>>,
    /// For each column, what no other server that answers serves.
    pub(super) lost_if_stopped: Vec<Vec<String>>,
}

/// The last differences.
#[derive(Debug, Default)]
pub(super) struct DifferencesCache {
    last: Option<(Instant, Vec<ServerColumn>, Arc<ApiDifferences>)>,
}

impl DifferencesCache {
    /// The differences of these servers. `is_shared`: all servers share this group and version.
    pub(super) fn of(
        &mut self,
        columns: Vec<ServerColumn>,
        now: Instant,
        is_shared: impl Fn(&str, &str) -> bool,
    ) -> Arc<ApiDifferences> {
        if let Some((at, known, differences)) = &self.last
            && now < *at + DIFFERENCES_TTL
            && is_same(known, &columns)
        {
            return differences.clone();
        }
        let differences = Arc::new(differences(&columns, is_shared));
        self.last = Some((now, columns, differences.clone()));
        differences
    }
}

fn is_same(known: &[ServerColumn], columns: &[ServerColumn]) -> bool {
    let is_same_column = |(known, column): (&ServerColumn, &ServerColumn)| {
        let is_same_index = match (&known.index, &column.index) {
            (Some(known), Some(index)) => Arc::ptr_eq(known, index),
            (known, index) => known.is_none() && index.is_none(),
        };
        is_same_index && known.name == column.name && known.takes_requests == column.takes_requests
    };
    known.len() == columns.len() && known.iter().zip(columns).all(is_same_column)
}

fn differences(columns: &[ServerColumn], is_shared: impl Fn(&str, &str) -> bool) -> ApiDifferences {
    let indexes: Vec<_> = columns.iter().map(|it| it.index.as_deref()).collect();
    let without_others = |counts: fn(&ServerColumn) -> bool| {
        let differences = columns.iter().enumerate().map(|(own, column)| {
            let others = columns.iter().enumerate().filter(|(it, _)| *it != own);
            let others = others.filter(|(_, other)| counts(other));
            let others: Vec<_> = others
                .filter_map(|(_, other)| other.index.as_deref())
                .collect();
            let index = column.index.as_deref();
            index.map_or_else(Vec::new, |it| it.difference_without(&others, &is_shared))
        });
        differences.collect()
    };
    ApiDifferences {
        served_alone: without_others(|_| true),
        lost_if_stopped: without_others(|other| other.takes_requests),
        matrix: matrix(columns, &indexes, is_shared),
    }
}

fn matrix(
    columns: &[ServerColumn],
    indexes: &[Option<&Index>],
    is_shared: impl Fn(&str, &str) -> bool,
) -> ApiMatrix {
    // By group, version, resource and subresource: the servers.
    let mut served: BTreeMap<_, Vec<Option<bool>>> = BTreeMap::new();
    for (column, index) in indexes.iter().enumerate() {
        for entry in index.iter().flat_map(|it| it.entries()) {
            let key = (
                entry.group,
                entry.version,
                entry.resource,
                entry.subresource,
            );
            let by = served
                .entry(key)
                .or_insert_with(|| indexes.iter().map(|it| it.map(|_| false)).collect());
            by[column] = Some(true);
        }
    }
    // Resources of a group and version that the same servers serve.
    let mut rows: BTreeMap<_, Vec<String>> = BTreeMap::new();
    for ((group, version, resource, subresource), by) in served {
        if is_shared(group, version) || by.iter().all(|it| *it != Some(false)) {
            continue;
        }
        let name = match subresource {
            "" => resource.to_owned(),
            name => format!("{resource}/{name}"),
        };
        rows.entry((group, version, by)).or_default().push(name);
    }
    let omitted = rows.len().saturating_sub(MAX_ROWS);
    let rows = rows.into_iter().take(MAX_ROWS);
    let rows = rows.map(|((group, version, served_by), resources)| ApiMatrixRow {
        group_version: match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        },
        resources,
        served_by,
    });
    ApiMatrix {
        servers: columns.iter().map(|it| it.name.clone()).collect(),
        rows: rows.collect(),
        omitted,
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_discovery::Document;

    use super::*;

    fn column(name: &str, resources: Option<&[(&str, &str)]>) -> ServerColumn {
        let index = resources.map(|resources| {
            let groups: Vec<_> = (resources.iter())
                .map(|(group, resource)| {
                    serde_json::json!({"metadata": {"name": group}, "versions": [{"version": "v1",
                        "resources": [{"resource": resource, "verbs": ["get"], "scope": "Cluster"}]}]})
                })
                .collect();
            let text = serde_json::json!({"kind": "APIGroupDiscoveryList",
                "apiVersion": "apidiscovery.k8s.io/v2", "items": groups});
            let document = Document::parse(text.to_string().as_bytes()).unwrap();
            Arc::new(Index::new(&[&document]))
        });
        ServerColumn {
            name: name.to_owned(),
            index,
            takes_requests: true,
        }
    }

    fn row(group_version: &str, resources: &[&str], served_by: &[Option<bool>]) -> ApiMatrixRow {
        ApiMatrixRow {
            group_version: group_version.to_owned(),
            resources: resources.iter().map(|it| (*it).to_owned()).collect(),
            served_by: served_by.to_vec(),
        }
    }

    #[test]
    fn only_differences_are_shown_and_shared_apis_are_left_out() {
        let columns = [
            column(
                "cp-1",
                Some(&[("", "pods"), ("apps", "a"), ("crd.io", "x")]),
            ),
            column(
                "cp-2",
                Some(&[("", "pods"), ("apps", "a"), ("apps", "b"), ("apps", "c")]),
            ),
            column("cp-3", None),
        ];
        let found = differences(&columns, |group, _| group == "crd.io");
        let (yes, no) = (Some(true), Some(false));
        assert_eq!(
            found.matrix.rows,
            [row("apps/v1", &["b", "c"], &[no, yes, None])]
        );
        assert_eq!(found.matrix.servers, ["cp-1", "cp-2", "cp-3"]);
        assert_eq!(
            found.served_alone,
            [
                vec![],
                vec!["apps/v1 b".to_owned(), "apps/v1 c".into()],
                vec![]
            ]
        );
        let found = differences(&columns, |_, _| false);
        assert_eq!(found.matrix.rows.len(), 2);
        assert_eq!(found.served_alone[0], ["crd.io/v1 x"]);
    }

    #[test]
    fn an_api_is_lost_if_no_other_server_that_takes_requests_serves_it() {
        let x: &[(&str, &str)] = &[("", "pods"), ("apps", "x")];
        let mut columns = [
            column("cp-1", Some(x)),
            column("cp-2", Some(x)),
            column("cp-3", Some(&[("", "pods")])),
            column("cp-4", None),
        ];
        let none: Vec<String> = Vec::new();
        let found = differences(&columns, |_, _| false);
        assert_eq!(found.lost_if_stopped, vec![none.clone(); 4]);
        columns[1].takes_requests = false;
        let found = differences(&columns, |_, _| false);
        assert_eq!(found.lost_if_stopped[0], ["apps/v1 x"]);
        assert_eq!(found.lost_if_stopped[2..], [none.clone(), none.clone()]);
        // What a server alone serves does not depend on which of them answer.
        assert_eq!(found.served_alone, vec![none.clone(); 4]);
        // All servers share it: those that remain serve it too.
        let found = differences(&columns, |group, _| group == "apps");
        assert_eq!(found.lost_if_stopped[0], none);
    }

    #[test]
    fn differences_are_computed_again_when_the_apis_or_the_state_of_a_server_change() {
        let now = Instant::now();
        let mut cache = DifferencesCache::default();
        let columns = vec![column("a", Some(&[("", "x")])), column("b", Some(&[]))];
        let first = cache.of(columns.clone(), now, |_, _| false);
        assert!(Arc::ptr_eq(
            &first,
            &cache.of(columns.clone(), now, |_, _| false)
        ));
        assert!(!Arc::ptr_eq(
            &first,
            &cache.of(columns.clone(), now + DIFFERENCES_TTL, |_, _| false)
        ));
        let mut stopped = columns.clone();
        stopped[0].takes_requests = false;
        assert!(!Arc::ptr_eq(&first, &cache.of(stopped, now, |_, _| false)));
        let changed = vec![columns[0].clone(), column("b", Some(&[("", "x")]))];
        assert!(cache.of(changed, now, |_, _| false).matrix.rows.is_empty());
        assert_eq!(
            cache
                .of(columns[..1].to_vec(), now, |_, _| false)
                .served_alone[0],
            ["v1 x"]
        );
    }
}
