//! Whether the other end of an SPDY connection still lives.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use skewbridge_spdy::connection::{Handle, PingError};
use tokio::time::Instant;

use crate::lanes::{LANES, Lanes};
use crate::pulse::{Ask, Beat, Pulse};

/// Pings over SPDY. One that is not answered does not mean that nobody is there, and one
/// that is does not mean that all before it was taken: moby/spdystream handles what it
/// reads in several lanes.
pub struct Pings {
    handle: Handle,
    /// How the other end is heard.
    pub pulse: Pulse,
    lanes: Lanes,
    /// By their numbers.
    asked: Vec<(u64, Asked)>,
}

type Asked = Pin<Box<dyn Future<Output = Result<Duration, PingError>> + Send>>;

impl fmt::Debug for Pings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pings").field(&self.pulse).finish()
    }
}

impl Pings {
    /// Of this connection.
    pub fn new(handle: Handle, pulse: Pulse) -> Self {
        Self {
            handle,
            pulse,
            lanes: Lanes::default(),
            asked: Vec::new(),
        }
    }

    /// Hears an answer.
    pub fn poll(&mut self, cx: &mut Context<'_>) {
        let (pulse, lanes) = (&mut self.pulse, &mut self.lanes);
        self.asked.retain_mut(|(number, asked)| {
            let Poll::Ready(answer) = asked.as_mut().poll(cx) else {
                return true;
            };
            // Without an answer the connection is over, and its streams tell how.
            if answer.is_ok() {
                pulse.heard(Instant::now());
                if let Some(taken) = lanes.answered(*number) {
                    pulse.answered(taken);
                }
            }
            false
        });
    }

    /// Asks, when it is time; `false` if nobody is there.
    pub fn look(&mut self, now: Instant) -> bool {
        match self.pulse.look(now) {
            Beat::Rest => {}
            Beat::Dead => return false,
            Beat::Ping(mark, mut ask) => {
                if self.handle.holds_data() {
                    self.pulse.overtaken();
                    ask = Ask::Any;
                }
                for number in self.lanes.ask(mark, ask) {
                    self.pulse.pinged(1, LANES as u64);
                    let handle = self.handle.clone();
                    let asked = async move { handle.ping().await };
                    self.asked.push((number, Box::pin(asked)));
                }
                let lanes = &self.lanes;
                self.asked.retain(|(number, _)| lanes.waits_for(*number));
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use skewbridge_spdy::connection;
    use skewbridge_spdy::{Config, FlowControl, Headers};
    use tokio::time::timeout;

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn what_pings_overtake_is_asked_for_again() {
        let config = || Config {
            flow_control: FlowControl::Never,
            ..Config::default()
        };
        let (here, there) = tokio::io::duplex(1000);
        let (handle, _none, driver) = connection::client(here, config());
        let (_there, mut incoming, node) = connection::server(there, config());
        tokio::spawn(driver);
        tokio::spawn(node);
        let mut stream = handle.open(Headers::new()).unwrap();
        let request = incoming.next().await.unwrap();
        // Which nobody reads.
        let _unread = request.accept(Headers::new()).unwrap();

        let start = Instant::now();
        let mut pings = Pings::new(handle.clone(), Pulse::new(start, INTERVAL, INTERVAL / 2));
        let piece = Bytes::from(vec![7; 64 * 1024]);
        let full = async { while stream.sender.write(piece.clone()).await.is_ok() {} };
        timeout(Duration::from_secs(1), full).await.unwrap_err();
        pings.pulse.sent(start, piece.len());
        assert!(handle.holds_data());
        for turn in 1..4 {
            assert!(pings.look(start + turn * INTERVAL));
            assert_eq!(pings.asked.len(), turn as usize, "one for a sign of life");
        }
    }
}
