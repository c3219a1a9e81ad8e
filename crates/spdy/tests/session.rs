//! How a session responds to frames.
#![allow(clippy::unwrap_used)] // test helpers panic on failure

#[path = "support/session_io.rs"]
mod session_io;

use std::task::Poll;

use bytes::BytesMut;
use session_io::{config, id, input, output, read};
use skewbridge_spdy::frame::{
    Data, Fin, Frame, GoAway, GoAwayStatus, Priority, ResetStatus, RstStream, Setting, SettingId,
    Settings, StreamId, SynReply, SynStream, WindowUpdate,
};
use skewbridge_spdy::{
    Compressor, Config, Decoder, Event, FlowControl, Half, Headers, OpenError, OpenOptions, Role,
    Session, StreamError,
};

/// Less than a window, and two of it are more.
static LARGE: [u8; 90_000] = [0; 90_000];

/// A session, and a remote that sends raw frames.
struct FrameLevelRemote {
    session: Session,
    compressor: Compressor,
    decoder: Decoder,
}

impl FrameLevelRemote {
    fn of(role: Role, flow_control: FlowControl) -> Self {
        let mut session = Session::new(role, config(flow_control));
        let mut decoder = Decoder::new();
        let mut greeting = output(&mut session);
        while decoder.decode(&mut greeting).unwrap().is_some() {}
        Self {
            session,
            compressor: Compressor::new(),
            decoder,
        }
    }

    fn sends_frame(&mut self, frame: &Frame) -> Vec<Event> {
        let mut wire = BytesMut::new();
        frame.encode(&mut self.compressor, &mut wire).unwrap();
        input(&mut self.session, wire)
    }

    fn opens(&mut self, stream: u32) -> Vec<Event> {
        self.sends_frame(&Frame::SynStream(SynStream {
            stream: id(stream),
            associated: None,
            priority: Priority::HIGHEST,
            fin: Fin::No,
            unidirectional: false,
            headers: Headers::new(),
        }))
    }

    fn answers(&mut self, stream: StreamId) -> Vec<Event> {
        self.sends_frame(&Frame::SynReply(SynReply {
            stream,
            fin: Fin::No,
            headers: Headers::new(),
        }))
    }

    fn sends(&mut self, stream: StreamId, fin: Fin, payload: &'static [u8]) -> Vec<Event> {
        self.sends_frame(&Frame::Data(Data {
            stream,
            fin,
            payload: payload.into(),
        }))
    }

    fn updates_window(&mut self, stream: Option<StreamId>, delta: u32) -> Vec<Event> {
        self.sends_frame(&Frame::WindowUpdate(WindowUpdate { stream, delta }))
    }

    fn receives(&mut self) -> Vec<Frame> {
        let mut wire = output(&mut self.session);
        std::iter::from_fn(|| self.decoder.decode(&mut wire).unwrap()).collect()
    }

    fn received_bytes(&mut self) -> usize {
        let frames = self.receives();
        let data = frames.iter().map(|frame| match frame {
            Frame::Data(data) => data.payload.len(),
            _ => 0,
        });
        data.sum()
    }
}

fn reset(stream: u32, status: ResetStatus) -> Frame {
    let stream = id(stream);
    Frame::RstStream(RstStream { stream, status })
}

#[test]
fn a_stream_is_opened_accepted_and_half_closed() {
    let mut client = Session::new(Role::Client, Config::default());
    let mut server = Session::new(Role::Server, Config::default());
    let headers = Headers::new().with("streamtype", "stdin");
    let stream = client.open(headers.clone().into()).unwrap();
    assert_eq!(stream, id(1));
    client.write(stream, "early".into()).unwrap();
    client.finish(stream).unwrap();

    let events = input(&mut server, output(&mut client));
    let priority = Priority::HIGHEST;
    let opened = Event::Opened {
        stream,
        headers,
        priority,
    };
    // No data before the reply.
    assert_eq!(events, [opened]);
    let reply = Headers::new().with("a", "b");
    server.accept(stream, reply.clone()).unwrap();
    let events = input(&mut client, output(&mut server));
    assert_eq!(events, [Event::Accepted(stream)]);
    assert!(matches!(client.poll_reply(stream), Poll::Ready(Ok(it)) if it == reply));

    let events = input(&mut server, output(&mut client));
    assert_eq!(events, [Event::Readable(stream)]);
    let data = read(&mut server, stream).unwrap().unwrap();
    assert_eq!(data, Some("early".into()));
    assert_eq!(read(&mut server, stream).unwrap().unwrap(), None);
    assert!(matches!(
        client.write(stream, "late".into()),
        Err(StreamError::Finished)
    ));

    server.write(stream, "answer".into()).unwrap();
    server.finish(stream).unwrap();
    input(&mut client, output(&mut server));
    let data = read(&mut client, stream).unwrap().unwrap();
    assert_eq!(data, Some("answer".into()));
    assert_eq!(read(&mut client, stream).unwrap().unwrap(), None);
    for session in [&mut client, &mut server] {
        assert_eq!(session.streams(), 1);
        session.release(stream, Half::Sender);
        session.release(stream, Half::Receiver);
        assert_eq!(session.streams(), 0);
        assert!(!session.has_output());
    }
}

