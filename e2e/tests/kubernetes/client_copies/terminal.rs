//! What somebody sees who waits for a copy.

use std::fs;
use std::path::Path;

use skewbridge_e2e::Node;
use skewbridge_testkit::{ScratchDir, Terminal};
use tokio::time::timeout;

use super::{BOUND, FILE, HALF_OF_FILE, Way, same, write_noise, write_program};

/// A tar in the pod stops half way, until the line of progress has been seen.
pub(super) async fn shows_how_far_it_is(way: &Way<'_>) {
    let scratch = ScratchDir::new();
    write_noise(&way.in_pod("large"), FILE);
    let bin = way.in_pod("bin");
    fs::create_dir(&bin).unwrap();
    let go_on = bin.join("go-on");
    let script = format!(
        "#!/bin/sh
PATH=${{PATH#*:}}
tar \"$@\" | {{
head -c {HALF_OF_FILE}
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
    // What is left is told where there is a rate.
    terminal.shows("iB/s, ").await;
    let shown = terminal.shown();
    let line = shown.split('\r').find(|line| line.contains("iB/s, "));
    let line = line.unwrap().split('\x1b').next().unwrap();
    assert!(line.starts_with('[') && line.contains("% "), "{line:?}");
    assert!(line.ends_with(" left  ./large"), "{line:?}");
    assert!(!shown.contains("copied"), "{shown:?}");
    fs::write(go_on, "").unwrap();
    terminal.shows("copied 48.0 MiB in 1 entry, ").await;
    let ended = timeout(BOUND, child.wait()).await.unwrap().unwrap();
    assert!(ended.success());
    assert!(same(&way.in_pod("large"), &to));
    way.empty();
}
