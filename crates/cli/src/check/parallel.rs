//! Futures of one task that run at the same time, with their results in order.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

/// A probe.
pub(crate) type Probe<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs all probes to their end. Each has a time limit of its own.
pub(crate) async fn all<T>(probes: Vec<Probe<'_, T>>) -> Vec<T> {
    let mut running: Vec<_> = probes.into_iter().map(State::Running).collect();
    poll_fn(|context| {
        let mut pending = false;
        for state in &mut running {
            if let State::Running(probe) = state {
                match probe.as_mut().poll(context) {
                    Poll::Ready(result) => *state = State::Done(result),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    })
    .await;
    let done = running.into_iter().filter_map(|state| match state {
        State::Done(result) => Some(result),
        State::Running(_) => None,
    });
    done.collect()
}

enum State<'a, T> {
    Running(Probe<'a, T>),
    Done(T),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_are_in_order_and_probes_run_at_the_same_time() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // The first probe ends after the second.
        let probes: Vec<Probe<'_, u8>> = vec![
            Box::pin(async { receiver.await.unwrap_or_default() }),
            Box::pin(async move { sender.send(1).map_or(0, |()| 2) }),
        ];
        assert_eq!(all(probes).await, [1, 2]);
        assert_eq!(all::<u8>(Vec::new()).await, [0; 0]);
    }
}
