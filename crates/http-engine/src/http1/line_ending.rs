//! Line endings.

/// Whether a line ends with a bare LF, which implementations interpret differently (RFC 9112, 2.2).
pub(crate) fn has_bare_lf(lines: &[u8]) -> bool {
    let mut before = 0;
    lines.iter().any(|byte| {
        let bare = *byte == b'\n' && before != b'\r';
        before = *byte;
        bare
    })
}
