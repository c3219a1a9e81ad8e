//! Protects the memory of a process that holds keys, tokens or PINs.

use rustix::process::{Resource, Rlimit, setrlimit};

/// Other processes of the same user cannot trace this process or read its memory, and it writes
/// no core file.
pub(crate) fn deny_dumps() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{DumpableBehavior, set_dumpable_behavior};
        // If the kernel refuses, the process has the same protection as any other process.
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
}

/// The same, with a limit on core files that child processes inherit: not for a process whose
/// children are the user's programs.
pub(crate) fn deny_dumps_and_core_files() {
    deny_dumps();
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = setrlimit(Resource::Core, none);
}
