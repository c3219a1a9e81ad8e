//! The container of a pod.

use super::object::Pod;

/// The annotation that names the container of who names none.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A container that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// What kubectl says when it has chosen among several.
    pub(crate) notice: Option<String>,
}

/// The container of this name; without one that of the annotation, else the first. As
/// kubectl chooses, and in its words.
pub(crate) fn choose_container(pod: &Pod, asked: Option<&str>) -> Result<Named, String> {
    if let Some(name) = asked.filter(|name| !name.is_empty()) {
        if pod.container(name).is_none() {
            let known: Vec<_> = pod.containers().map(|(it, _)| it.name.as_str()).collect();
            return Err(format!(
                "container {name} not found in pod {}; it has: {}",
                pod.metadata.name,
                known.join(", ")
            ));
        }
        let name = name.to_owned();
        return Ok(Named { name, notice: None });
    }
    let annotated = pod.metadata.annotations.get(DEFAULT_CONTAINER);
    if let Some(container) = annotated.and_then(|name| pod.container(name)) {
        let name = container.name.clone();
        return Ok(Named { name, notice: None });
    }
    let Some(first) = pod.spec.containers.first() else {
        return Err(format!("pod {} has no containers", pod.metadata.name));
    };
    let all: Vec<_> = pod
        .containers()
        .map(|(it, what)| format!("{}{what}", it.name))
        .collect();
    let notice = (all.len() > 1).then(|| {
        format!(
            "Defaulted container {:?} out of: {}",
            first.name,
            all.join(", ")
        )
    });
    let name = first.name.clone();
    Ok(Named { name, notice })
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
            Ok(Named {
                name: name.to_owned(),
                notice: notice.map(str::to_owned),
            })
        };
        let notice = "Defaulted container \"app\" out of: app, side, setup (init)";
        let rows = [
            (pod(None, true), None, named("app", Some(notice))),
            (pod(Some("side"), true), None, named("side", None)),
            (pod(Some("gone"), true), None, named("app", Some(notice))),
            (pod(None, true), Some("setup"), named("setup", None)),
            (pod(Some("side"), false), Some("app"), named("app", None)),
            (
                pod(None, false),
                Some("x"),
                Err("container x not found in pod web; it has: app, side".to_owned()),
            ),
        ];
        for (pod, asked, expected) in rows {
            assert_eq!(choose_container(&pod, asked), expected);
        }
    }
}
