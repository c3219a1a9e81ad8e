//! The container of a pod.

use super::object::Pod;

/// The annotation with the default container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A container that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerName {
    pub(crate) name: String,
    /// kubectl's notice if it chose among several.
    pub(crate) notice: Option<String>,
}

/// The container of this name; else that of the annotation, else the first. Rules and messages
/// are kubectl's. An annotation with an unknown name is an error, because the first container is
/// not the intended one.
pub(crate) fn choose_container(
    pod: &Pod,
    requested: Option<&str>,
) -> Result<ContainerName, String> {
    let annotated = pod.metadata.annotations.get(DEFAULT_CONTAINER);
    let name = requested.filter(|name| !name.is_empty());
    let name = name.or_else(|| {
        annotated
            .map(String::as_str)
            .filter(|name| !name.is_empty())
    });
    let all = || {
        let all = pod.containers();
        let all = all.map(|(it, what)| format!("{}{what}", it.name));
        all.collect::<Vec<_>>().join(", ")
    };
    if let Some(name) = name {
        if pod.container(name).is_none() {
            return Err(format!(
                "container {name} is not valid for pod {} out of: {}",
                pod.metadata.name,
                all()
            ));
        }
        let name = name.to_owned();
        return Ok(ContainerName { name, notice: None });
    }
    let Some(first) = pod.spec.containers.first() else {
        return Err(format!(
            "pod {}/{} does not have any containers",
            pod.metadata.namespace, pod.metadata.name
        ));
    };
    let notice = (pod.containers().count() > 1)
        .then(|| format!("Defaulted container {:?} out of: {}", first.name, all()));
    let name = first.name.clone();
    Ok(ContainerName { name, notice })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(annotation: Option<&str>, init: bool) -> Pod {
        let annotation = annotation.map_or(String::new(), |name| {
            format!(r#""kubectl.kubernetes.io/default-container":"{name}""#)
        });
        let init = if init { r#"{"name":"setup"}"# } else { "" };
        serde_json::from_str(&format!(
            r#"{{"metadata":{{"name":"web","annotations":{{{annotation}}}}},
            "spec":{{"containers":[{{"name":"app"}},{{"name":"side"}}],"initContainers":[{init}]}}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn containers_are_chosen_as_kubectl_chooses_them() {
        let named = |name: &str, notice: Option<&str>| {
            Ok(ContainerName {
                name: name.to_owned(),
                notice: notice.map(str::to_owned),
            })
        };
        let notice = "Defaulted container \"app\" out of: app, side, setup (init)";
        let rows = [
            (pod(None, true), None, named("app", Some(notice))),
            (pod(Some("side"), true), None, named("side", None)),
            (pod(Some(""), true), None, named("app", Some(notice))),
            (
                pod(Some("gone"), true),
                None,
                Err("container gone is not valid for pod web out of: app, side, setup (init)"),
            ),
            (pod(Some("gone"), true), Some("side"), named("side", None)),
            (pod(None, true), Some("setup"), named("setup", None)),
            (pod(Some("side"), false), Some("app"), named("app", None)),
            (
                pod(None, false),
                Some("x"),
                Err("container x is not valid for pod web out of: app, side"),
            ),
            (
                Pod::default(),
                None,
                Err("pod / does not have any containers"),
            ),
        ];
        for (pod, requested, expected) in rows {
            let chosen = choose_container(&pod, requested);
            assert_eq!(chosen, expected.map_err(str::to_owned), "{requested:?}");
        }
    }
}
