//! `skewbridge manifest rbac`: the rights of the bridge's own user.

use super::output::{GeneratedFile, Mode};

/// Roles and bindings.
pub(crate) const MANIFEST: &str = include_str!("rbac.yaml");

pub(super) fn manifest() -> GeneratedFile {
    GeneratedFile {
        name: "rbac.yaml",
        mode: Mode::Readable,
        text: MANIFEST.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/rbac.md");

    #[test]
    fn the_manifest_is_that_of_the_documentation() {
        let (_, rest) = PAGE.split_once("```yaml\n").unwrap();
        let (documented, _) = rest.split_once("```").unwrap();
        assert_eq!(manifest().text, documented);
    }
}
