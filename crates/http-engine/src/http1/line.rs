//! Line ends.

/// Whether a line ends in LF alone. Some readers take that for an end of line
/// and some for a part of it (RFC 9112, 2.2).
pub(crate) fn has_bare_lf(lines: &[u8]) -> bool {
    let mut before = 0;
    lines.iter().any(|byte| {
        let bare = *byte == b'\n' && before != b'\r';
        before = *byte;
        bare
    })
}
