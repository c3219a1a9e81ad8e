//! `skewbridge cp` compared with kubectl's, with real servers: directly, through a bridge,
//! and through a proxy that supports no upgrade other than WebSocket.

mod pods;
mod terminal;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use skewbridge_client::copy::tar::{self, Kind};
use skewbridge_e2e::{
    ControlPlane, Node, Output, ServerSpec, User, Via, control_planes, is_since, newest, oldest,
    versions,
};
use skewbridge_testkit::ScratchDir;
use tokio::time::timeout;

use crate::disconnecting_proxy::DisconnectingProxy;

/// For a command that takes a second or two on an idle machine.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(1);

/// Large enough to be cut in the middle.
const FILE_BYTES: u64 = 48 << 20;
const GIGABYTE_BYTES: u64 = 1 << 30;

/// How many bytes the connection of a copy transfers before it is cut: about half of either.
const HALF_FILE_BYTES: u64 = 24 << 20;
const HALF_TREE_BYTES: u64 = 8 << 20;

/// A pod, and how it is reached.
struct CopyTarget<'a> {
    plane: &'a ControlPlane,
    node: &'a Node,
    server: usize,
    via: Via,
    cutting: Arc<DisconnectingProxy>,
    config: String,
}

impl<'a> CopyTarget<'a> {
    async fn open(plane: &'a ControlPlane, node: &'a Node, server: usize, via: Via) -> Self {
        let cutting = DisconnectingProxy::start(plane.servers[server].at(via)).await;
        let config = plane.kubeconfig_of(&[("c", cutting.address)]);
        Self {
            plane,
            node,
            server,
            via,
            cutting,
            config,
        }
    }

    /// Runs `skewbridge cp`.
    async fn cp(&self, words: &[&str]) -> Output {
        let mut line = vec!["cp", "-n", Node::NAMESPACE];
        line.extend(words);
        let output = self.plane.skewbridge(&self.config, &line).await;
        println!("$ skewbridge {}\n{}", line.join(" "), output.stderr);
        output
    }

    /// The same, and asserts success.
    async fn cp_ok(&self, words: &[&str]) {
        let output = self.cp(words).await;
        assert_eq!(output.code, Some(0), "{words:?}: {output:?}");
        assert_eq!(output.stdout, "");
    }

    /// A path in the pod.
    fn remote(&self, name: &str) -> String {
        format!("{}:{}", Node::POD, self.node.directory.join(name).display())
    }

    fn in_pod(&self, name: &str) -> std::path::PathBuf {
        self.node.directory.join(name)
    }

    /// Removes all files in the pod.
    fn remove_all_files(&self) {
        for entry in fs::read_dir(&self.node.directory).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                fs::remove_dir_all(path).unwrap();
            } else {
                fs::remove_file(path).unwrap();
            }
        }
    }

    fn assert_no_leftovers(&self) {
        for entry in fs::read_dir(&self.node.directory).unwrap() {
            let name = entry.unwrap().file_name();
            let name = name.to_string_lossy();
            assert!(!name.starts_with(".skewbridge"), "{name}");
        }
    }
}

#[tokio::test]
async fn files_and_trees_are_copied_as_kubectl_copies_them() {
    let versions = versions();
    for plane_of in control_planes() {
        let servers: Vec<_> = plane_of
            .iter()
            .map(|version| ServerSpec::of(version))
            .collect();
        let plane = ControlPlane::start(&servers).await;
        let node = plane.start_node().await;
        let others = pods::OtherPods::start(&plane).await;
        for (server, version) in plane_of.iter().enumerate() {
            for via in [Via::Server, Via::Bridge] {
                println!("{version} by {via:?}");
                let way = CopyTarget::open(&plane, &node, server, via).await;
                // All checks run once directly, with the newest version, and once through the
                // bridge, with the oldest version.
                let runs_all_checks = match via {
                    Via::Server => version == newest(&versions),
                    Via::Bridge => version == oldest(&versions),
                };
                if runs_all_checks {
                    check_copies(&way).await;
                } else {
                    // The other versions copy only the tree.
                    let is_oldest_or_newest =
                        [newest(&versions), oldest(&versions)].contains(&version.as_str());
                    if via == Via::Server && !is_oldest_or_newest {
                        a_tree_is_copied_both_ways_despite_cut_connections(&way).await;
                    }
                    results_equal_those_of_kubectl(&way, ComparisonScope::Short).await;
                }
                others.check_copies(&way).await;
                copies_work_through_a_proxy_that_supports_only_websocket(&way, version).await;
            }
        }
    }
}

