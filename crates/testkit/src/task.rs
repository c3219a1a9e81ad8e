use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

/// A task that is aborted when its owner is dropped.
#[derive(Debug)]
pub(crate) struct OwnedTask<T>(JoinHandle<T>);

impl<T: Send + 'static> OwnedTask<T> {
    pub(crate) fn spawn(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Aborts the task and waits until everything it owned is dropped.
    pub(crate) async fn end(mut self) {
        self.0.abort();
        let _ = (&mut self.0).await;
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Drop for OwnedTask<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Records whether a test's code panicked inside a task, where the panic would go unnoticed.
#[derive(Clone, Debug, Default)]
pub(crate) struct PanicFlag(Arc<AtomicBool>);

impl PanicFlag {
    /// Sets the flag when the guard is dropped by a panic.
    pub(crate) fn watch(&self) -> PanicWatch {
        PanicWatch(self.clone())
    }

    /// Propagates the panic, unless the test is failing already.
    pub(crate) fn check(&self, what: &str) {
        let raised = self.0.load(Ordering::Relaxed);
        assert!(
            !raised || std::thread::panicking(),
            "{what} of a fake server panicked, see above"
        );
    }
}

#[derive(Debug)]
pub(crate) struct PanicWatch(PanicFlag);

impl Drop for PanicWatch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.0.store(true, Ordering::Relaxed);
        }
    }
}
