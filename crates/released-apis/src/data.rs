//! The data files that are compiled in.

use crate::error::Error;
use crate::minor::Minor;
use crate::release::Release;

/// One file per minor version, oldest first.
const FILES: [(u16, &str); 12] = [
    (26, include_str!("../data/1.26.json")),
    (27, include_str!("../data/1.27.json")),
    (28, include_str!("../data/1.28.json")),
    (29, include_str!("../data/1.29.json")),
    (30, include_str!("../data/1.30.json")),
    (31, include_str!("../data/1.31.json")),
    (32, include_str!("../data/1.32.json")),
    (33, include_str!("../data/1.33.json")),
    (34, include_str!("../data/1.34.json")),
    (35, include_str!("../data/1.35.json")),
    (36, include_str!("../data/1.36.json")),
    (37, include_str!("../data/1.37.json")),
];

/// The minor versions whose data are compiled in, oldest first.
pub fn known_minors() -> impl DoubleEndedIterator<Item = Minor> {
    FILES.iter().map(|(minor, _)| Minor {
        major: 1,
        minor: *minor,
    })
}

/// The release of a minor version whose data are compiled in; `None` for another minor version.
pub fn release_of(minor: Minor) -> Result<Option<Release>, Error> {
    let text = FILES
        .iter()
        .find(|(known, _)| (1, *known) == (minor.major, minor.minor));
    text.map(|(_, text)| Release::from_json(text)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::release::ApiName;

    fn release(minor: &str) -> Release {
        release_of(minor.parse().unwrap()).unwrap().expect(minor)
    }

    fn name(group: &str, version: &str, resource: &str) -> ApiName {
        let [group, version, resource] = [group, version, resource].map(str::to_owned);
        ApiName {
            group,
            version,
            resource,
        }
    }

    #[test]
    fn every_file_is_of_its_minor_version_and_is_written_as_it_is_read() {
        for (minor, (_, text)) in known_minors().zip(FILES) {
            let release = Release::from_json(text).unwrap();
            assert_eq!(Minor::from(release.version), minor);
            assert_eq!(release.to_json().unwrap(), text, "{minor}");
            let pods = release.api(&name("", "v1", "pods")).unwrap();
            assert!(pods.namespaced && pods.by_default && pods.listable);
            assert_eq!(pods.kind, "Pod");
            let mut kinds = release.fields().kinds();
            assert!(kinds.any(|kind| kind == ("apps", "Deployment")), "{minor}");
        }
        let minors: Vec<_> = known_minors().collect();
        assert!(minors.windows(2).all(|it| it[1].ahead_of(it[0]) == 1));
        assert_eq!(minors[0].to_string(), "1.26");
        assert!(release_of("1.5".parse().unwrap()).unwrap().is_none());
    }

    #[test]
    fn removals_of_the_deprecation_guide_are_in_the_data() {
        // https://kubernetes.io/docs/reference/using-api/deprecation-guide/
        let rows = [
            (
                "storage.k8s.io",
                "v1beta1",
                "csistoragecapacities",
                "1.26",
                "1.27",
            ),
            (
                "flowcontrol.apiserver.k8s.io",
                "v1beta2",
                "flowschemas",
                "1.28",
                "1.29",
            ),
            (
                "flowcontrol.apiserver.k8s.io",
                "v1beta3",
                "flowschemas",
                "1.31",
                "1.32",
            ),
        ];
        for (group, version, resource, last, gone) in rows {
            let name = name(group, version, resource);
            assert!(
                release(last).api(&name).unwrap().by_default,
                "{last} {name:?}"
            );
            assert_eq!(release(gone).api(&name), None, "{gone} {name:?}");
        }
        let preview = name("storage.k8s.io", "v1alpha1", "volumeattributesclasses");
        assert!(!release("1.34").api(&preview).unwrap().by_default);
    }
}