async fn check_copies(way: &CopyTarget<'_>) {
    a_tree_is_copied_both_ways_despite_cut_connections(way).await;
    let length = match way.via {
        Via::Server => GIGABYTE_BYTES,
        Via::Bridge => FILE_BYTES,
    };
    a_file_is_copied_both_ways_despite_cut_connections(way, length).await;
    results_equal_those_of_kubectl(way, ComparisonScope::Full).await;
    path_traversal_is_skipped(way).await;
    hostile_archives_write_nothing_outside_the_target(way).await;
    failures_are_reported(way).await;
    terminal::progress_is_shown(way).await;
}

/// Ten thousand files, with permissions, times and links.
async fn a_tree_is_copied_both_ways_despite_cut_connections(way: &CopyTarget<'_>) {
    let scratch = ScratchDir::new();
    let tree = scratch.path().join("tree");
    for directory in 0..100 {
        let path = tree.join(format!("d{directory}"));
        fs::create_dir_all(&path).unwrap();
        for file in 0..100 {
            let contents = format!("{directory}/{file}\n").repeat(file);
            fs::write(path.join(format!("f{file}")), contents).unwrap();
        }
    }
    fs::write(tree.join("program"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.join("program"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("d7/f7", tree.join("link")).unwrap();
    let (local, remote) = (tree.display().to_string(), way.remote("tree"));
    let whole = listing(&tree);

    way.cutting.cut_after(HALF_TREE_BYTES);
    way.cp_ok(&["--retries=3", &local, &remote]).await;
    assert!(way.cutting.has_cut(), "a tree to the pod was not cut");
    assert_same(&way.in_pod("tree"), &whole, "to the pod");
    way.assert_no_leftovers();

    let back = scratch.path().join("back");
    way.cutting.cut_after(HALF_TREE_BYTES);
    way.cp_ok(&["--retries=3", &remote, &back.display().to_string()])
        .await;
    assert!(way.cutting.has_cut(), "a tree from the pod was not cut");
    assert_same(&back, &whole, "from the pod");
    fs::remove_dir_all(way.in_pod("tree")).unwrap();
}

/// A cut is never reported as success, unless the copy is resumed.
async fn a_file_is_copied_both_ways_despite_cut_connections(way: &CopyTarget<'_>, length: u64) {
    let scratch = ScratchDir::new();
    let original = scratch.path().join("large");
    write_noise(&original, length);
    let (local, remote) = (original.display().to_string(), way.remote("large"));
    let half = length / 2;

    way.cutting.cut_after(HALF_FILE_BYTES);
    let output = way.cp(&[&local, &remote]).await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.stderr.contains("the connection was lost"),
        "{output:?}"
    );
    assert!(!way.in_pod("large").exists());

    way.cutting.cut_after(half);
    way.cp_ok(&["--retries=3", &local, &remote]).await;
    assert!(way.cutting.has_cut(), "a file to the pod was not cut");
    assert!(same_content(&original, &way.in_pod("large")), "to the pod");
    let times = [&original, &way.in_pod("large")].map(|path| path.metadata().unwrap().mtime());
    assert_eq!(times[0], times[1]);
    // Both files are equal, so one can be removed to save disk space.
    fs::remove_file(&original).unwrap();

    let back = scratch.path().join("back");
    way.cutting.cut_after(half);
    let output = way
        .cp(&["--retries=3", &remote, &back.display().to_string()])
        .await;
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.stderr.contains("resuming at byte"), "{output:?}");
    assert!(same_content(&way.in_pod("large"), &back), "from the pod");
    assert_eq!(back.metadata().unwrap().mtime(), times[0]);
    way.remove_all_files();
}

/// The extent of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ComparisonScope {
    /// A tree and a file, to the pod and back.
    Short,
    /// All rules for target names.
    Full,
}

