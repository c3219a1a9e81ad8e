//! Other pods, in namespaces and on nodes of their own: one like the first, and one that has
//! no tar.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use skewbridge_e2e::{ControlPlane, Node, Programs};
use skewbridge_testkit::ScratchDir;

use super::{HALF_OF_FILE, Way, listing, same, write_noise};

/// The namespace of the one like the first.
const LIKE: &str = "like";
/// And of the one without tar.
const BARE: &str = "bare";

/// What a copy without tar knows of.
const WITHOUT_TAR: [&str; 9] = [
    "cat", "chmod", "cksum", "mv", "rm", "sh", "tail", "test", "wc",
];

/// Names without a slash at their beginning count from a directory of each pod, so what is
/// found there was brought to that pod.
pub(super) struct Others {
    like: Node,
    bare: Node,
}

impl Others {
    pub(super) async fn start(plane: &ControlPlane) -> Self {
        Self {
            like: plane.start_another_node(LIKE, Programs::All).await,
            bare: plane
                .start_another_node(BARE, Programs::Only(&WITHOUT_TAR))
                .await,
        }
    }

    pub(super) async fn judge(&self, way: &Way<'_>) {
        self.pods_are_copied_between(way).await;
        self.without_tar_files_are_copied_by_cat(way).await;
    }

    async fn pods_are_copied_between(&self, way: &Way<'_>) {
        let from = way.in_pod("from");
        fs::create_dir_all(from.join("a/b")).unwrap();
        write_noise(&from.join("a/b/large"), 1 << 20);
        fs::write(from.join("small"), "small").unwrap();
        fs::set_permissions(from.join("small"), fs::Permissions::from_mode(0o750)).unwrap();
        symlink("a/b/large", from.join("link")).unwrap();
        let (here, there) = (Node::POD, format!("{LIKE}/{}", Node::POD));
        let rows = [
            (format!("{here}:from"), format!("{there}:to")),
            (format!("{there}:to"), format!("{here}:back")),
            (format!("{there}:to/small"), format!("{here}:back/other")),
            // Within one of them.
            (format!("{here}:from"), format!("{here}:again")),
        ];
        for (from, to) in &rows {
            way.copies(&[from, to]).await;
        }
        let other = way.in_pod("back/other");
        assert!(same(&other, &from.join("small")));
        fs::remove_file(other).unwrap();
        let there = self.like.directory.join("to");
        for to in [&there, &way.in_pod("back"), &way.in_pod("again")] {
            assert_eq!(listing(to), listing(&from), "{}", to.display());
        }
        fs::remove_dir_all(there).unwrap();
        assert_eq!(fs::read_dir(&self.like.directory).unwrap().count(), 0);
        way.no_leftovers();
        way.empty();
    }

    async fn without_tar_files_are_copied_by_cat(&self, way: &Way<'_>) {
        let scratch = ScratchDir::new();
        let original = scratch.path().join("file");
        write_noise(&original, 2 * HALF_OF_FILE);
        let remote = format!("{BARE}/{}:file", Node::POD);
        let there = self.bare.directory.join("file");
        let local = original.display().to_string();
        way.copies(&[&local, &remote]).await;
        assert!(same(&original, &there), "to the pod");

        let back = scratch.path().join("back");
        way.cutting.cut_after(HALF_OF_FILE);
        let words = ["--retries=3", &remote, &back.display().to_string()];
        let output = way.cp(&words).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        for expected in ["there is no tar in the container", "resuming at byte"] {
            assert!(output.stderr.contains(expected), "{output:?}");
        }
        assert!(same(&there, &back), "from the pod");

        // A tree needs it.
        let tree = scratch.path().display().to_string();
        let output = way.cp(&[&tree, &remote.replace("file", "tree")]).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        let expected = "there is no tar in the container";
        assert!(output.stderr.contains(expected), "{output:?}");
        fs::remove_file(there).unwrap();
        let left: Vec<_> = fs::read_dir(&self.bare.directory).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
