//! Parsing of copy sources and targets, and the names of files at their destination.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use super::error::Error;
use super::path_containment::RequestedRoot;

/// A local path, or a path in a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopySpec {
    /// A local path.
    Local(PathBuf),
    /// A path in a pod.
    Pod {
        /// The namespace, if given.
        namespace: Option<String>,
        /// The pod.
        pod: String,
        /// The path, absolute or relative to the container's working directory.
        path: String,
    },
}

/// A path in a container, as two arguments for tar: the directory, and the name in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemotePath {
    /// The directory.
    pub(super) directory: String,
    /// The name in it; `None` means all of its contents.
    pub(super) base: Option<String>,
}

/// Where a download goes.
#[derive(Debug, Clone)]
pub(super) struct Destination {
    path: PathBuf,
    /// Whether the path is a directory, or has a trailing slash.
    is_directory_target: bool,
}

impl CopySpec {
    /// Parses `[[namespace/]pod:]path`. A path that begins with `/`, `./` or `../` is local,
    /// whatever follows.
    pub fn parse(text: &str) -> Result<Self, Error> {
        const INVALID_FORMAT: Error = Error::InvalidSpec(
            "filespec must match the canonical format: [[namespace/]pod:]file/path",
        );
        const EMPTY_PATH: Error = Error::InvalidSpec("filepath can not be empty");
        let is_local = ["/", "./", "../"].iter().any(|it| text.starts_with(it));
        let Some((pod, path)) = text.split_once(':').filter(|_| !is_local) else {
            return if text.is_empty() {
                Err(EMPTY_PATH)
            } else {
                Ok(Self::Local(text.into()))
            };
        };
        let (namespace, pod) = match pod.split_once('/') {
            None => (None, pod),
            Some((namespace, pod)) => (Some(namespace.to_owned()), pod),
        };
        if pod.is_empty() || pod.contains('/') || namespace.as_deref() == Some("") {
            return Err(INVALID_FORMAT);
        }
        if path.is_empty() {
            return Err(EMPTY_PATH);
        }
        Ok(Self::Pod {
            namespace,
            pod: pod.to_owned(),
            path: path.to_owned(),
        })
    }
}

impl RemotePath {
    /// Splits a path so that no argument looks like a flag.
    pub(super) fn new(path: &str) -> Self {
        let trimmed = path.trim_end_matches('/');
        let is_directory = trimmed.len() < path.len();
        if trimmed.is_empty() {
            return Self {
                directory: "/".to_owned(),
                base: None,
            };
        }
        let (parent, base) = match trimmed.rsplit_once('/') {
            None => (".", trimmed),
            Some(("", base)) => ("/", base),
            Some((parent, base)) => (parent, base),
        };
        if is_directory || base == "." || base == ".." {
            return Self {
                directory: not_a_flag(trimmed),
                base: None,
            };
        }
        Self {
            directory: not_a_flag(parent),
            base: Some(base.to_owned()),
        }
    }

    /// The argument for tar.
    pub(super) fn tar_argument(&self) -> String {
        match &self.base {
            Some(base) => format!("./{base}"),
            None => ".".to_owned(),
        }
    }

    /// The full path, as an argument that does not look like a flag.
    pub(super) fn full_path(&self) -> String {
        match &self.base {
            Some(base) if self.directory == "/" => format!("/{base}"),
            Some(base) => format!("{}/{base}", self.directory),
            None => self.directory.clone(),
        }
    }

    pub(super) fn root(&self) -> RequestedRoot {
        match &self.base {
            Some(base) => RequestedRoot::Named(base.clone().into_bytes()),
            None => RequestedRoot::Contents,
        }
    }
}

fn not_a_flag(path: &str) -> String {
    if path.starts_with('-') {
        format!("./{path}")
    } else {
        path.to_owned()
    }
}

impl Destination {
    pub(super) fn new(path: &Path) -> Self {
        let text = path.as_os_str().as_bytes();
        let ends_with = |end: &[u8]| text.ends_with(end);
        let is_directory_target =
            path.is_dir() || ends_with(b"/") || ends_with(b"/.") || ends_with(b"/..");
        Self {
            path: path.to_path_buf(),
            is_directory_target,
        }
    }

