//! Keeps the names of an archive inside the target.
//!
//! There are three rules. A name has no `..`, does not begin with `/`, and is below the requested
//! path ([`relative_parts`]). A symlink is created only if its target begins with at most as many
//! `..` as there are directories above it inside the target, and has none after that
//! ([`symlink_stays_inside`]): `a/b/../../..` stays inside as text, but not if `b` is itself a
//! symlink. And nothing is ever opened through a symlink (`target_tree`), whether the archive or
//! another program has created it.

/// The requested path: the first component of every name in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedRoot {
    /// A file or directory of this name.
    Named(Vec<u8>),
    /// The contents of a directory, by `.`.
    Contents,
}

/// How a name escapes from the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathEscape {
    /// It begins with `/`.
    Absolute,
    /// It contains `..`.
    Parent,
    /// It is not below the requested path.
    OutsideRequested,
}

/// The components of a name below the root; none for the root itself.
pub fn relative_parts<'a>(
    top: &RequestedRoot,
    name: &'a [u8],
) -> Result<Vec<&'a [u8]>, PathEscape> {
    if name.starts_with(b"/") {
        return Err(PathEscape::Absolute);
    }
    let mut parts = Vec::new();
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(PathEscape::Parent),
            part => parts.push(part),
        }
    }
    match top {
        RequestedRoot::Contents => Ok(parts),
        RequestedRoot::Named(expected) => match parts.first() {
            Some(first) if first == expected => {
                parts.remove(0);
                Ok(parts)
            }
            _ => Err(PathEscape::OutsideRequested),
        },
    }
}

/// Whether a symlink at this depth below the target leads to nothing outside of it, whatever
/// other such symlinks its target passes through.
pub fn symlink_stays_inside(depth: usize, target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") {
        return false;
    }
    let (mut parents, mut has_named_part) = (0, false);
    for part in target.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if has_named_part => return false,
            b".." => parents += 1,
            _ => has_named_part = true,
        }
    }
    parents <= depth
}

/// A name for display: an archive must not control the terminal.
pub fn printable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    if text.chars().any(is_control_or_bidi) {
        text.escape_debug().to_string()
    } else {
        text.into_owned()
    }
}

/// Characters that move the cursor, change colours, or change the text direction.
fn is_control_or_bidi(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The same for several lines.
pub fn printable_lines(text: &[u8]) -> String {
    let lines = text.split(|&byte| byte == b'\n').map(printable);
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_stay_below_the_requested_root() {
        use PathEscape::{Absolute, OutsideRequested, Parent};
        type Row<'a> = (
            &'a RequestedRoot,
            &'a str,
            Result<&'a [&'a str], PathEscape>,
        );
        let named = RequestedRoot::Named(b"top".to_vec());
        let rows: [Row<'_>; 22] = [
            (&named, "top", Ok(&[])),
            (&named, "top/", Ok(&[])),
            (&named, "./top", Ok(&[])),
            (&named, "top/a", Ok(&["a"])),
            (&named, "top//a/./b/", Ok(&["a", "b"])),
            (&named, "./top/...", Ok(&["..."])),
            (&named, "top/ ..", Ok(&[" .."])),
            (&named, "top/a\\..\\b", Ok(&["a\\..\\b"])),
            (&named, "topper/a", Err(OutsideRequested)),
            (&named, "a/top", Err(OutsideRequested)),
            (&named, "Top/a", Err(OutsideRequested)),
            (&named, ".", Err(OutsideRequested)),
            (&named, "", Err(OutsideRequested)),
            (&named, "/top/a", Err(Absolute)),
            (&named, "//top", Err(Absolute)),
            (&named, "../top", Err(Parent)),
            (&named, "top/..", Err(Parent)),
            (&named, "top/../../etc/passwd", Err(Parent)),
            (&named, "top/a/..", Err(Parent)),
            (&RequestedRoot::Contents, ".", Ok(&[])),
            (&RequestedRoot::Contents, "./a/b", Ok(&["a", "b"])),
            (&RequestedRoot::Contents, "./..", Err(Parent)),
        ];
        for (top, name, expected) in rows {
            let parts = relative_parts(top, name.as_bytes());
            let expected = expected.map(|parts| parts.iter().map(|it| it.as_bytes()).collect());
            assert_eq!(parts, expected, "{name}");
        }
    }

    #[test]
    fn symlinks_do_not_lead_outside() {
        let rows = [
            (0, "a", true),
            (0, "./a/b", true),
            (0, ".", true),
            (0, "..", false),
            (0, "../target/a", false),
            (1, "..", true),
            (1, "../a", true),
            (1, "../../a", false),
            (2, "../../a", true),
            (2, "./.././../a", true),
            // Inside as text, but not if b is a symlink.
            (2, "b/..", false),
            (2, "a/../b", false),
            (9, "/", false),
            (9, "/etc/passwd", false),
            (9, "//a", false),
            (9, "", false),
            (0, "...", true),
        ];
        for (depth, target, expected) in rows {
            assert_eq!(
                symlink_stays_inside(depth, target.as_bytes()),
                expected,
                "{depth} {target}"
            );
        }
    }

    #[test]
    fn names_do_not_control_terminals() {
        assert_eq!(printable("grüße/a".as_bytes()), "grüße/a");
        assert_eq!(printable(b"a\x1b[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(printable("a\u{202e}b".as_bytes()), "a\\u{202e}b");
        assert_eq!(printable_lines(b"a\r\nb\x9b\n"), "a\\r\nb\u{fffd}");
    }

    proptest! {
        #[test]
        fn no_component_of_a_name_leads_up(name in "[./a]{0,12}") {
            if let Ok(parts) = relative_parts(&RequestedRoot::Contents, name.as_bytes()) {
                prop_assert!(!name.starts_with('/'));
                for part in parts {
                    prop_assert!(!part.is_empty() && part != b"." && part != b"..");
                    prop_assert!(!part.contains(&b'/'));
                }
            }
        }

        /// Allowed symlinks, followed in a random tree where every directory may be another
        /// allowed symlink: the walk never leaves.
        #[test]
        fn no_walk_over_symlinks_leaves(
            links in prop::collection::vec((0_usize..4, "(\\.\\./){0,4}([ab]/){0,3}[ab]?"), 1..6),
            start in any::<prop::sample::Index>(),
        ) {
            let links: Vec<_> = links
                .into_iter()
                .filter(|(depth, target)| symlink_stays_inside(*depth, target.as_bytes()))
                .collect();
            prop_assume!(!links.is_empty());
            // Only the depth matters. Each name may be a directory, or any of the symlinks at
            // this depth; all of them are followed, up to a limit.
            let mut places = vec![(links[start.index(links.len())].clone(), 4)];
            while let Some(((depth, target), fuel)) = places.pop() {
                let mut depths = vec![depth];
                for part in target.split('/').filter(|it| !it.is_empty()) {
                    let mut next = Vec::new();
                    for depth in depths {
                        if part == ".." {
                            prop_assert!(depth > 0);
                            next.push(depth - 1);
                        } else {
                            next.push(depth + 1);
                            for link in links.iter().filter(|it| it.0 == depth && fuel > 0) {
                                places.push((link.clone(), fuel - 1));
                            }
                        }
                    }
                    depths = next;
                }
            }
        }
    }
}
