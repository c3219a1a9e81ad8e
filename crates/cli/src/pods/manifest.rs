//! A file that names the target of a command: `exec --filename`.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;

use super::reference::{Kind, Reference};

/// Maximum size of a file: more than an API server accepts for one object.
const MAX_MANIFEST_BYTES: u64 = 4 * 1024 * 1024;

/// The identity of the object in a file. The rest is read from the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) reference: Reference,
    pub(crate) namespace: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Object {
    api_version: String,
    kind: String,
    metadata: Metadata,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: String,
}

impl Manifest {
    /// The only object of these files, JSON or YAML; `-` is standard input.
    pub(crate) fn read(paths: &[String]) -> Result<Self, String> {
        let [path] = paths else {
            return Err(MULTIPLE.to_owned());
        };
        let text = match path.as_str() {
            "-" => text(io::stdin().lock()),
            url if url.starts_with("http://") || url.starts_with("https://") => {
                return Err(format!(
                    "{path}: URLs are not supported; pipe the file into --filename=-"
                ));
            }
            path => File::open(Path::new(path)).and_then(text),
        };
        let text = text.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("the path {path:?} does not exist"),
            _ => format!("{path}: {error}"),
        })?;
        Self::parse(&text).map_err(|wrong| match wrong {
            ManifestError::Many => MULTIPLE.to_owned(),
            ManifestError::Other(wrong) => format!("{path}: {wrong}"),
        })
    }

    fn parse(text: &str) -> Result<Self, ManifestError> {
        let objects = serde_saphyr::from_multiple::<Object>(text);
        let objects =
            objects.map_err(|it| ManifestError::Other(it.without_snippet().to_string()))?;
        let mut objects = objects.into_iter();
        let (object, None) = (objects.next().unwrap_or_default(), objects.next()) else {
            return Err(ManifestError::Many);
        };
        let Object {
            api_version,
            kind,
            metadata,
        } = object;
        if kind.ends_with("List") {
            return Err(ManifestError::Many);
        }
        let other = |wrong: String| Err(ManifestError::Other(wrong));
        let missing = match (kind.is_empty(), api_version.is_empty()) {
            (false, false) => None,
            (true, false) => Some("kind"),
            (false, true) => Some("apiVersion"),
            (true, true) => Some("kind and no apiVersion"),
        };
        if let Some(missing) = missing {
            return other(format!("is not an object: it has no {missing}"));
        }
        let Some(known) = Kind::of_object(&api_version, &kind) else {
            return other(format!("{kind} of {api_version} does not run pods"));
        };
        if metadata.name.is_empty() {
            return other("resource name may not be empty".to_owned());
        }
        Ok(Self {
            reference: Reference {
                kind: known,
                name: metadata.name,
            },
            namespace: Some(metadata.namespace).filter(|it| !it.is_empty()),
        })
    }

    /// The namespace of the object: its own, which must match the flag if that is given, else
    /// that of the context.
    pub(crate) fn namespace(&self, flag: Option<&str>, context: &str) -> Result<String, String> {
        match (&self.namespace, flag) {
            (Some(own), Some(requested)) if own != requested => Err(format!(
                "the namespace from the provided object {own:?} does not match the namespace \
                 {requested:?}. You must pass '--namespace={own}' to perform this operation."
            )),
            (Some(own), _) => Ok(own.clone()),
            (None, _) => Ok(context.to_owned()),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ManifestError {
    Many,
    Other(String),
}

const MULTIPLE: &str = "cannot exec into multiple objects at a time";

fn text(from: impl io::Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MAX_MANIFEST_BYTES + 1)
        .read_to_string(&mut text)?;
    if text.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(io::Error::other("is larger than 4 MiB; correct the path"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_one_object() {
        let other = |text: &str| Err(ManifestError::Other(text.to_owned()));
        let named = |kind, name: &str, namespace: Option<&str>| {
            Ok(Manifest {
                reference: Reference {
                    kind,
                    name: name.to_owned(),
                },
                namespace: namespace.map(str::to_owned),
            })
        };
        let rows = [
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop}\nspec: {x: 1}\n",
                named(Kind::Pod, "web", Some("shop")),
            ),
            (
                "# ours\n---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\n---\n",
                named(Kind::Deployment, "web", None),
            ),
            (
                r#"{"kind":"Job","apiVersion":"batch/v1","metadata":{"name":"once"}}"#,
                named(Kind::Job, "once", None),
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: b}\n",
                Err(ManifestError::Many),
            ),
            (
                "apiVersion: v1\nkind: List\nitems: []\n",
                Err(ManifestError::Many),
            ),
            (
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n",
                other("ConfigMap of v1 does not run pods"),
            ),
            (
                "apiVersion: v1\nkind: Deployment\nmetadata: {name: a}\n",
                other("Deployment of v1 does not run pods"),
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {generateName: a}\n",
                other("resource name may not be empty"),
            ),
            (
                "kind: Pod\n",
                other("is not an object: it has no apiVersion"),
            ),
            (
                "apiVersion: v1\n",
                other("is not an object: it has no kind"),
            ),
            (
                "metadata: {name: a}\n",
                other("is not an object: it has no kind and no apiVersion"),
            ),
        ];
        for (text, expected) in rows {
            assert_eq!(Manifest::parse(text), expected, "{text}");
        }
        assert!(Manifest::parse("[").is_err());
    }

    #[test]
    fn the_namespace_of_the_object_must_match_the_flag() {
        let rows = [
            (None, None, Ok("here")),
            (None, Some("shop"), Ok("here")),
            (Some("shop"), None, Ok("shop")),
            (Some("shop"), Some("shop"), Ok("shop")),
            (
                Some("shop"),
                Some("zoo"),
                Err(
                    "the namespace from the provided object \"shop\" does not match the namespace \
                     \"zoo\". You must pass '--namespace=shop' to perform this operation.",
                ),
            ),
        ];
        for (own, flag, expected) in rows {
            let manifest = Manifest {
                reference: Reference::parse("web").unwrap(),
                namespace: own.map(str::to_owned),
            };
            let found = manifest.namespace(flag, "here");
            assert_eq!(found.as_deref().map_err(String::as_str), expected);
        }
    }
}