    /// The directory for a directory's contents, as in kubectl.
    pub(super) fn directory(&self) -> &Path {
        &self.path
    }

    /// Where a file goes: its directory and its name.
    pub(super) fn file(&self, root: &RequestedRoot) -> Result<(PathBuf, Vec<u8>), Error> {
        if self.is_directory_target {
            return match root {
                RequestedRoot::Named(name) => Ok((self.path.clone(), name.clone())),
                RequestedRoot::Contents => Err(Error::Unexpected(
                    "a directory was requested, but the path is a file".to_owned(),
                )),
            };
        }
        let name = self.path.file_name().unwrap_or(OsStr::new("."));
        let parent = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        Ok((parent, name.as_bytes().to_vec()))
    }
}

/// The name of a local file or directory. `None` means that only its contents are copied: `.`, `..`
/// and `/` have no name that can be used in the target.
pub(super) fn local_name(path: &Path) -> Option<Vec<u8>> {
    match path.components().next_back() {
        // `dir/.` is `dir` to this iterator, and means its contents.
        _ if path.as_os_str().as_bytes().ends_with(b"/.") => None,
        Some(Component::Normal(name)) => Some(name.to_os_string().into_vec()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_specs_are_parsed_as_kubectl_does() {
        let local = |path: &str| Ok(CopySpec::Local(path.into()));
        let pod = |namespace: Option<&str>, pod: &str, path: &str| {
            Ok(CopySpec::Pod {
                namespace: namespace.map(str::to_owned),
                pod: pod.to_owned(),
                path: path.to_owned(),
            })
        };
        let format = "filespec must match the canonical format: [[namespace/]pod:]file/path";
        let empty = "filepath can not be empty";
        let rows = [
            ("file", local("file")),
            ("dir/file", local("dir/file")),
            ("/tmp/a:b", local("/tmp/a:b")),
            ("./a:b", local("./a:b")),
            ("../a:b", local("../a:b")),
            ("pod:/tmp/a", pod(None, "pod", "/tmp/a")),
            ("pod:a:b", pod(None, "pod", "a:b")),
            ("ns/pod:/tmp/a", pod(Some("ns"), "pod", "/tmp/a")),
            ("pod:.", pod(None, "pod", ".")),
            ("", Err(empty)),
            ("pod:", Err(empty)),
            (":/tmp/a", Err(format)),
            ("/:a", local("/:a")),
            ("ns/:a", Err(format)),
            ("a/b/c:d", Err(format)),
        ];
        for (text, expected) in rows {
            let read = CopySpec::parse(text).map_err(|error| error.to_string());
            assert_eq!(read, expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn a_remote_path_is_split_into_arguments_that_are_not_flags() {
        let rows = [
            ("/tmp/a", "/tmp", Some("a")),
            ("/a", "/", Some("a")),
            ("a", ".", Some("a")),
            ("-rf", ".", Some("-rf")),
            ("-d/-f", "./-d", Some("-f")),
            ("a/b", "a", Some("b")),
            ("/tmp/a/", "/tmp/a", None),
            ("/tmp/a//", "/tmp/a", None),
            ("/tmp/a/.", "/tmp/a/.", None),
            ("..", "..", None),
            (".", ".", None),
            ("/", "/", None),
            ("../../a", "../..", Some("a")),
        ];
        for (path, directory, base) in rows {
            let expected = RemotePath {
                directory: directory.to_owned(),
                base: base.map(str::to_owned),
            };
            assert_eq!(RemotePath::new(path), expected, "{path}");
        }
    }

    #[test]
    fn the_name_of_a_local_path_is_its_last_component() {
        let rows = [
            ("a", Some("a")),
            ("a/b", Some("b")),
            ("a/b/", Some("b")),
            ("a/b/.", None),
            (".", None),
            ("..", None),
            ("/", None),
            ("a/..", None),
        ];
        for (path, expected) in rows {
            let expected = expected.map(|name| name.as_bytes().to_vec());
            assert_eq!(local_name(Path::new(path)), expected, "{path}");
        }
    }
}
