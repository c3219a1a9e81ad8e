//! The clients of `watches`: they open every watch, check it byte by byte and report the
//! progress of all. They exit at the end of their input.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use h2::RecvStream;
use h2::client::ResponseFuture;
use http::StatusCode;
use rustls::ClientConfig;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::event::EventChecker;
use crate::args::Watchers;
use crate::child_messages::{ChildMessage, end_of_input};
use crate::h2_client::Connection;
use crate::pki;

const PATH: &str = "/api/v1/namespaces/bench/configmaps?watch=true&allowWatchBookmarks=true";
/// The report interval of incomplete counts.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// The capacity of the queue from the watches to the counter.
const QUEUE_LENGTH: usize = 1024;

pub(crate) async fn run(args: Watchers) -> Result<()> {
    let config = pki::h2_client(&args.ca)?;
    let (notes, received) = mpsc::channel(QUEUE_LENGTH);
    let mut connections = JoinSet::new();
    for _ in 0..args.connections {
        let (config, notes) = (config.clone(), notes.clone());
        connections.spawn(async move {
            let watches = watch_all(config, args.target, args.streams, &notes).await;
            if let Err(error) = watches {
                let _ = notes.send(Progress::Failed(format!("{error:#}"))).await;
            }
        });
    }
    drop(notes);
    tokio::select! {
        reported = report(received, args.connections * args.streams) => reported,
        () = end_of_input() => Ok(()),
    }
}

/// The progress of one watch.
#[derive(Debug)]
enum Progress {
    Opened,
    Delivered { from: u32, to: u32 },
    Failed(String),
}

/// One connection and all its watches; returns only with an error.
async fn watch_all(
    config: Arc<ClientConfig>,
    target: SocketAddr,
    streams: u32,
    notes: &mpsc::Sender<Progress>,
) -> Result<()> {
    let mut connection = Connection::open(config, target)
        .await
        .with_context(|| format!("cannot connect to {target}"))?;
    let mut watches = JoinSet::new();
    for _ in 0..streams {
        let response = connection.get(PATH).await?;
        watches.spawn(watch(response, notes.clone()));
    }
    while let Some(ended) = watches.join_next().await {
        ended??;
    }
    bail!("the connection has no more watches")
}

async fn watch(response: ResponseFuture, notes: mpsc::Sender<Progress>) -> Result<()> {
    let response = response.await?;
    let status = response.status();
    ensure!(
        status == StatusCode::OK,
        "the status of a watch is {status}"
    );
    notes.send(Progress::Opened).await?;
    follow(response.into_body(), notes).await
}

async fn follow(mut body: RecvStream, notes: mpsc::Sender<Progress>) -> Result<()> {
    let mut follower = EventChecker::new();
    let mut from = 0;
    while let Some(bytes) = body.data().await {
        let bytes = bytes?;
        let to = follower.take(&bytes)?;
        body.flow_control().release_capacity(bytes.len())?;
        if to > from {
            notes.send(Progress::Delivered { from, to }).await?;
            from = to;
        }
    }
    bail!("a watch ended after {from} events")
}

/// Counts the progress and reports it: at once when a count is complete, else periodically.
async fn report(mut received: mpsc::Receiver<Progress>, total: u32) -> Result<()> {
    let mut counts = Counts::default();
    let mut tick = interval(REPORT_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            note = received.recv() => {
                for word in counts.note(note.context("no watch is left")?, total) {
                    print_message(&word)?;
                }
            }
            _ = tick.tick() => print_message(&counts.latest())?,
        }
    }
}

fn print_message(word: &ChildMessage) -> Result<()> {
    writeln!(std::io::stdout(), "{word}").context("the output is closed")
}

#[derive(Debug, Default)]
struct Counts {
    opened: u32,
    /// Watches that received event 1, 2, ...
    delivered: Vec<u32>,
}

impl Counts {
    /// Adds progress; returns the counts that are now complete.
    fn note(&mut self, note: Progress, total: u32) -> Vec<ChildMessage> {
        match note {
            Progress::Failed(why) => return vec![ChildMessage::Failed(why)],
            Progress::Opened => {
                self.opened += 1;
                if self.opened == total {
                    return vec![ChildMessage::Opened(total)];
                }
            }
            Progress::Delivered { from, to } => {
                let (first, end) = (from as usize, to as usize);
                if self.delivered.len() < end {
                    self.delivered.resize(end, 0);
                }
                let events = (from + 1..=to).zip(&mut self.delivered[first..end]);
                return events
                    .filter_map(|(event, count)| {
                        *count += 1;
                        (*count == total).then_some(ChildMessage::Delivered {
                            event,
                            count: total,
                        })
                    })
                    .collect();
            }
        }
        Vec::new()
    }

    fn latest(&self) -> ChildMessage {
        match (u32::try_from(self.delivered.len()), self.delivered.last()) {
            (Ok(event), Some(&count)) => ChildMessage::Delivered { event, count },
            _ => ChildMessage::Opened(self.opened),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_reported_with_the_last_watch() {
        let mut counts = Counts::default();
        assert_eq!(counts.note(Progress::Opened, 2), []);
        assert_eq!(counts.latest(), ChildMessage::Opened(1));
        assert_eq!(counts.note(Progress::Opened, 2), [ChildMessage::Opened(2)]);
        let both = || Progress::Delivered { from: 0, to: 2 };
        assert_eq!(counts.note(both(), 2), []);
        assert_eq!(
            counts.latest(),
            ChildMessage::Delivered { event: 2, count: 1 }
        );
        let complete = [1, 2].map(|event| ChildMessage::Delivered { event, count: 2 });
        assert_eq!(counts.note(both(), 2), complete);
    }
}