/// Names and contents; kubectl preserves neither times nor permissions from a pod.
async fn results_equal_those_of_kubectl(way: &CopyTarget<'_>, extent: ComparisonScope) {
    let scratch = ScratchDir::new();
    let tree = scratch.path().join("some tree");
    fs::create_dir_all(tree.join("a/b c")).unwrap();
    fs::write(tree.join("a/b c/d"), "d").unwrap();
    fs::write(tree.join("e"), vec![7; 100_000]).unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "file").unwrap();
    fs::create_dir(way.in_pod("dir")).unwrap();
    let name = |path: &Path| path.display().to_string();
    // Source and destination, each below the pod's directory.
    let up: &[(&Path, &str)] = match extent {
        ComparisonScope::Short => &[(&tree, "new"), (&file, "dir")],
        ComparisonScope::Full => &[
            (&tree, "new"),
            (&tree, "dir"),
            (&file, "dir"),
            (&file, "dir/other"),
            (&file, "alone"),
        ],
    };
    let down: &[&str] = match extent {
        ComparisonScope::Short => &["new", "dir/file"],
        ComparisonScope::Full => &["new", "dir", "dir/other", "alone"],
    };
    let mut found = Vec::new();
    for ours in [false, true] {
        for (from, to) in up {
            let (from, remote) = (name(from), way.remote(to));
            if ours {
                way.cp_ok(&[&from, &remote]).await;
            } else {
                kubectl(way, &[&from, &remote]).await;
            }
        }
        let local = scratch.path().join(if ours { "ours" } else { "theirs" });
        for from in down {
            let (remote, to) = (way.remote(from), name(&local.join(from)));
            if ours {
                way.cp_ok(&[&remote, &to]).await;
            } else {
                kubectl(way, &[&remote, &to]).await;
            }
        }
        let contents = |root: &Path| {
            let entries = listing(root).into_iter();
            entries.map(|it| (it.name, it.what)).collect::<Vec<_>>()
        };
        found.push((contents(&way.node.directory), contents(&local)));
        way.remove_all_files();
        fs::create_dir(way.in_pod("dir")).unwrap();
    }
    way.remove_all_files();
    assert!(!found[0].0.is_empty() && !found[0].1.is_empty());
    assert_eq!(found[0], found[1]);
}

/// To the pod and back, through an nginx that forwards no other upgrade.
async fn copies_work_through_a_proxy_that_supports_only_websocket(
    way: &CopyTarget<'_>,
    version: &str,
) {
    let scratch = ScratchDir::new();
    let tree = scratch.path().join("tree");
    fs::create_dir_all(tree.join("a")).unwrap();
    write_noise(&tree.join("a/file"), 300_000);
    let back = scratch.path().join("back");
    let nginx = way
        .plane
        .start_nginx(way.plane.servers[way.server].at(way.via));
    let nginx = nginx.await;
    let copy = async |from: &str, to: &str| {
        let mut command = way.plane.skewbridge_at(&nginx.kubeconfig);
        command.args(["cp", "-v=1", "-n", Node::NAMESPACE, from, to]);
        let output = timeout(COMMAND_TIMEOUT, command.output()).await;
        let output = output.expect("it hangs").unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), stderr)
    };
    let (local, remote) = (tree.display().to_string(), way.remote("by-nginx"));
    let (code, stderr) = copy(&local, &remote).await;
    if way.via == Via::Server && !is_since(version, 30) {
        // This kubectl supports only SPDY, which the proxy does not forward.
        assert_eq!(code, Some(1), "{stderr}");
        assert!(!way.in_pod("by-nginx").exists());
        return;
    }
    let expected = (Some(0), "skewbridge: using WebSocket\n".to_owned());
    assert_eq!((code, stderr), expected, "{version} {:?}", way.via);
    assert_eq!(copy(&remote, &back.display().to_string()).await, expected);
    let whole = listing(&tree);
    assert_eq!(listing(&way.in_pod("by-nginx")), whole);
    assert_eq!(listing(&back), whole);
    way.remove_all_files();
}

async fn kubectl(way: &CopyTarget<'_>, words: &[&str]) {
    let words = [&["-n", Node::NAMESPACE, "cp"], words].concat();
    let kubectl = way.plane.kubectl(way.server, way.via, User::Admin, &words);
    let output = kubectl.await;
    assert_eq!(output.code, Some(0), "{words:?}: {output:?}");
}

