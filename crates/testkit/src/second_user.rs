//! Somebody else on this machine.

/// Nobody, on most systems; somebody else, on all.
const NOBODY: u32 = 65534;

/// A user who owns nothing, for tests that only root can run: nobody else can become
/// somebody else. For others it is said why there is none.
///
/// # Panics
/// In CI, where tests have to be run by root.
pub fn second_user() -> Option<u32> {
    if rustix::process::geteuid().is_root() {
        return Some(NOBODY);
    }
    let ci = std::env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!ci, "only root can be another user; run the tests as root");
    eprintln!("left out: only root can be another user");
    None
}
