use std::time::Duration;

use tokio::time::Instant;

/// The default timeout of waits. It only bounds a broken test: long enough for a loaded
/// machine with two cores.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// The interval between two checks of the condition: short compared to any timeout, long
/// compared to a task switch.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut checks = 0;
/// skewbridge_testkit::eventually("the third check", Duration::from_secs(5), async || {
///     checks += 1;
///     checks == 3
/// })
/// .await;
/// # });
/// ```
///
/// # Panics
/// When `timeout` passes first; the message contains `what`.
pub async fn eventually(what: &str, timeout: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + timeout;
    let polling = async {
        while !condition().await {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    assert!(
        tokio::time::timeout_at(deadline, polling).await.is_ok(),
        "timed out after {timeout:?} waiting for: {what}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "waiting for: a miracle")]
    async fn a_condition_that_never_holds_is_named_in_the_panic() {
        eventually("a miracle", Duration::from_millis(20), async || false).await;
    }

    #[tokio::test]
    #[should_panic(expected = "waiting for: a response")]
    async fn a_condition_that_hangs_is_bounded_by_the_timeout() {
        eventually("a response", Duration::from_millis(20), async || {
            std::future::pending().await
        })
        .await;
    }
}
