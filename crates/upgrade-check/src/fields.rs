//! Fields in use that the target of a rollback erases.

use skewbridge_discovery::document::Group;
use skewbridge_field_sets::{ComparedServer, FieldPath, FieldSkew};
use skewbridge_released_apis::{ApiName, Minor, Release};

use crate::facts::Facts;
use crate::finding::{Finding, Severity, Topic, counted};

/// The fields of a resource that the target does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostFields {
    /// The resource, in a version that is served now.
    pub api: ApiName,
    /// The fields.
    pub fields: Vec<FieldPath>,
}

/// The resources with fields that the target does not know, of those that are served.
pub fn lost_fields(
    groups: &[Group],
    current: &Release,
    target: &Release,
) -> Result<Vec<LostFields>, skewbridge_field_sets::Error> {
    // Server 1 is the target.
    let compared = [current, target].map(|release| ComparedServer {
        version: Some(release.version),
        fields: release.fields(),
    });
    let skew = FieldSkew::compare(&compared, |_, _| false)?;
    let mut lost = Vec::new();
    for (group, resource, difference) in skew.differences() {
        let fields = difference.lacking(1);
        if fields.is_empty() {
            continue;
        }
        let served = groups.iter().filter(|it| it.name() == group);
        // The preferred version is the first one.
        let version = served.flat_map(|it| &it.versions).find(|version| {
            let mut resources = version.resources.iter();
            resources
                .any(|it| it.resource == resource && it.verbs.iter().any(|verb| verb == "list"))
        });
        if let Some(version) = version {
            lost.push(LostFields {
                api: ApiName {
                    group: group.to_owned(),
                    version: version.version.clone(),
                    resource: resource.to_owned(),
                },
                fields: fields.to_vec(),
            });
        }
    }
    Ok(lost)
}

pub(crate) fn findings(facts: &Facts, target: Minor) -> Vec<Finding> {
    let used = match &facts.fields_in_use {
        Ok(used) => used,
        Err(why) => {
            return vec![Finding::new(
                Topic::Fields,
                Severity::NotKnown,
                "fields in use",
                format!("objects could not be read: {why}"),
            )];
        }
    };
    let mut findings = Vec::new();
    for kind in used {
        let resource = match kind.group.as_str() {
            "" => kind.resource.clone(),
            group => format!("{}.{group}", kind.resource),
        };
        let examples = match kind.examples.join(", ") {
            none if none.is_empty() => none,
            some => format!(", such as {some}"),
        };
        for (field, objects) in &kind.fields {
            let objects = counted(*objects, kind.at_least, "object");
            findings.push(
                Finding::new(
                    Topic::Fields,
                    Severity::Finding,
                    &resource,
                    format!("{field} is set in {objects}{examples}; {target} erases it"),
                )
                .commands([format!(
                    "# remove the field before the rollback, or expect that it is lost: kubectl edit {resource}"
                )]),
            );
        }
    }
    findings
}
