//! Where apt gets the packages of a Debian release on this machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::staging::failed;
use crate::step::{StepError, output};

/// A line for each index that apt would download: the repository, the release and the component.
const TARGETS: [&str; 4] = [
    "indextargets",
    "--format",
    "$(REPO_URI) $(RELEASE) $(COMPONENT)",
    "Created-By: Packages",
];

/// Names of releases that change with time.
const MOVING_RELEASES: [&str; 3] = ["stable", "oldstable", "oldoldstable"];

const OS_RELEASE: &str = "/etc/os-release";

/// The repositories that may have a release, in the order to try: those that apt is configured to use
/// for this release, then those with the release of this machine, which usually have older ones too.
pub(super) fn repositories(release: &str) -> Result<Vec<String>, StepError> {
    let targets = output(Command::new("apt-get").args(TARGETS))?;
    Ok(repositories_in(&targets, release, &own_release()?))
}

fn repositories_in(targets: &str, release: &str, own: &str) -> Vec<String> {
    let targets: Vec<[&str; 3]> = targets
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            words.try_into().ok()
        })
        .collect();
    let of = |matches: &dyn Fn(&str) -> bool| {
        let main = targets.iter().filter(|[_, _, name]| *name == "main");
        let main = main.filter(|[_, name, _]| matches(name));
        main.map(|[uri, _, _]| (*uri).to_owned())
            .collect::<Vec<_>>()
    };
    let mut found = of(&|name| name == release);
    for uri in of(&|name| name == own || MOVING_RELEASES.contains(&name)) {
        if !found.contains(&uri) {
            found.push(uri);
        }
    }
    found
}

/// The code name of the release of this machine.
pub(super) fn own_release() -> Result<String, StepError> {
    let path = Path::new(OS_RELEASE);
    let text = fs::read_to_string(path).map_err(failed(path))?;
    code_name(&text).ok_or_else(|| StepError(format!("{OS_RELEASE}: no VERSION_CODENAME")))
}

fn code_name(os_release: &str) -> Option<String> {
    let mut lines = os_release.lines();
    let name = lines.find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    Some(name.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_of_the_release_come_before_those_of_this_machine() {
        const OWN: &str = "https://mirror.example.org/debian/";
        const ARCHIVE: &str = "https://archive.example.org/debian/";
        let own = format!("{OWN} bookworm main");
        let rows: [(&[&str], &[&str]); 6] = [
            (&[&own], &[OWN]),
            (
                &[&own, "https://archive.example.org/debian/ bullseye main"],
                &[ARCHIVE, OWN],
            ),
            (
                &[&own, "https://mirror.example.org/debian/ bullseye main"],
                &[OWN],
            ),
            (&["https://mirror.example.org/debian/ stable main"], &[OWN]),
            // Neither these components nor these releases have the packages.
            (
                &[
                    "https://example.org/ bookworm stable",
                    "https://example.org/ bookworm-security main",
                    "https://example.org/ nodistro main",
                ],
                &[],
            ),
            (&[""], &[]),
        ];
        for (targets, expected) in rows {
            let found = repositories_in(&targets.join("\n"), "bullseye", "bookworm");
            assert_eq!(found, expected, "{targets:?}");
        }
    }

    #[test]
    fn the_code_name_of_a_system_is_read() {
        let text = "ID=debian\nVERSION_CODENAME=bookworm\n";
        assert_eq!(code_name(text).as_deref(), Some("bookworm"));
        assert_eq!(code_name("VERSION_CODENAME=\"trixie\"").unwrap(), "trixie");
        assert_eq!(code_name("ID=other"), None);
    }
}
