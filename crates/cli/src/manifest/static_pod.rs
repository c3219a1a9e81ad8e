//! `skewbridge manifest static-pod`: the bridge as a static pod.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use clap::Args;

use super::output::{GeneratedFile, Mode};
use super::sizing::{Limits, SizeFlags};

/// The name of the manifest.
const NAME: &str = "skewbridge.yaml";

const POD: &str = include_str!("skewbridge.yaml");

/// The directories that every bridge reads.
const CONFIGURATION_DIRECTORY: &str = "/etc/skewbridge";

// The flags of a static pod. The comments are the help text.
#[derive(Debug, Clone, Args)]
pub(super) struct PodFlags {
    /// Image of the static pod
    #[arg(long, value_name = "IMAGE", default_value = concat!("skewbridge:", env!("CARGO_PKG_VERSION")))]
    image: String,
    /// User and group of the static pod. The group must be able to read the private keys
    #[arg(long, value_name = "UID:GID", default_value = "10270:10270", value_parser = ids)]
    run_as: Ids,
}

// The flags of `manifest static-pod`. The comments are the help text.
#[derive(Debug, Clone, Args)]
pub(super) struct Flags {
    #[command(flatten)]
    pod: PodFlags,
    #[command(flatten)]
    size: SizeFlags,
    /// Directory with files that /etc/skewbridge/config.yaml names; may be repeated
    #[arg(long, value_name = "DIRECTORY", default_value = "/etc/kubernetes/pki")]
    mount: Vec<String>,
}

impl Flags {
    pub(super) fn pod(&self) -> GeneratedFile {
        let directories = self.mount.iter().map(String::as_str);
        self.pod.manifest(directories, self.size.limits())
    }
}

/// A user and a group by number: kubelet does not resolve the user names of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ids {
    user: u32,
    group: u32,
}

fn ids(text: &str) -> Result<Ids, String> {
    let wrong = || "write two numbers like 10270:10270, of a user other than root".to_owned();
    let (user, group) = text.split_once(':').ok_or_else(wrong)?;
    let [user, group] = [user, group].map(|it| it.parse().ok().filter(|id| *id > 0));
    Ok(Ids {
        user: user.ok_or_else(wrong)?,
        group: group.ok_or_else(wrong)?,
    })
}

impl PodFlags {
    /// The manifest of a pod that reads these directories.
    pub(super) fn manifest<'d>(
        &self,
        directories: impl IntoIterator<Item = &'d str>,
        limits: Limits,
    ) -> GeneratedFile {
        let (mut mounts, mut volumes) = (String::new(), String::new());
        let all = [CONFIGURATION_DIRECTORY].into_iter().chain(directories);
        // Writing to a string does not fail.
        for (number, directory) in topmost(all).into_iter().enumerate() {
            let _ = write!(
                mounts,
                "    - name: files-{number}\n      mountPath: {directory}\n      readOnly: true\n"
            );
            let _ = write!(
                volumes,
                "  - name: files-{number}\n    hostPath:\n      path: {directory}\n      type: Directory\n"
            );
        }
        let Ids { user, group } = self.run_as;
        GeneratedFile {
            name: NAME,
            mode: Mode::Private,
            text: POD
                .replace("@IMAGE@", &self.image)
                .replace("@USER@", &user.to_string())
                .replace("@GROUP@", &group.to_string())
                .replace("@MEMORY@", limits.container_memory())
                .replace("    @MOUNTS@\n", &mounts)
                .replace("  @VOLUMES@\n", &volumes),
        }
    }
}

/// The directories without those that are in another one of them.
fn topmost<'d>(directories: impl IntoIterator<Item = &'d str>) -> BTreeSet<&'d str> {
    let all: BTreeSet<_> = directories.into_iter().collect();
    let is_topmost = |directory: &&str| {
        let mut others = all.iter().filter(|other| other != &directory);
        !others.any(|other| Path::new(directory).starts_with(other))
    };
    all.iter().copied().filter(is_topmost).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_another_one_is_not_mounted_again() {
        let rows: [(&[&str], &[&str]); 3] = [
            (&["/a/b", "/a", "/a/b/c"], &["/a"]),
            (&["/a/bc", "/a/b"], &["/a/b", "/a/bc"]),
            (&["/a", "/a"], &["/a"]),
        ];
        for (all, expected) in rows {
            let found: Vec<_> = topmost(all.iter().copied()).into_iter().collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn a_user_is_two_numbers_and_not_root() {
        assert_eq!(
            ids("998:997"),
            Ok(Ids {
                user: 998,
                group: 997
            })
        );
        for wrong in ["998", "0:997", "998:0", "a:b", "1:2:3", "-1:2", ""] {
            assert!(ids(wrong).is_err(), "{wrong}");
        }
    }
}
