//! The restrictions of a unit of systemd that a seccomp filter can express, for a machine without
//! systemd: system calls, address families, and no memory that is writable and executable.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

/// Installs the filter and runs a program.
const SCRIPT: &str = include_str!("unit_sandbox.py");

/// The numbers of system calls.
const NUMBERS: &str = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h";

/// What the filter of the script stands for.
const OTHER_SETTINGS: [&str; 4] = [
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "MemoryDenyWriteExecute=yes",
    "NoNewPrivileges=yes",
    "SystemCallErrorNumber=EPERM",
];

/// `SystemCallFilter` of a unit, in its order: groups, those to remove with `~`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitSandbox {
    groups: Vec<String>,
}

impl UnitSandbox {
    /// The restrictions of this unit; none on machines other than x86-64.
    ///
    /// # Panics
    ///
    /// If a setting has another value than that which the filter implements.
    pub fn of(unit: &str) -> Option<Self> {
        let lines = unit.lines();
        let groups = lines.filter_map(|line| line.strip_prefix("SystemCallFilter="));
        let groups: Vec<_> = groups.map(str::to_owned).collect();
        if groups.is_empty() || cfg!(not(target_arch = "x86_64")) {
            return None;
        }
        for setting in OTHER_SETTINGS {
            assert!(
                unit.lines().any(|line| line == setting),
                "{setting}: {unit}"
            );
        }
        Some(Self { groups })
    }

    /// The words before a program and its arguments, which root runs; the program runs as this user
    /// and group, or as root.
    ///
    /// # Panics
    ///
    /// If systemd does not know a group.
    pub fn wrapper(&self, user: Option<&[String; 2]>) -> Vec<String> {
        let mut permitted = BTreeSet::new();
        for group in &self.groups {
            match group.strip_prefix('~') {
                Some(removed) => {
                    let removed = system_calls(removed);
                    permitted.retain(|it| !removed.contains(it));
                }
                None => permitted.extend(system_calls(group)),
            }
        }
        let numbers = numbers();
        // The kernel of this machine does not have all of them.
        let permitted = permitted.iter().filter_map(|name| numbers.get(name));
        let permitted: Vec<_> = permitted.cloned().collect();
        assert!(permitted.len() > 200, "{permitted:?}");
        let numbers = permitted.join(",");
        let [user, group] = user.map_or(["", ""], |it| [&it[0], &it[1]]);
        let words = ["python3", "-c", SCRIPT, &numbers, user, group];
        words.map(str::to_owned).to_vec()
    }
}

/// The names in a group, also of groups in it.
fn system_calls(group: &str) -> BTreeSet<String> {
    let mut command = Command::new("systemd-analyze");
    let output = command.args(["syscall-filter", group]).output();
    let output = output.expect("systemd-analyze starts");
    assert!(output.status.success(), "{group}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    // The first line is the name of the group, and comments begin with #.
    let entries = text.lines().skip(1).map(str::trim);
    let entries = entries.filter(|it| !it.is_empty() && !it.starts_with('#'));
    entries
        .flat_map(|entry| {
            if entry.starts_with('@') {
                system_calls(entry)
            } else {
                BTreeSet::from([entry.to_owned()])
            }
        })
        .collect()
}

/// The number of each system call.
fn numbers() -> BTreeMap<String, String> {
    let header = fs::read_to_string(NUMBERS).expect("the header of system calls (linux-libc-dev)");
    let lines = header.lines().filter_map(|line| {
        let mut words = line.strip_prefix("#define __NR_")?.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.to_owned()))
    });
    lines.collect()
}