/// Archives of a real tar that attempt path traversal.
async fn path_traversal_is_skipped(way: &CopyTarget<'_>) {
    let scratch = ScratchDir::new();
    let tree = way.in_pod("bad");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("good"), "good").unwrap();
    symlink("/etc/passwd", tree.join("absolute")).unwrap();
    symlink("../../outside", tree.join("parent")).unwrap();
    symlink("good", tree.join("inside")).unwrap();
    fs::hard_link(tree.join("good"), tree.join("hard")).unwrap();
    let pipe = Command::new("mkfifo").arg(tree.join("pipe")).status();
    assert!(pipe.unwrap().success());
    let to = scratch.path().join("to");
    let output = way
        .cp(&[&way.remote("bad"), &to.display().to_string()])
        .await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.stderr.contains("3 entries were not copied"),
        "{output:?}"
    );
    for name in ["absolute", "parent", "pipe"] {
        assert!(output.stderr.contains(name), "{name}: {output:?}");
    }
    let names: Vec<_> = listing(&to).into_iter().map(|it| it.name).collect();
    assert_eq!(names, ["good", "hard", "inside"]);

    // Ten gigabytes of zeros, as a sparse file.
    let zeros = fs::File::create(tree.join("zeros")).unwrap();
    zeros.set_len(10 << 30).unwrap();
    let output = way
        .cp(&[
            "--max-bytes=1Gi",
            &way.remote("bad/zeros"),
            &scratch.path().join("zeros").display().to_string(),
        ])
        .await;
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(output.stderr.contains("10737418240 bytes"), "{output:?}");
    assert!(!scratch.path().join("zeros").exists());
    fs::remove_dir_all(tree).unwrap();
}

/// A tar in the pod that writes arbitrary archives.
async fn hostile_archives_write_nothing_outside_the_target(way: &CopyTarget<'_>) {
    let outside = way.in_pod("evil").display().to_string();
    let file = |name: &str| (Kind::File, name.to_owned(), String::new());
    let link = |kind, name: &str, to: &str| (kind, name.to_owned(), to.to_owned());
    let rows = [
        (vec![file("top/../../evil")], "leads out of the target"),
        (vec![file(&outside)], "is absolute"),
        (
            vec![
                link(Kind::Symlink, "top/link", "inside"),
                file("top/link/evil"),
            ],
            "not followed",
        ),
        (
            vec![link(Kind::HardLink, "top/hard", "top/../../evil")],
            "leads out of the target",
        ),
        (
            vec![
                link(Kind::Character, "top/null", ""),
                link(Kind::Block, "top/disk", ""),
            ],
            "2 entries were not copied",
        ),
    ];
    let bin = way.in_pod("bin");
    fs::create_dir(&bin).unwrap();
    let (program, archive) = (bin.join("tar"), bin.join("archive"));
    write_program(&program, &format!("#!/bin/sh\ncat {}\n", archive.display()));
    for (entries, expected) in rows {
        let mut bytes = Vec::new();
        tar::write_entry(&tar::Entry::new("top/", Kind::Directory), &mut bytes);
        for (kind, name, target) in entries {
            let entry = tar::Entry {
                link: target.into(),
                ..tar::Entry::new(name, kind)
            };
            tar::write_entry(&entry, &mut bytes);
        }
        tar::write_end(&mut bytes);
        fs::write(&archive, bytes).unwrap();
        let scratch = ScratchDir::new();
        let to = scratch.path().join("a/b");
        let output = way
            .cp(&[&way.remote("top"), &to.display().to_string()])
            .await;
        assert_eq!(output.code, Some(1), "{expected}: {output:?}");
        assert!(output.stderr.contains(expected), "{expected}: {output:?}");
        let written = listing(scratch.path());
        let evil = written.iter().any(|entry| entry.name.contains("evil"));
        assert!(
            !evil && !Path::new(&outside).exists(),
            "{expected}: {written:?}"
        );
    }
    fs::remove_dir_all(bin).unwrap();
}

