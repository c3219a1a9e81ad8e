//! The direction of a change of version.

use serde::Serialize;

/// Whether the version of the cluster becomes newer or older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Direction {
    /// To a newer version.
    Upgrade,
    /// Back to an older version.
    Rollback,
}
