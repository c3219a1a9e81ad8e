//! The process tree, from `/proc`. Empty on systems without it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::Pid;

/// All descendants of processes. Orphans belong to the process that adopted them.
pub(super) fn descendants(of: impl IntoIterator<Item = Pid>) -> Vec<Pid> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter_map(|entry| {
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        // A process that has exited meanwhile is skipped.
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        Some((id, parent(&stat)?))
    });
    let found = descendants_of(of.into_iter().map(|it| it.as_raw_nonzero().get()), all);
    found.into_iter().filter_map(Pid::from_raw).collect()
}

/// Parses a line such as `12 (a (b) c) S 11 ...`: names are not escaped, so the last parenthesis
/// counts.
fn parent(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    match words.next()? {
        "X" => None,
        // Zombies (Z) are included: the main thread may have exited while other threads run and
        // fork.
        _ => words.next()?.parse().ok(),
    }
}

/// The descendants, from pairs of process and parent ids.
fn descendants_of(
    of: impl Iterator<Item = i32>,
    all: impl Iterator<Item = (i32, i32)>,
) -> BTreeSet<i32> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for (id, parent) in all {
        children.entry(parent).or_default().push(id);
    }
    let mut found = BTreeSet::new();
    let mut open: Vec<i32> = of.collect();
    while let Some(id) = open.pop() {
        // Removed when visited, so that reused ids cannot form a loop.
        for child in children.remove(&id).into_iter().flatten() {
            if found.insert(child) {
                open.push(child);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_are_parsed_with_any_process_name() {
        assert_eq!(parent("12 (sh) S 11 12 12 0 -1"), Some(11));
        assert_eq!(parent("12 (a) S 1 (b) R 7 12"), Some(7));
        assert_eq!(parent("12 (sh) Z 11 12 12 0 -1"), Some(11));
        assert_eq!(parent("12 (sh) X 11 12 12 0 -1"), None);
        assert_eq!(parent(""), None);
    }

    #[test]
    fn descendants_are_found_recursively() {
        let all = [(2, 1), (3, 2), (4, 3), (5, 1), (6, 5), (7, 9), (9, 7)];
        let found = |of: &[i32]| descendants_of(of.iter().copied(), all.into_iter());
        assert_eq!(found(&[2]), [3, 4].into());
        assert_eq!(found(&[1]), [2, 3, 4, 5, 6].into());
        assert_eq!(found(&[3, 5]), [4, 6].into());
        assert_eq!(found(&[7]), [7, 9].into());
        assert_eq!(found(&[]), [].into());
    }

    #[test]
    fn a_child_of_the_test_process_is_found() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let found = descendants([rustix::process::getpid()]);
        let id = i32::try_from(child.id()).unwrap();
        let known = found.iter().any(|it| it.as_raw_nonzero().get() == id);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(known, cfg!(target_os = "linux"));
    }
}
