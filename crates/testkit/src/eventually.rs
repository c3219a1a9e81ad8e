use std::time::Duration;

use tokio::time::Instant;

/// How long waits without a timeout of their own last. It is a bound for a broken test, not a
/// measure of anything: long enough for a loaded machine with two cores.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Between two looks at the condition: short beside any timeout, long beside a task switch.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut looks = 0;
/// skewbridge_testkit::eventually("the third look", Duration::from_secs(5), async || {
///     looks += 1;
///     looks == 3
/// })
/// .await;
/// # });
/// ```
///
/// # Panics
/// When `timeout` passes first; the message names `what` was waited for.
pub async fn eventually(what: &str, timeout: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + timeout;
    let looking = async {
        while !condition().await {
            tokio::time::sleep(INTERVAL).await;
        }
    };
    assert!(
        tokio::time::timeout_at(deadline, looking).await.is_ok(),
        "waited {timeout:?} in vain for: {what}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    #[should_panic(expected = "in vain for: a miracle")]
    async fn a_condition_that_never_holds_is_named() {
        eventually("a miracle", Duration::from_millis(20), async || false).await;
    }

    #[tokio::test]
    #[should_panic(expected = "in vain for: an answer")]
    async fn a_condition_that_hangs_does_not_outlast_the_timeout() {
        eventually("an answer", Duration::from_millis(20), async || {
            std::future::pending().await
        })
        .await;
    }
}