async fn failures_are_reported(way: &CopyTarget<'_>) {
    let scratch = ScratchDir::new();
    let to = scratch.path().join("to").display().to_string();
    let missing = format!("{}:/no/such/file", Node::POD);
    let rows: [(&[&str], &str); 4] = [
        (&["no-such-pod:/x", &to], "pods \"no-such-pod\" not found"),
        (&[&missing, &to], "No such file or directory"),
        (
            &["/no/such/file", &missing],
            "doesn't exist in local filesystem",
        ),
        (&["-c", "no-such", &missing, &to], "no-such"),
    ];
    for (words, expected) in rows {
        let output = way.cp(words).await;
        assert_eq!(output.code, Some(1), "{words:?}: {output:?}");
        assert!(output.stderr.contains(expected), "{words:?}: {output:?}");
    }
}

#[tokio::test]
#[ignore = "long: cargo xtask e2e --all"]
async fn a_gigabyte_is_copied_both_ways_through_a_bridge() {
    let versions = versions();
    let plane = ControlPlane::start(&[ServerSpec::of(oldest(&versions))]).await;
    let node = plane.start_node().await;
    let way = CopyTarget::open(&plane, &node, 0, Via::Bridge).await;
    a_file_is_copied_both_ways_despite_cut_connections(&way, GIGABYTE_BYTES).await;
}

/// A name, its type and content, and its permissions.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Entry {
    name: String,
    what: String,
    mode: u32,
    time: i64,
}

/// Everything below a directory, or a single file.
fn listing(root: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            let status = path.symlink_metadata().unwrap();
            let (what, mode, time) = if status.is_dir() {
                waiting.push(path.clone());
                ("directory".to_owned(), status.mode(), 0)
            } else if status.is_symlink() {
                (path.read_link().unwrap().display().to_string(), 0, 0)
            } else {
                use std::hash::{DefaultHasher, Hasher as _};
                let mut hasher = DefaultHasher::new();
                let contents = fs::read(&path).unwrap();
                hasher.write(&contents);
                let what = format!("{} bytes, {:x}", contents.len(), hasher.finish());
                (what, status.mode(), status.mtime())
            };
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found.push(Entry {
                name,
                what,
                mode,
                time,
            });
        }
    }
    found.sort();
    found
}

/// Asserts equality and reports only the differences.
fn assert_same(root: &Path, expected: &[Entry], which: &str) {
    let found = listing(root);
    let without = |these: &[Entry], others: &[Entry]| {
        let others: HashSet<_> = others.iter().collect();
        let rest = these.iter().filter(|it| !others.contains(it));
        rest.cloned().collect::<Vec<_>>()
    };
    let differs = (without(&found, expected), without(expected, &found));
    assert_eq!(differs, (Vec::new(), Vec::new()), "{which}");
    assert_eq!(found.len(), expected.len(), "{which}");
}

fn same_content(one: &Path, other: &Path) -> bool {
    let compared = Command::new("cmp").args([one, other]).status();
    compared.unwrap().success()
}

/// Writes bytes that reveal a lost, duplicated or misplaced part: repeating noise with a
/// unique number at the beginning of each page. A gigabyte takes a second.
fn write_noise(path: &Path, length: u64) {
    use std::io::Write as _;
    const BLOCK_BYTES: usize = 1 << 20;
    const PAGE_BYTES: usize = 4 << 10;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..BLOCK_BYTES / 8).map(|_| {
        // Marsaglia's xorshift64.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let mut block: Vec<u8> = words.flatten().collect();
    let mut file = fs::File::create(path).unwrap();
    let (mut number, mut left) = (0_u64, length);
    while left > 0 {
        for page in block.chunks_exact_mut(PAGE_BYTES) {
            page[..8].copy_from_slice(&number.to_le_bytes());
            number += 1;
        }
        let wanted = usize::try_from(left).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
        file.write_all(&block[..wanted]).unwrap();
        left -= wanted as u64;
    }
}

/// Written by another process: if this process had the file open for writing while another
/// test forks, the child would inherit it, and the file could not be executed.
fn write_program(path: &Path, script: &str) {
    use std::io::Write as _;
    let mut install = Command::new("install")
        .args(["-m755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = install.stdin.take().unwrap();
    stdin.write_all(script.as_bytes()).unwrap();
    drop(stdin);
    assert!(install.wait().unwrap().success());
}
