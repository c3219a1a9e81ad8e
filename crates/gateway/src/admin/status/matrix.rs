//! What only some of the servers serve, what each serves alone, and what is lost if it stops. Computed
//! again only when a server serves something else, stops or returns.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skewbridge_discovery::Index;

use crate::status::{Matrix, MatrixRow};

/// The rows that are shown.
const MAX_ROWS: usize = 200;

/// How long a result is used although no server serves something else: which APIs all servers share
/// depends on time.
const MAX_AGE: Duration = Duration::from_secs(5);

/// A server, by its name.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: String,
    /// What it serves, or served when it was last reached.
    pub(super) index: Option<Arc<Index>>,
    /// Whether it takes requests now.
    pub(super) answers: bool,
}

/// The differences of the servers.
#[derive(Debug, Clone, Default)]
pub(super) struct Differences {
    pub(super) matrix: Matrix,
    /// For each column, what no other server serves, whether the others answer or not.
    pub(super) alone: Vec<Vec<String>>,
    /// For each column, what no other server that answers serves.
    pub(super) lost_with: Vec<Vec<String>>,
}

/// The last differences.
#[derive(Debug, Default)]
pub(super) struct DifferencesCache {
    last: Option<(Instant, Vec<Column>, Arc<Differences>)>,
}

impl DifferencesCache {
    /// The differences of these servers. `is_shared`: all servers share this group and version.
    pub(super) fn of(
        &mut self,
        columns: Vec<Column>,
        now: Instant,
        is_shared: impl Fn(&str, &str) -> bool,
    ) -> Arc<Differences> {
        if let Some((at, known, differences)) = &self.last
            && now < *at + MAX_AGE
            && is_same(known, &columns)
        {
            return differences.clone();
        }
        let differences = Arc::new(differences(&columns, is_shared));
        self.last = Some((now, columns, differences.clone()));
        differences
    }
}

fn is_same(known: &[Column], columns: &[Column]) -> bool {
    let is_same_column = |(known, column): (&Column, &Column)| {
        let is_same_index = match (&known.index, &column.index) {
            (Some(known), Some(index)) => Arc::ptr_eq(known, index),
            (known, index) => known.is_none() && index.is_none(),
        };
        is_same_index && known.name == column.name && known.answers == column.answers
    };
    known.len() == columns.len() && known.iter().zip(columns).all(is_same_column)
}

fn differences(columns: &[Column], is_shared: impl Fn(&str, &str) -> bool) -> Differences {
    let indexes: Vec<_> = columns.iter().map(|it| it.index.as_deref()).collect();
    let without_others = |counts: fn(&Column) -> bool| {
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
    Differences {
        alone: without_others(|_| true),
        lost_with: without_others(|other| other.answers),
        matrix: matrix(columns, &indexes, is_shared),
    }
}

fn matrix(
    columns: &[Column],
    indexes: &[Option<&Index>],
    is_shared: impl Fn(&str, &str) -> bool,
) -> Matrix {
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
    let rows = rows.map(|((group, version, served_by), resources)| MatrixRow {
        group_version: match group {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        },
        resources,
        served_by,
    });
    Matrix {
        servers: columns.iter().map(|it| it.name.clone()).collect(),
        rows: rows.collect(),
        omitted,
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_discovery::Document;

    use super::*;

    fn column(name: &str, resources: Option<&[(&str, &str)]>) -> Column {
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
        Column {
            name: name.to_owned(),
            index,
            answers: true,
        }
    }

    fn row(group_version: &str, resources: &[&str], served_by: &[Option<bool>]) -> MatrixRow {
        MatrixRow {
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
            found.alone,
            [
                vec![],
                vec!["apps/v1 b".to_owned(), "apps/v1 c".into()],
                vec![]
            ]
        );
        let found = differences(&columns, |_, _| false);
        assert_eq!(found.matrix.rows.len(), 2);
        assert_eq!(found.alone[0], ["crd.io/v1 x"]);
    }

    #[test]
    fn what_is_lost_with_a_server_is_what_no_other_one_that_answers_serves() {
        let x: &[(&str, &str)] = &[("", "pods"), ("apps", "x")];
        let mut columns = [
            column("cp-1", Some(x)),
            column("cp-2", Some(x)),
            column("cp-3", Some(&[("", "pods")])),
            column("cp-4", None),
        ];
        let none: Vec<String> = Vec::new();
        let found = differences(&columns, |_, _| false);
        assert_eq!(found.lost_with, vec![none.clone(); 4]);
        columns[1].answers = false;
        let found = differences(&columns, |_, _| false);
        assert_eq!(found.lost_with[0], ["apps/v1 x"]);
        assert_eq!(found.lost_with[2..], [none.clone(), none.clone()]);
        // What a server alone serves does not depend on which of them answer.
        assert_eq!(found.alone, vec![none.clone(); 4]);
        // All servers share it: those that remain serve it too.
        let found = differences(&columns, |group, _| group == "apps");
        assert_eq!(found.lost_with[0], none);
    }

    #[test]
    fn they_are_computed_again_when_a_server_serves_something_else_or_stops() {
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
            &cache.of(columns.clone(), now + MAX_AGE, |_, _| false)
        ));
        let mut stopped = columns.clone();
        stopped[0].answers = false;
        assert!(!Arc::ptr_eq(&first, &cache.of(stopped, now, |_, _| false)));
        let changed = vec![columns[0].clone(), column("b", Some(&[("", "x")]))];
        assert!(cache.of(changed, now, |_, _| false).matrix.rows.is_empty());
        assert_eq!(
            cache.of(columns[..1].to_vec(), now, |_, _| false).alone[0],
            ["v1 x"]
        );
    }
}
