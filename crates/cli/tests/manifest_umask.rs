//! Files of `skewbridge manifest --output-dir` on a host where the umask of root is strict.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use skewbridge_testkit::ScratchDir;

#[test]
fn the_user_of_the_bridge_can_read_generated_files_whatever_the_umask() {
    let scratch = ScratchDir::new();
    let directory = scratch.path().join("etc/skewbridge");
    let script = format!(
        "umask 077 && exec {} manifest rbac --output-dir={}",
        env!("CARGO_BIN_EXE_skewbridge"),
        directory.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for created in [&scratch.path().join("etc"), &directory] {
        assert_eq!(mode(created), 0o755, "{}", created.display());
    }
    let files: Vec<_> = fs::read_dir(&directory).unwrap().collect();
    assert!(!files.is_empty());
    for file in files {
        let path = file.unwrap().path();
        assert_eq!(mode(&path), 0o644, "{}", path.display());
    }
}
