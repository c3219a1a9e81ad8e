//! Properties of sessions, whatever applications and remotes do.
#![allow(clippy::unwrap_used)] // test helpers panic on failure

#[path = "support/session_io.rs"]
mod session_io;

use std::task::Poll;

use bytes::BytesMut;
use proptest::prelude::*;
use session_io::{config, id, input, output, read};
use skewbridge_spdy::{Event, FlowControl, Headers, OpenOptions, Role, Session};

/// What two applications do to a pair of sessions.
#[derive(Debug, Clone)]
enum Step {
    Open,
    Write(usize, usize),
    Finish(usize),
    Read(usize),
    Carry,
}

fn any_step() -> impl Strategy<Value = (bool, Step)> {
    let step = prop_oneof![
        Just(Step::Open),
        (0usize..4, 0usize..120_000).prop_map(|(stream, size)| Step::Write(stream, size)),
        (0usize..4).prop_map(Step::Finish),
        (0usize..4).prop_map(Step::Read),
        Just(Step::Carry),
    ];
    (any::<bool>(), step)
}

/// One side: its session, and what it has written to and read from each stream.
struct Side {
    session: Session,
    written: [Vec<u8>; 10],
    read: [Vec<u8>; 10],
    noise: u8,
}

impl Side {
    fn new(role: Role, flow_control: FlowControl) -> Self {
        Self {
            session: Session::new(role, config(flow_control)),
            written: Default::default(),
            read: Default::default(),
            noise: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Open => drop(self.session.open(OpenOptions::default())),
            Step::Write(stream, size) => {
                self.noise = self.noise.wrapping_add(41);
                let data = vec![self.noise; size];
                let stream = stream + 1;
                let at = id(u32::try_from(stream).unwrap());
                if self.session.write(at, data.clone().into()).is_ok() {
                    self.written[stream].extend(data);
                }
            }
            Step::Finish(stream) => {
                let stream = id(u32::try_from(stream).unwrap() + 1);
                let _ = self.session.finish(stream);
            }
            Step::Read(stream) => self.read(stream + 1),
            Step::Carry => {}
        }
    }

    fn read(&mut self, stream: usize) {
        let at = id(u32::try_from(stream).unwrap());
        if let Poll::Ready(Ok(Some(data))) = self.session.poll_read(at) {
            self.read[stream].extend_from_slice(&data);
        }
    }

    fn receive(&mut self, wire: BytesMut) {
        for event in input(&mut self.session, wire) {
            if let Event::Opened { stream, .. } = event {
                self.session.accept(stream, Headers::new()).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn written_data_is_read_completely_and_in_order(
        flows in (0usize..3, 0usize..3),
        steps in proptest::collection::vec(any_step(), 1..60),
    ) {
        let flow = |index: usize| [FlowControl::Always, FlowControl::Auto, FlowControl::Never][index];
        // A side with flow control and one without do not work together, and need not.
        let (local, remote) = match (flow(flows.0), flow(flows.1)) {
            (FlowControl::Always, FlowControl::Never) | (FlowControl::Never, FlowControl::Always) => {
                (FlowControl::Auto, FlowControl::Auto)
            }
            flows => flows,
        };
        let mut client = Side::new(Role::Client, local);
        let mut server = Side::new(Role::Server, remote);
        let carry = |from: &mut Side, to: &mut Side| {
            if to.session.wants_input() {
                to.receive(output(&mut from.session));
            }
        };
        for (by_client, step) in &steps {
            let (side, other) = if *by_client {
                (&mut client, &mut server)
            } else {
                (&mut server, &mut client)
            };
            side.step(step);
            if matches!(step, Step::Carry) {
                carry(side, other);
            }
        }
        while client.written != server.read || server.written != client.read {
            let before = (client.read.clone(), server.read.clone());
            carry(&mut client, &mut server);
            carry(&mut server, &mut client);
            for stream in 1..10 {
                for _ in 0..20 {
                    client.read(stream);
                    server.read(stream);
                }
            }
            let moved = (client.read.clone(), server.read.clone()) != before;
            let is_quiet = !client.session.has_output() && !server.session.has_output();
            prop_assert!(moved || !is_quiet, "stuck");
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_are_not_amplified_in_memory(
        bytes in proptest::collection::vec(prop_oneof![0u8..10, 0u8.., Just(0x80)], 0..600),
        is_client in any::<bool>(),
    ) {
        let role = if is_client { Role::Client } else { Role::Server };
        let mut session = Session::new(role, config(FlowControl::Auto));
        let stream = session.open(OpenOptions::default()).unwrap();
        let mut wire = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = session.receive(&mut wire) {}
        let _ = read(&mut session, stream);
        prop_assert!(output(&mut session).len() < 1000 + 2 * bytes.len());
    }
}