#[test]
fn ids_grow_and_belong_to_their_side() {
    let mut remote = FrameLevelRemote::of(Role::Server, FlowControl::Auto);
    assert_eq!(remote.session.open(OpenOptions::default()).unwrap(), id(2));
    assert_eq!(remote.session.open(OpenOptions::default()).unwrap(), id(4));
    assert_eq!(remote.opens(3).len(), 1);
    for wrong in [1, 3, 2, 6] {
        let mut remote = FrameLevelRemote::of(Role::Server, FlowControl::Auto);
        remote.opens(3);
        let frame = Frame::SynStream(SynStream {
            stream: id(wrong),
            associated: None,
            priority: Priority::HIGHEST,
            fin: Fin::No,
            unidirectional: false,
            headers: Headers::new(),
        });
        let mut wire = BytesMut::new();
        frame.encode(&mut remote.compressor, &mut wire).unwrap();
        assert!(remote.session.receive(&mut wire).is_err(), "{wrong}");
    }
}

#[test]
fn too_many_streams_are_refused_on_both_sides() {
    let mut remote = FrameLevelRemote::of(Role::Server, FlowControl::Auto);
    for stream in [1, 3, 5, 7] {
        assert_eq!(remote.opens(stream).len(), 1);
    }
    assert_eq!(remote.opens(9), []);
    assert_eq!(remote.receives(), [reset(9, ResetStatus::RefusedStream)]);
    for _ in 0..4 {
        remote.session.open(OpenOptions::default()).unwrap();
    }
    let error = remote.session.open(OpenOptions::default()).unwrap_err();
    assert!(matches!(error, OpenError::TooMany));

    let mut remote = FrameLevelRemote::of(Role::Client, FlowControl::Auto);
    let setting = Setting {
        flags: 0,
        id: SettingId::MaxConcurrentStreams,
        value: 1,
    };
    remote.sends_frame(&Frame::Settings(Settings {
        clear: false,
        settings: vec![setting],
    }));
    remote.session.open(OpenOptions::default()).unwrap();
    assert!(remote.session.open(OpenOptions::default()).is_err());
}

#[test]
fn a_protocol_violation_ends_only_its_stream() {
    // Data before the reply, a second reply, a reply to the remote's own stream, data after
    // the end, data for a stream that never existed.
    let mut remote = FrameLevelRemote::of(Role::Client, FlowControl::Auto);
    let early = remote.session.open(OpenOptions::default()).unwrap();
    let twice = remote.session.open(OpenOptions::default()).unwrap();
    let ended = remote.session.open(OpenOptions::default()).unwrap();
    remote.receives();
    assert_eq!(remote.sends(early, Fin::No, b"x"), [Event::Failed(early)]);
    remote.answers(twice);
    assert_eq!(remote.answers(twice), [Event::Failed(twice)]);
    remote.answers(ended);
    remote.sends(ended, Fin::Yes, b"");
    assert_eq!(remote.sends(ended, Fin::No, b"x"), [Event::Failed(ended)]);
    remote.opens(2);
    assert_eq!(remote.answers(id(2)), [Event::Failed(id(2))]);
    assert_eq!(remote.sends(id(77), Fin::No, b"x"), []);
    assert_eq!(
        remote.receives(),
        [
            reset(1, ResetStatus::ProtocolError),
            reset(3, ResetStatus::StreamInUse),
            reset(5, ResetStatus::StreamAlreadyClosed),
            reset(2, ResetStatus::ProtocolError),
            reset(77, ResetStatus::InvalidStream),
        ]
    );
    // Frames in flight for these streams are ignored.
    assert_eq!(remote.sends(early, Fin::No, b"x"), []);
    assert_eq!(remote.receives(), []);
    assert!(matches!(
        read(&mut remote.session, early),
        Some(Err(StreamError::ResetLocally(ResetStatus::ProtocolError)))
    ));
}

