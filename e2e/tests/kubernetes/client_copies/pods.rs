//! Other pods, in their own namespaces and on their own nodes: one like the first, and one
//! without tar.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use skewbridge_e2e::{ControlPlane, Node, Programs};
use skewbridge_testkit::ScratchDir;

use super::{CopyTarget, HALF_FILE_BYTES, listing, same_content, write_noise};

/// The namespace of the pod that is like the first.
const SIMILAR_NAMESPACE: &str = "like";
/// The namespace of the pod without tar.
const NO_TAR_NAMESPACE: &str = "bare";

/// The programs that a copy without tar uses.
const PROGRAMS_WITHOUT_TAR: [&str; 9] = [
    "cat", "chmod", "cksum", "mv", "rm", "sh", "tail", "test", "wc",
];

/// Relative names are resolved against a directory of each pod, so a file there was copied
/// to that pod.
pub(super) struct OtherPods {
    like: Node,
    bare: Node,
}

impl OtherPods {
    pub(super) async fn start(plane: &ControlPlane) -> Self {
        Self {
            like: plane
                .start_another_node(SIMILAR_NAMESPACE, Programs::All)
                .await,
            bare: plane
                .start_another_node(NO_TAR_NAMESPACE, Programs::Only(&PROGRAMS_WITHOUT_TAR))
                .await,
        }
    }

    pub(super) async fn check_copies(&self, way: &CopyTarget<'_>) {
        self.files_are_copied_between_pods(way).await;
        self.files_are_copied_with_cat_without_tar(way).await;
    }

    async fn files_are_copied_between_pods(&self, way: &CopyTarget<'_>) {
        let from = way.in_pod("from");
        fs::create_dir_all(from.join("a/b")).unwrap();
        write_noise(&from.join("a/b/large"), 1 << 20);
        fs::write(from.join("small"), "small").unwrap();
        fs::set_permissions(from.join("small"), fs::Permissions::from_mode(0o750)).unwrap();
        symlink("a/b/large", from.join("link")).unwrap();
        let (first_pod, similar_pod) = (Node::POD, format!("{SIMILAR_NAMESPACE}/{}", Node::POD));
        let rows = [
            (format!("{first_pod}:from"), format!("{similar_pod}:to")),
            (format!("{similar_pod}:to"), format!("{first_pod}:back")),
            (
                format!("{similar_pod}:to/small"),
                format!("{first_pod}:back/other"),
            ),
            // Within one pod.
            (format!("{first_pod}:from"), format!("{first_pod}:again")),
        ];
        for (from, to) in &rows {
            way.cp_ok(&[from, to]).await;
        }
        let other = way.in_pod("back/other");
        assert!(same_content(&other, &from.join("small")));
        fs::remove_file(other).unwrap();
        let copied_tree = self.like.directory.join("to");
        for to in [&copied_tree, &way.in_pod("back"), &way.in_pod("again")] {
            assert_eq!(listing(to), listing(&from), "{}", to.display());
        }
        fs::remove_dir_all(copied_tree).unwrap();
        assert_eq!(fs::read_dir(&self.like.directory).unwrap().count(), 0);
        way.assert_no_leftovers();
        way.remove_all_files();
    }

    async fn files_are_copied_with_cat_without_tar(&self, way: &CopyTarget<'_>) {
        let scratch = ScratchDir::new();
        let original = scratch.path().join("file");
        write_noise(&original, 2 * HALF_FILE_BYTES);
        let remote = format!("{NO_TAR_NAMESPACE}/{}:file", Node::POD);
        let remote_file = self.bare.directory.join("file");
        let local = original.display().to_string();
        way.cp_ok(&[&local, &remote]).await;
        assert!(same_content(&original, &remote_file), "to the pod");

        let back = scratch.path().join("back");
        way.cutting.cut_after(HALF_FILE_BYTES);
        let words = ["--retries=3", &remote, &back.display().to_string()];
        let output = way.cp(&words).await;
        assert_eq!(output.code, Some(0), "{output:?}");
        for expected in ["there is no tar in the container", "resuming at byte"] {
            assert!(output.stderr.contains(expected), "{output:?}");
        }
        assert!(same_content(&remote_file, &back), "from the pod");

        // A tree needs tar.
        let tree = scratch.path().display().to_string();
        let output = way.cp(&[&tree, &remote.replace("file", "tree")]).await;
        assert_eq!(output.code, Some(1), "{output:?}");
        let expected = "there is no tar in the container";
        assert!(output.stderr.contains(expected), "{output:?}");
        fs::remove_file(remote_file).unwrap();
        let left: Vec<_> = fs::read_dir(&self.bare.directory).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
