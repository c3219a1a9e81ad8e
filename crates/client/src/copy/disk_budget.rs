//! Limits what is written to the local disk: an archive may announce files of any size.

/// Stays free on the disk, so that other programs can continue to write.
const RESERVED_FREE_BYTES: u64 = 16 << 20;

/// The minimum disk space of a file.
const DISK_BLOCK_BYTES: u64 = 4096;

/// How much is written before the free space is checked again. It is no more than the reserve,
/// in case another program takes the rest meanwhile. On a remote file system, a check for each
/// small file would take longer than the file.
const RECHECK_BYTES: u64 = RESERVED_FREE_BYTES;

/// The budget for files, which come one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct DiskBudget {
    /// The user's limit, in bytes of content, not of disk space.
    max_bytes: Option<u64>,
    /// What is left of the last check.
    unchecked_bytes: u64,
}

/// Why a file does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskFull {
    /// How much space is available.
    pub(super) available: u64,
    /// Which limit applies.
    pub(super) limit: &'static str,
}

impl DiskBudget {
    pub(super) fn new(max_bytes: Option<u64>) -> Self {
        Self {
            max_bytes,
            unchecked_bytes: 0,
        }
    }

    /// Reserves space for a file. The free space is checked now: a replaced file has released
    /// its space by then, and other programs may have taken some. `None` means unknown, so
    /// without a limit.
    pub(super) fn reserve(
        &mut self,
        size: u64,
        free: impl FnOnce() -> Option<u64>,
    ) -> Result<(), DiskFull> {
        if let Some(max_bytes) = self.max_bytes
            && size > max_bytes
        {
            return Err(DiskFull {
                available: max_bytes,
                limit: "--max-bytes",
            });
        }
        let needed = size
            .max(DISK_BLOCK_BYTES)
            .checked_next_multiple_of(DISK_BLOCK_BYTES)
            .unwrap_or(u64::MAX);
        if needed > self.unchecked_bytes {
            let available =
                free().map_or(u64::MAX, |free| free.saturating_sub(RESERVED_FREE_BYTES));
            if needed > available {
                return Err(DiskFull {
                    available,
                    limit: "the free space",
                });
            }
            self.unchecked_bytes = needed.saturating_add(RECHECK_BYTES).min(available);
        }
        self.unchecked_bytes -= needed;
        self.max_bytes = self.max_bytes.map(|max_bytes| max_bytes - size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk_full(available: u64) -> Result<(), DiskFull> {
        Err(DiskFull {
            available,
            limit: "the free space",
        })
    }

    #[test]
    fn each_large_file_is_checked_against_the_current_free_space() {
        // Size, free space at that moment, and the result.
        let rows = [
            (40 * MIB, 66 * MIB, Ok(())),
            // Each file replaced one of the same size: all of them fit, one after the other.
            (40 * MIB, 66 * MIB, Ok(())),
            (50 * MIB, 66 * MIB, Ok(())),
            (50 * MIB + 1, 66 * MIB, disk_full(50 * MIB)),
            // Another program has written.
            (40 * MIB, 50 * MIB, disk_full(34 * MIB)),
            (17 * MIB, 16 * MIB, disk_full(0)),
            (10 << 30, 66 * MIB, disk_full(50 * MIB)),
            (u64::MAX, 66 * MIB, disk_full(50 * MIB)),
        ];
        let mut budget = DiskBudget::new(None);
        for (size, free, expected) in rows {
            assert_eq!(
                budget.reserve(size, || Some(free)),
                expected,
                "{size} of {free}"
            );
        }
    }

    #[test]
    fn small_files_check_occasionally_and_never_use_the_reserve() {
        for free in [
            RESERVED_FREE_BYTES,
            RESERVED_FREE_BYTES + MIB,
            10 * MIB,
            100 * MIB,
        ] {
            let mut budget = DiskBudget::new(None);
            let (mut written, mut checks) = (0, 0);
            // Empty files take space too.
            while budget
                .reserve(0, || {
                    checks += 1;
                    Some(free - written)
                })
                .is_ok()
            {
                written += DISK_BLOCK_BYTES;
            }
            assert_eq!(written, free.saturating_sub(RESERVED_FREE_BYTES), "{free}");
            assert!(checks <= 2 + written / RECHECK_BYTES, "{checks} for {free}");
        }
    }

    #[test]
    fn the_users_limit_counts_content_bytes_over_all_files() {
        let max_bytes_exceeded = |available| {
            Err(DiskFull {
                available,
                limit: "--max-bytes",
            })
        };
        let mut budget = DiskBudget::new(Some(10));
        for (size, expected) in [
            (4, Ok(())),
            (7, max_bytes_exceeded(6)),
            (6, Ok(())),
            (1, max_bytes_exceeded(0)),
        ] {
            assert_eq!(budget.reserve(size, || Some(100 * MIB)), expected, "{size}");
        }
        // The user's limit does not override the free space.
        let mut budget = DiskBudget::new(Some(100 * MIB));
        assert_eq!(
            budget.reserve(50 * MIB, || Some(26 * MIB)),
            disk_full(10 * MIB)
        );
        // With unknown free space only the user's limit counts.
        assert_eq!(budget.reserve(100 * MIB, || None), Ok(()));
        assert_eq!(budget.reserve(1, || None), max_bytes_exceeded(0));
    }
}