#[test]
fn data_before_a_reset_is_read_first() {
    let mut remote = FrameLevelRemote::of(Role::Client, FlowControl::Auto);
    let stream = remote.session.open(OpenOptions::default()).unwrap();
    remote.answers(stream);
    remote.sends(stream, Fin::No, b"status");
    remote.sends_frame(&reset(1, ResetStatus::Cancel));
    let data = read(&mut remote.session, stream).unwrap().unwrap();
    assert_eq!(data, Some("status".into()));
    assert!(matches!(
        read(&mut remote.session, stream),
        Some(Err(StreamError::ResetByRemote(ResetStatus::Cancel)))
    ));
    remote.session.release(stream, Half::Receiver);
    remote.session.release(stream, Half::Sender);
    assert_eq!(remote.session.streams(), 0);
}

#[test]
fn dropping_a_sender_resets_and_dropping_a_receiver_discards() {
    let mut remote = FrameLevelRemote::of(Role::Server, FlowControl::Auto);
    remote.opens(1);
    remote.opens(3);
    remote.session.release(id(1), Half::Sender);
    assert_eq!(remote.receives(), [reset(1, ResetStatus::Cancel)]);
    remote.session.accept(id(3), Headers::new()).unwrap();
    remote.session.finish(id(3)).unwrap();
    remote.session.release(id(3), Half::Sender);
    remote.session.release(id(3), Half::Receiver);
    assert_eq!(remote.receives().len(), 2);
    for _ in 0..10 {
        remote.sends(id(3), Fin::No, &LARGE);
        assert!(remote.session.wants_input());
    }
    // It does not delay the end of the connection.
    remote.session.release(id(1), Half::Receiver);
    remote.session.shut_down();
    assert!(remote.session.can_close());
    remote.sends(id(3), Fin::Yes, b"");
    assert_eq!(remote.session.streams(), 0);
}

#[test]
fn windows_limit_a_sender_with_flow_control() {
    let mut remote = FrameLevelRemote::of(Role::Client, FlowControl::Always);
    let stream = remote.session.open(OpenOptions::default()).unwrap();
    remote.answers(stream);
    remote
        .session
        .write(stream, vec![1; 300_000].into())
        .unwrap();
    remote.session.finish(stream).unwrap();
    assert!(remote.session.poll_capacity(stream).is_ready(), "an error");
    assert_eq!(remote.received_bytes(), 65_536);
    remote.updates_window(Some(stream), 100_000);
    assert_eq!(remote.received_bytes(), 0, "the connection's window");
    remote.updates_window(None, 150_000);
    assert_eq!(remote.received_bytes(), 100_000);
    // A new initial size changes the windows of open streams.
    remote.sends_frame(&Frame::Settings(Settings {
        clear: false,
        settings: vec![Setting {
            flags: 0,
            id: SettingId::InitialWindowSize,
            value: 165_536,
        }],
    }));
    assert_eq!(remote.received_bytes(), 50_000);
    remote.updates_window(None, 150_000);
    assert_eq!(remote.received_bytes(), 50_000);
    remote.updates_window(Some(stream), 100_000);
    let frames = remote.receives();
    assert!(matches!(frames.last(), Some(Frame::Data(data)) if data.fin == Fin::Yes));
}

#[test]
fn a_window_that_overflows_is_an_error() {
    let mut remote = FrameLevelRemote::of(Role::Client, FlowControl::Auto);
    let stream = remote.session.open(OpenOptions::default()).unwrap();
    remote.receives();
    assert_eq!(
        remote.updates_window(Some(stream), 0x7fff_ffff),
        [Event::Failed(stream)]
    );
    let update = WindowUpdate {
        stream: None,
        delta: 0x7fff_ffff,
    };
    let mut wire = BytesMut::new();
    update.encode(&mut wire);
    assert!(remote.session.receive(&mut wire).is_err());
}

