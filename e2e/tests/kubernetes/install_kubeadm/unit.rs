//! `systemd-analyze` on the unit of `skewbridge manifest systemd`.

use std::process::Command;

use skewbridge_e2e::{UnitSandbox, bridge_program};
use skewbridge_testkit::ScratchDir;

/// The most that `systemd-analyze security` may report, in tenths: 0 is confined, 100 is not.
/// What remains is network access, and that the program is run from the system's root.
const MAX_EXPOSURE_TENTHS: &str = "13";

#[test]
fn the_unit_is_valid_and_confined() {
    let directory = ScratchDir::new();
    let program = bridge_program();
    let generated = Command::new(&program)
        .args(["manifest", "systemd"])
        .arg(format!("--program={}", program.display()))
        .arg(format!("--output-dir={}", directory.path().display()))
        .output()
        .unwrap();
    assert!(generated.status.success(), "{generated:?}");
    let unit = directory.path().join("skewbridge.service");
    let analyze = |options: &[&str]| {
        let mut command = Command::new("systemd-analyze");
        let output = command.args(options).arg(&unit).output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
        assert!(output.status.success(), "{options:?}: {stdout}{stderr}");
        (stdout, stderr)
    };
    let (_, complaints) = analyze(&["verify"]);
    assert_eq!(complaints, "");
    let threshold = format!("--threshold={MAX_EXPOSURE_TENTHS}");
    let (report, _) = analyze(&["security", "--offline=true", "--no-pager", &threshold]);
    let exposed = report.lines().filter(|line| !line.starts_with('\u{2713}'));
    println!("{}", exposed.collect::<Vec<_>>().join("\n"));
}

/// The filter with which the machines of these tests run the unit. What a bridge needs is permitted:
/// the page is followed with it.
#[test]
fn the_filter_of_the_unit_denies_what_a_bridge_does_not_need() {
    let unit = include_str!("../../../../deploy/systemd/skewbridge.service");
    let Some(sandbox) = UnitSandbox::of(unit) else {
        return;
    };
    let wrapper = sandbox.wrapper(None);
    let run = |script: &str| {
        let mut command = Command::new(&wrapper[0]);
        let command = command.args(&wrapper[1..]).args(["/bin/sh", "-c", script]);
        command.output().unwrap()
    };
    let status = run("grep ^Seccomp: /proc/self/status");
    assert_eq!(status.stdout, b"Seccomp:\t2\n", "{status:?}");
    for denied in ["chroot / true", "mount -t tmpfs none /mnt"] {
        let output = run(denied);
        assert!(!output.status.success(), "{denied}: {output:?}");
    }
    let family = "python3 -c 'import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)'";
    let output = run(family);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("Address family not supported"), "{error}");
}
