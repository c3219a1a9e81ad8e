//! Test trees and their listings.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

/// The shape of a test tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TreeShape {
    /// A few files in a few blocks.
    Tiny,
    /// Every kind of file that can be copied.
    Small,
    /// More than ten thousand files.
    Many,
}

pub(crate) fn create_tree(root: &Path, shape: TreeShape) {
    let write = |name: &str, contents: &[u8]| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    };
    match shape {
        TreeShape::Tiny => {
            write("a", b"one");
            write("b/c", &random_bytes(1500));
            write("b/d", b"");
        }
        TreeShape::Small => {
            write("plain", b"contents");
            write("empty", b"");
            write("large", &random_bytes(3 << 20));
            write("dir/with spaces/and 'quotes' \"too\"", b"x");
            write("dir/-rf", b"no flag");
            write("dir/grüße\n", b"newline");
            write(&format!("{0}/{0}/{0}", "long".repeat(30)), b"long");
            std::fs::create_dir(root.join("nothing")).unwrap();
            symlink("../plain", root.join("dir/link")).unwrap();
            symlink("missing", root.join("dangling")).unwrap();
            std::fs::hard_link(root.join("plain"), root.join("same")).unwrap();
            let program = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(root.join("plain"), program).unwrap();
        }
        TreeShape::Many => {
            for directory in 0..100 {
                for file in 0..100 {
                    let name = format!("d{directory}/f{file}");
                    write(&name, format!("{name}\n").repeat(file + 1).as_bytes());
                }
            }
            write("last", b"x");
        }
    }
}

/// All names below a directory, with permissions and contents.
pub(crate) fn listing(root: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut waiting = vec![root.to_path_buf()];
    while let Some(next) = waiting.pop() {
        let Ok(entries) = std::fs::read_dir(next) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            let status = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            let mode = status.permissions().mode() & 0o777;
            let what = if status.is_dir() {
                waiting.push(path);
                "/".to_owned()
            } else if status.is_symlink() {
                format!("-> {}", path.read_link().unwrap().display())
            } else {
                use std::os::unix::fs::MetadataExt as _;
                let contents = std::fs::read(&path).unwrap();
                format!("{mode:o} {} {}", status.mtime(), digest(&contents))
            };
            found.push((name, what));
        }
    }
    found.sort();
    found
}

fn digest(bytes: &[u8]) -> String {
    use std::hash::{DefaultHasher, Hasher as _};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    format!("{} {:016x}", bytes.len(), hasher.finish())
}

/// Pseudo-random bytes.
pub(crate) fn random_bytes(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
