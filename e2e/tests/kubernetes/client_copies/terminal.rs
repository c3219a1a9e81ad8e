//! The progress output of a copy.

use std::fs;
use std::path::Path;

use skewbridge_e2e::Node;
use skewbridge_testkit::{ScratchDir, Terminal};
use tokio::time::timeout;

use super::{
    COMMAND_TIMEOUT, CopyTarget, FILE_BYTES, HALF_FILE_BYTES, same_content, write_noise,
    write_program,
};

/// A tar in the pod stops half way, until the progress line has been seen.
pub(super) async fn progress_is_shown(way: &CopyTarget<'_>) {
    let scratch = ScratchDir::new();
    write_noise(&way.in_pod("large"), FILE_BYTES);
    let bin = way.in_pod("bin");
    fs::create_dir(&bin).unwrap();
    let go_on = bin.join("go-on");
    let script = format!(
        "#!/bin/sh
PATH=${{PATH#*:}}
tar \"$@\" | {{
head -c {HALF_FILE_BYTES}
until [ -e {} ]; do sleep 0.05; done
cat
}}
",
        go_on.display()
    );
    write_program(&bin.join("tar"), &script);
    let to = scratch.path().join("to");
    let terminal = Terminal::open(80, 24);
    let mut command = way.plane.skewbridge_at(Path::new(&way.config));
    command.args(["cp", "-n", Node::NAMESPACE, &way.remote("large")]);
    let mut child = terminal.run({
        command.arg(&to);
        command
    });
    // The remaining time is printed as soon as there is a rate.
    terminal.shows("iB/s, ").await;
    let shown = terminal.shown();
    let line = shown.split('\r').find(|line| line.contains("iB/s, "));
    let line = line.unwrap().split('\x1b').next().unwrap();
    assert!(line.starts_with('[') && line.contains("% "), "{line:?}");
    assert!(line.ends_with(" left  ./large"), "{line:?}");
    assert!(!shown.contains("copied"), "{shown:?}");
    fs::write(go_on, "").unwrap();
    terminal.shows("copied 48.0 MiB in 1 entry, ").await;
    let ended = timeout(COMMAND_TIMEOUT, child.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(ended.success());
    assert!(same_content(&way.in_pod("large"), &to));
    way.remove_all_files();
}
