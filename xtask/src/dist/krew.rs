//! The manifest of the kubectl plugin `skewbridge`, for krew.

use std::fmt::Write as _;

use super::platform::Architecture;

/// The commands that have the flags of kubectl.
const CLIENT_COMMANDS: [&str; 4] = ["exec", "attach", "cp", "port-forward"];

/// The archive of one architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Archive {
    pub(super) architecture: Architecture,
    pub(super) name: String,
    /// In hexadecimal.
    pub(super) sha256: String,
}

/// What krew reads. Archives are downloaded from `download_url`, where they have their own names.
pub(super) fn manifest(version: &str, download_url: &str, archives: &[Archive]) -> String {
    let clients = CLIENT_COMMANDS.join(", ");
    let mut text = format!(
        "\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: skewbridge
spec:
  version: v{version}
  homepage: {download_url}
  shortDescription: Find and bridge version skew of API servers
  description: |
    Shows how the kube-apiservers of a cluster differ while it is upgraded (kubectl skewbridge
    skew), where a request would be sent (kubectl skewbridge route), and runs
    {clients} with the flags of kubectl.
  platforms:
"
    );
    for archive in archives {
        let Archive {
            architecture,
            name,
            sha256,
        } = archive;
        let directory = name.strip_suffix(".tar.gz").unwrap_or(name);
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "  - selector:
      matchLabels:
        os: linux
        arch: {architecture}
    uri: {download_url}/{name}
    sha256: {sha256}
    bin: skewbridge
    files:
    - from: {directory}/skewbridge
      to: .
    - from: {directory}/LICENSE
      to: .
",
            architecture = architecture.name(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_description_names_commands_that_exist() {
        let flags = include_str!("../../../docs/flags.md");
        let exists = |command: &str| flags.contains(&format!("\n## skewbridge {command}\n"));
        let text = manifest("1.2.3", "https://example.org/r", &[]);
        let manifest: Value = serde_saphyr::from_str(&text).unwrap();
        let description = manifest["spec"]["description"].as_str().unwrap();
        let description = description.split_whitespace().collect::<Vec<_>>().join(" ");
        // A list after "runs", and words after the name of the plugin.
        let (_, list) = description.split_once(" and runs ").unwrap();
        let (list, _) = list.split_once(" with the flags").unwrap();
        let named = description.split("kubectl skewbridge ").skip(1);
        let named = named.filter_map(|rest| rest.split([')', ' ']).next());
        let named: Vec<_> = named.chain(list.split(", ")).collect();
        assert_eq!(named.len(), 2 + CLIENT_COMMANDS.len(), "{named:?}");
        for command in named {
            assert!(exists(command), "{command}");
        }
    }

    /// What krew's validation requires of a manifest.
    #[test]
    fn the_manifest_has_what_krew_requires() {
        let archives = Architecture::ALL.map(|architecture| Archive {
            architecture,
            name: format!("skewbridge-1.2.3-linux-{}.tar.gz", architecture.name()),
            sha256: "ab".repeat(32),
        });
        let text = manifest("1.2.3", "https://example.org/r", &archives);
        let manifest: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(
            manifest["apiVersion"],
            "krew.googlecontainertools.github.com/v1alpha2"
        );
        assert_eq!(manifest["kind"], "Plugin");
        // The file is named after the plugin.
        assert_eq!(
            super::super::packages::KREW_MANIFEST,
            format!("{}.yaml", manifest["metadata"]["name"].as_str().unwrap())
        );
        let spec = &manifest["spec"];
        assert_eq!(spec["version"], "v1.2.3");
        // Longer ones are cut in lists.
        let short = spec["shortDescription"].as_str().unwrap();
        assert!(short.len() <= 50 && !short.ends_with('.'), "{short}");
        assert!(!spec["description"].as_str().unwrap().is_empty());
        let platforms = spec["platforms"].as_array().unwrap();
        assert_eq!(platforms.len(), 2);
        for (platform, architecture) in platforms.iter().zip(["amd64", "arm64"]) {
            let directory = format!("skewbridge-1.2.3-linux-{architecture}");
            assert_eq!(
                platform,
                &json!({
                    "selector": {"matchLabels": {"os": "linux", "arch": architecture}},
                    "uri": format!("https://example.org/r/{directory}.tar.gz"),
                    "sha256": "ab".repeat(32),
                    "bin": "skewbridge",
                    "files": [
                        {"from": format!("{directory}/skewbridge"), "to": "."},
                        {"from": format!("{directory}/LICENSE"), "to": "."},
                    ],
                })
            );
        }
    }
}
