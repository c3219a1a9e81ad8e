//! The metric `apiserver_requested_deprecated_apis` of kube-apiserver.

use skewbridge_released_apis::ApiName;
use skewbridge_upgrade_check::facts::DeprecatedCalls;

const METRIC: &str = "apiserver_requested_deprecated_apis{";

/// The calls in the text of `/metrics`. Lines of another form are skipped.
pub(super) fn parse(metrics: &str) -> Vec<DeprecatedCalls> {
    let lines = metrics.lines();
    lines
        .filter_map(|line| {
            let (labels, value) = line.strip_prefix(METRIC)?.rsplit_once("} ")?;
            let is_set = value.trim().parse::<f64>().is_ok_and(|it| it > 0.0);
            is_set.then(|| call(labels)).flatten()
        })
        .collect()
}

fn call(labels: &str) -> Option<DeprecatedCalls> {
    let label = |name: &str| {
        let mut pairs = labels.split("\",");
        pairs.find_map(|pair| {
            let (key, value) = pair.split_once("=\"")?;
            (key == name).then(|| value.trim_end_matches('"').to_owned())
        })
    };
    Some(DeprecatedCalls {
        api: ApiName {
            group: label("group")?,
            version: label("version")?,
            resource: label("resource")?,
        },
        subresource: label("subresource").unwrap_or_default(),
        removed_release: label("removed_release").and_then(|it| it.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_from_metrics() {
        let metrics = "\
# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested
# TYPE apiserver_requested_deprecated_apis gauge
apiserver_requested_deprecated_apis{group=\"flowcontrol.apiserver.k8s.io\",removed_release=\"1.32\",resource=\"flowschemas\",subresource=\"status\",version=\"v1beta3\"} 1
apiserver_requested_deprecated_apis{group=\"\",removed_release=\"\",resource=\"endpoints\",subresource=\"\",version=\"v1\"} 1
apiserver_requested_deprecated_apis{group=\"a\",removed_release=\"1.40\",resource=\"b\",subresource=\"\",version=\"v1\"} 0
apiserver_requested_deprecated_apis{broken} 1
apiserver_requested_other{group=\"\"} 1
";
        let calls = parse(metrics);
        let described: Vec<_> = calls
            .iter()
            .map(|it| {
                let removed = it.removed_release.map(|release| release.to_string());
                (it.api.qualified(), it.subresource.clone(), removed)
            })
            .collect();
        assert_eq!(
            described,
            [
                (
                    "flowschemas.v1beta3.flowcontrol.apiserver.k8s.io".to_owned(),
                    "status".to_owned(),
                    Some("1.32".to_owned())
                ),
                ("endpoints".to_owned(), String::new(), None),
            ]
        );
    }
}
