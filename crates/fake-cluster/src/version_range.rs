//! Ranges of releases.

use crate::catalogue::Release;

/// From a release (inclusive) to another (exclusive).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct VersionRange {
    from: Option<Release>,
    before: Option<Release>,
}

impl VersionRange {
    /// `1.34`: since then; `<1.34`: before; empty: always.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let release = |name| Release::named(name).map(Some);
        Some(match text.strip_prefix('<') {
            Some(name) => Self {
                from: None,
                before: release(name)?,
            },
            None if text.is_empty() => Self::default(),
            None => Self {
                from: release(text)?,
                before: None,
            },
        })
    }

    pub(crate) fn contains(self, release: Release) -> bool {
        self.from.is_none_or(|from| from <= release)
            && self.before.is_none_or(|before| release < before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_ranges_contain_their_releases() {
        let rows = [
            ("", Some([true, true, true])),
            ("1.34", Some([false, true, true])),
            ("<1.36", Some([true, true, false])),
            ("1.35", None),
            ("!", None),
        ];
        for (text, expected) in rows {
            let span = VersionRange::parse(text);
            let got = span.map(|it| Release::ALL.map(|release| it.contains(release)));
            assert_eq!(got, expected, "{text}");
        }
    }
}