#[test]
fn a_remote_without_flow_control_is_sent_everything() {
    for flow_control in [FlowControl::Auto, FlowControl::Never] {
        let mut remote = FrameLevelRemote::of(Role::Client, flow_control);
        let stream = remote.session.open(OpenOptions::default()).unwrap();
        remote.answers(stream);
        remote
            .session
            .write(stream, vec![1; 10_000_000].into())
            .unwrap();
        assert_eq!(remote.received_bytes(), 10_000_000);
        // It gets no window updates either, but is not read when it sends too much.
        remote.sends(stream, Fin::No, &LARGE);
        assert!(remote.session.wants_input());
        remote.sends(stream, Fin::No, &LARGE);
        assert!(!remote.session.wants_input());
        assert!(remote.session.is_over_limit(stream));
        read(&mut remote.session, stream).unwrap().unwrap();
        assert!(remote.session.wants_input());
        assert!(!remote.session.is_over_limit(stream));
        assert_eq!(remote.receives(), []);
        // Once it uses flow control, the pending credit is sent.
        remote.updates_window(Some(stream), 1_000);
        let received = remote.receives();
        if flow_control == FlowControl::Never {
            assert_eq!(received, []);
            continue;
        }
        let granted: Vec<_> = received
            .iter()
            .map(|frame| match frame {
                Frame::WindowUpdate(update) => (update.stream, update.delta),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(granted, [(None, 0x7ffe_ffff), (Some(stream), 90_000)]);
        remote.session.write(stream, "x".into()).unwrap();
        assert_eq!(remote.receives(), [], "its window is spent");
    }
}

#[test]
fn streams_send_round_robin_and_by_priority() {
    let mut remote = FrameLevelRemote::of(Role::Client, FlowControl::Never);
    let mut open = |priority| {
        let opening = OpenOptions {
            priority: Priority::new(priority),
            ..OpenOptions::default()
        };
        let stream = remote.session.open(opening).unwrap();
        remote.answers(stream);
        remote
            .session
            .write(stream, vec![1; 1_000_000].into())
            .unwrap();
        stream
    };
    let (first, second, low) = (open(0), open(0), open(7));
    let frames = remote.receives();
    let order: Vec<_> = frames
        .iter()
        .filter_map(|frame| match frame {
            Frame::Data(data) => Some((data.stream, data.payload.len())),
            _ => None,
        })
        .take(6)
        .collect();
    let turn = [(first, 65_536), (second, 65_536), (low, 8_192)];
    assert_eq!(order, [turn, turn].concat());
}

#[test]
fn pings_are_answered_and_replies_recognised() {
    let mut client = Session::new(Role::Client, config(FlowControl::Never));
    let mut server = Session::new(Role::Server, config(FlowControl::Never));
    let (first, second) = (client.ping(), client.ping());
    assert_eq!((first, second), (1, 3));
    assert_eq!(server.ping(), 2);
    assert_eq!(input(&mut server, output(&mut client)), []);
    let events = input(&mut client, output(&mut server));
    assert_eq!(events, [Event::Pong(1), Event::Pong(3)]);
    let events = input(&mut server, output(&mut client));
    assert_eq!(events, [Event::Pong(2)]);
}

#[test]
fn a_remote_that_sends_pings_and_does_not_read_is_not_read() {
    let mut remote = FrameLevelRemote::of(Role::Server, FlowControl::Never);
    let mut pings_sent = 0;
    while remote.session.wants_input() {
        remote.sends_frame(&Frame::Ping(skewbridge_spdy::frame::Ping { id: 1 }));
        pings_sent += 1;
        assert!(pings_sent < 100_000);
    }
    assert_eq!(remote.receives().len(), pings_sent);
    assert!(remote.session.wants_input());
}

#[test]
fn a_goaway_refuses_unseen_streams() {
    let mut remote = FrameLevelRemote::of(Role::Client, FlowControl::Never);
    let seen = remote.session.open(OpenOptions::default()).unwrap();
    let unseen = remote.session.open(OpenOptions::default()).unwrap();
    remote.answers(seen);
    let events = remote.sends_frame(&Frame::GoAway(GoAway {
        last: Some(seen),
        status: GoAwayStatus::Ok,
    }));
    assert_eq!(events, [Event::GoAway, Event::Failed(unseen)]);
    assert!(matches!(
        remote.session.poll_reply(unseen),
        Poll::Ready(Err(StreamError::Refused))
    ));
    assert!(matches!(
        remote.session.open(OpenOptions::default()),
        Err(OpenError::GoingAway)
    ));
    assert!(remote.session.poll_capacity(seen).is_ready());
    remote.receives();
    assert!(!remote.session.can_close());
    for stream in [seen, unseen] {
        remote.session.release(stream, Half::Receiver);
        remote.session.release(stream, Half::Sender);
    }
    assert_eq!(remote.receives(), [reset(1, ResetStatus::Cancel)]);
    assert!(remote.session.can_close());
}
