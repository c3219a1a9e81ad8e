//! The software bill of materials: every package that the program is made of, as `CycloneDX`.
//!
//! It is made from the data of cargo alone: `cargo metadata` names the packages and `Cargo.lock`
//! their checksums. `cargo cyclonedx` adds a random serial number and the time of day.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The program in cargo's data.
const PROGRAM: &str = "skewbridge";

/// The document. `metadata` is what `cargo metadata` prints for the features and the target of the
/// program, `time` is RFC 3339.
pub(super) fn document(metadata: &Value, lock: &str, time: &str) -> Option<String> {
    let packages: BTreeMap<&str, Package> = array(&metadata["packages"])
        .filter_map(|package| Some((package["id"].as_str()?, Package::of(package, lock)?)))
        .collect();
    let program = packages
        .iter()
        .find_map(|(id, package)| (package.name == PROGRAM).then_some(*id))?;
    let dependencies = dependencies(metadata);
    let reachable = reachable(program, &dependencies);
    let mut components: Vec<_> = reachable
        .iter()
        .filter(|id| **id != program)
        .filter_map(|id| packages.get(id))
        .collect();
    components.sort_by_key(|package| package.reference());
    let mut relations: Vec<(String, Vec<String>)> = reachable
        .iter()
        .filter_map(|id| {
            let mut on: Vec<String> = dependencies
                .get(id)?
                .iter()
                .filter_map(|id| Some(packages.get(id)?.reference()))
                .collect();
            on.sort();
            Some((packages.get(id)?.reference(), on))
        })
        .collect();
    relations.sort();
    let main = packages.get(program)?;
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time,
            "component": main.component("application"),
        },
        "components": components
            .iter()
            .map(|package| package.component("library"))
            .collect::<Vec<_>>(),
        "dependencies": relations
            .iter()
            .map(|(reference, on)| json!({"ref": reference, "dependsOn": on}))
            .collect::<Vec<_>>(),
    });
    Some(serde_json::to_string_pretty(&document).ok()? + "\n")
}

/// A package of cargo.
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    /// SHA-256 of the archive in the registry. Packages of this repository have none.
    checksum: Option<String>,
}

impl Package {
    fn of(package: &Value, lock: &str) -> Option<Self> {
        let text = |field: &str| package[field].as_str().map(ToOwned::to_owned);
        let (name, version) = (text("name")?, text("version")?);
        let checksum = checksum(lock, &name, &version);
        Some(Self {
            name,
            version,
            // `/` is an old spelling of `OR`.
            license: text("license").map(|license| license.replace('/', " OR ")),
            repository: text("repository"),
            checksum,
        })
    }

    /// The package URL, which also identifies the package inside of the document.
    fn reference(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }

    fn component(&self, kind: &str) -> Value {
        let mut component = json!({
            "type": kind,
            "bom-ref": self.reference(),
            "name": self.name,
            "version": self.version,
            "purl": self.reference(),
        });
        if let Some(license) = &self.license {
            component["licenses"] = json!([{"expression": license}]);
        }
        if let Some(checksum) = &self.checksum {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        if let Some(repository) = &self.repository {
            component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
        }
        component
    }
}

/// What each package uses, by package id. Build scripts and tests are not part of the program;
/// macros, which write code of it, are.
fn dependencies(metadata: &Value) -> BTreeMap<&str, BTreeSet<&str>> {
    array(&metadata["resolve"]["nodes"])
        .filter_map(|node| {
            let on = array(&node["deps"])
                .filter(|dependency| {
                    array(&dependency["dep_kinds"]).any(|kind| kind["kind"].is_null())
                })
                .filter_map(|dependency| dependency["pkg"].as_str())
                .collect();
            Some((node["id"].as_str()?, on))
        })
        .collect()
}

fn reachable<'a>(
    from: &'a str,
    dependencies: &BTreeMap<&'a str, BTreeSet<&'a str>>,
) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::from([from]);
    let mut open = vec![from];
    while let Some(package) = open.pop() {
        for dependency in dependencies.get(package).into_iter().flatten() {
            if found.insert(dependency) {
                open.push(dependency);
            }
        }
    }
    found
}

fn checksum(lock: &str, name: &str, version: &str) -> Option<String> {
    let start = format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n");
    let (_, rest) = lock.split_once(&start)?;
    let package = rest.split("\n\n").next()?;
    let (_, checksum) = package.split_once("checksum = \"")?;
    Some(checksum.split('"').next()?.to_owned())
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\
                        source = \"registry\"\nchecksum = \"aa11\"\n\n\
                        [[package]]\nname = \"skewbridge\"\nversion = \"0.1.0\"\n";

    fn metadata() -> Value {
        let package = |name: &str, version: &str| {
            json!({"id": name, "name": name, "version": version, "license": "MIT/Apache-2.0",
                   "repository": format!("https://example.org/{name}")})
        };
        let on = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        json!({
            "packages": [
                package("a", "1.0.0"), package("b", "2.0.0"), package("c", "3.0.0"),
                package("unrelated", "1.0.0"), package("skewbridge", "0.1.0"),
            ],
            "resolve": {"nodes": [
                {"id": "skewbridge", "deps": [on("a", Value::Null), on("c", json!("dev"))]},
                {"id": "a", "deps": [on("b", json!("build"))]},
                {"id": "b", "deps": []},
                {"id": "unrelated", "deps": [on("c", Value::Null)]},
            ]},
        })
    }

    #[test]
    fn only_what_is_linked_is_listed() {
        let text = document(&metadata(), LOCK, "2026-11-19T00:00:00Z").unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(document["bomFormat"], "CycloneDX");
        assert_eq!(document["metadata"]["timestamp"], "2026-11-19T00:00:00Z");
        assert_eq!(
            document["metadata"]["component"]["purl"],
            "pkg:cargo/skewbridge@0.1.0"
        );
        assert_eq!(
            document["components"],
            json!([{
                "type": "library", "bom-ref": "pkg:cargo/a@1.0.0", "name": "a",
                "version": "1.0.0", "purl": "pkg:cargo/a@1.0.0",
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "hashes": [{"alg": "SHA-256", "content": "aa11"}],
                "externalReferences": [{"type": "vcs", "url": "https://example.org/a"}],
            }])
        );
        assert_eq!(
            document["dependencies"],
            json!([
                {"ref": "pkg:cargo/a@1.0.0", "dependsOn": []},
                {"ref": "pkg:cargo/skewbridge@0.1.0", "dependsOn": ["pkg:cargo/a@1.0.0"]},
            ])
        );
    }

    #[test]
    fn data_without_the_program_makes_no_document() {
        let without = json!({"packages": [], "resolve": {"nodes": []}});
        assert_eq!(document(&without, LOCK, "2026-11-19T00:00:00Z"), None);
    }
}
