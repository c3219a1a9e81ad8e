//! Group and version in OpenAPI documents.

use std::fmt;

/// A version of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupVersion<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// `v1`
    pub version: &'a str,
}

impl<'a> GroupVersion<'a> {
    /// From a key of the index: `api/v1`, `apis/apps/v1`. `None` for other keys (`version`,
    /// `apis/apps`).
    pub fn from_key(key: &'a str) -> Option<Self> {
        let mut segments = key.split('/');
        let found = Self::parse_segments(&mut segments)?;
        segments.next().is_none().then_some(found)
    }

    /// From a path in a document: `/apis/apps/v1/deployments`. `None` for paths outside of a
    /// version (`/version/`, `/apis/apps/`).
    pub fn from_path(path: &'a str) -> Option<Self> {
        Self::parse_segments(&mut path.strip_prefix('/')?.split('/'))
    }

    fn parse_segments(segments: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let group = match segments.next()? {
            "api" => "",
            "apis" => segments.next().filter(|group| is_name(group))?,
            _ => return None,
        };
        let version = segments.next().filter(|version| is_name(version))?;
        Some(Self { group, version })
    }
}

/// Groups and versions are DNS names. This also keeps a peer from adding `..` or `?` to URLs
/// for clients.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
}

/// As in the index: `api/v1`, `apis/apps/v1`.
impl fmt::Display for GroupVersion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.group {
            "" => write!(f, "api/{}", self.version),
            group => write!(f, "apis/{group}/{}", self.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_group_versions_are_parsed() {
        for (key, expected) in [
            ("api/v1", Some(("", "v1"))),
            ("apis/apps/v1", Some(("apps", "v1"))),
            (
                "apis/storage.k8s.io/v1alpha1",
                Some(("storage.k8s.io", "v1alpha1")),
            ),
            ("", None),
            ("api", None),
            ("apis", None),
            ("apis/apps", None),
            ("apis/apps/", None),
            ("apis//v1", None),
            ("apis/apps/v1/deployments", None),
            ("api/v1/pods", None),
            ("/api/v1", None),
            ("version", None),
            (".well-known/openid-configuration", None),
            ("apis/../v1", None),
            ("apis/a?b/v1", None),
            ("apis/apps/v1?hash=1", None),
            ("apis/äpps/v1", None),
        ] {
            let found = GroupVersion::from_key(key);
            let pair = found.map(|it| (it.group, it.version));
            assert_eq!(pair, expected, "{key}");
            if let Some(found) = found {
                assert_eq!(found.to_string(), key);
            }
        }
    }

    #[test]
    fn paths_below_a_group_version_belong_to_it() {
        for (path, expected) in [
            ("/api/v1/", Some(("", "v1"))),
            ("/api/v1/namespaces/{namespace}/pods", Some(("", "v1"))),
            ("/apis/apps/v1/", Some(("apps", "v1"))),
            ("/apis/apps/v1/watch/deployments", Some(("apps", "v1"))),
            ("/api/", None),
            ("/apis/apps/", None),
            ("/version/", None),
            ("/openid/v1/jwks/", None),
            ("apis/apps/v1", None),
            ("", None),
        ] {
            let found = GroupVersion::from_path(path).map(|it| (it.group, it.version));
            assert_eq!(found, expected, "{path}");
        }
    }
}
