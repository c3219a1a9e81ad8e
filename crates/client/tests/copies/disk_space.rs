//! Copies to a disk that is nearly full.

use std::path::PathBuf;
use std::process::Command;

use skewbridge_client::copy::Error;
use skewbridge_testkit::ScratchDir;

use crate::download;
use crate::fake_container::FakeContainer;
use crate::test_tree::{listing, random_bytes};

const MIB: usize = 1 << 20;

/// A mounted file system, unmounted on drop.
struct Disk {
    scratch: ScratchDir,
}

impl Disk {
    /// Mounts a file system of this size. Mounting needs root and is not possible on every machine:
    /// if it fails, the reason is printed and the test is skipped.
    fn of(bytes: usize) -> Option<Self> {
        let disk = Self {
            scratch: ScratchDir::new(),
        };
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
            .arg(disk.scratch.path())
            .status();
        if mounted.is_ok_and(|mounted| mounted.success()) {
            return Some(disk);
        }
        eprintln!("skipped: a disk cannot be mounted here");
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let mut unmount = Command::new("umount");
        unmount.arg("--lazy").arg(self.scratch.path());
        // It may not have been mounted.
        let _ = unmount.stderr(std::process::Stdio::null()).status();
    }
}

#[tokio::test]
async fn a_copy_is_replaced_where_it_does_not_fit_twice() {
    // Twice 8 MiB, the reserve of 16 MiB, and 10 MiB for one file at a time.
    let Some(disk) = Disk::of(42 * MIB) else {
        return;
    };
    let container = FakeContainer::new();
    let tree = container.root().join("tree");
    std::fs::create_dir(&tree).unwrap();
    for name in ["a", "b"] {
        std::fs::write(tree.join(name), random_bytes(8 * MIB)).unwrap();
    }
    let to = disk.path("to");
    for _ in 0..3 {
        download(&container, "tree", &to, 0).await.unwrap();
    }
    assert_eq!(listing(&to), listing(&tree));
}

#[tokio::test]
async fn a_file_larger_than_the_free_space_is_rejected_and_the_rest_stays() {
    let Some(disk) = Disk::of(24 * MIB) else {
        return;
    };
    let container = FakeContainer::new();
    std::fs::write(container.root().join("small"), random_bytes(7 * MIB)).unwrap();
    // A sparse file.
    let zeros = std::fs::File::create(container.root().join("zeros")).unwrap();
    zeros.set_len(10 << 30).unwrap();
    download(&container, "small", &disk.path("small"), 0)
        .await
        .unwrap();
    for name in ["zeros", "small"] {
        let to = disk.path("other");
        let error = download(&container, name, &to, 0).await.unwrap_err();
        let Error::NoSpace {
            available, limit, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert!(
            *limit == "the free space" && *available <= MIB as u64,
            "{error}"
        );
        assert!(error.to_string().contains("nothing of it was written"));
        let names = listing(disk.scratch.path());
        assert_eq!(names.len(), 1, "{names:?}");
    }
}
