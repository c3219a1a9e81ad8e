//! Another user of this machine.

/// `nobody` on most systems, and an unprivileged user on all.
const NOBODY_UID: u32 = 65534;

/// A user that owns nothing, for tests that need root to switch users. Without root it
/// prints why the test is skipped.
///
/// # Panics
/// In CI, where tests must run as root.
pub fn unprivileged_user() -> Option<u32> {
    if rustix::process::geteuid().is_root() {
        return Some(NOBODY_UID);
    }
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!ci, "only root can switch users; run the tests as root");
    eprintln!("skipped: only root can switch users");
    None
}
