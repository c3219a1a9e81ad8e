//! What a session says to what it hears.
#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod in_memory;

use std::task::Poll;

use bytes::BytesMut;
use in_memory::{config, id, input, output, read};
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

/// A session whose other side is made of frames.
struct Peer {
    session: Session,
    compressor: Compressor,
    decoder: Decoder,
}

impl Peer {
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

    fn says(&mut self, frame: &Frame) -> Vec<Event> {
        let mut wire = BytesMut::new();
        frame.encode(&mut self.compressor, &mut wire).unwrap();
        input(&mut self.session, wire)
    }

    fn opens(&mut self, stream: u32) -> Vec<Event> {
        self.says(&Frame::SynStream(SynStream {
            stream: id(stream),
            associated: None,
            priority: Priority::HIGHEST,
            fin: Fin::No,
            unidirectional: false,
            headers: Headers::new(),
        }))
    }

    fn answers(&mut self, stream: StreamId) -> Vec<Event> {
        self.says(&Frame::SynReply(SynReply {
            stream,
            fin: Fin::No,
            headers: Headers::new(),
        }))
    }

    fn sends(&mut self, stream: StreamId, fin: Fin, payload: &'static [u8]) -> Vec<Event> {
        self.says(&Frame::Data(Data {
            stream,
            fin,
            payload: payload.into(),
        }))
    }

    fn widens(&mut self, stream: Option<StreamId>, delta: u32) -> Vec<Event> {
        self.says(&Frame::WindowUpdate(WindowUpdate { stream, delta }))
    }

    fn hears(&mut self) -> Vec<Frame> {
        let mut wire = output(&mut self.session);
        std::iter::from_fn(|| self.decoder.decode(&mut wire).unwrap()).collect()
    }

    fn hears_bytes(&mut self) -> usize {
        let frames = self.hears();
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
fn a_stream_is_opened_answered_and_closed_by_halves() {
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
    // Not a byte of data before the answer.
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
    let mut peer = Peer::of(Role::Server, FlowControl::Auto);
    assert_eq!(peer.session.open(OpenOptions::default()).unwrap(), id(2));
    assert_eq!(peer.session.open(OpenOptions::default()).unwrap(), id(4));
    assert_eq!(peer.opens(3).len(), 1);
    for wrong in [1, 3, 2, 6] {
        let mut peer = Peer::of(Role::Server, FlowControl::Auto);
        peer.opens(3);
        let frame = Frame::SynStream(SynStream {
            stream: id(wrong),
            associated: None,
            priority: Priority::HIGHEST,
            fin: Fin::No,
            unidirectional: false,
            headers: Headers::new(),
        });
        let mut wire = BytesMut::new();
        frame.encode(&mut peer.compressor, &mut wire).unwrap();
        assert!(peer.session.receive(&mut wire).is_err(), "{wrong}");
    }
}

#[test]
fn too_many_streams_are_refused_on_both_sides() {
    let mut peer = Peer::of(Role::Server, FlowControl::Auto);
    for stream in [1, 3, 5, 7] {
        assert_eq!(peer.opens(stream).len(), 1);
    }
    assert_eq!(peer.opens(9), []);
    assert_eq!(peer.hears(), [reset(9, ResetStatus::RefusedStream)]);
    for _ in 0..4 {
        peer.session.open(OpenOptions::default()).unwrap();
    }
    let error = peer.session.open(OpenOptions::default()).unwrap_err();
    assert!(matches!(error, OpenError::TooMany));

    let mut peer = Peer::of(Role::Client, FlowControl::Auto);
    let setting = Setting {
        flags: 0,
        id: SettingId::MaxConcurrentStreams,
        value: 1,
    };
    peer.says(&Frame::Settings(Settings {
        clear: false,
        settings: vec![setting],
    }));
    peer.session.open(OpenOptions::default()).unwrap();
    assert!(peer.session.open(OpenOptions::default()).is_err());
}

#[test]
fn a_broken_rule_ends_its_stream_only() {
    // Data before the answer, a second answer, an answer to one's own stream, data
    // after the end, data for a stream that never was.
    let mut peer = Peer::of(Role::Client, FlowControl::Auto);
    let early = peer.session.open(OpenOptions::default()).unwrap();
    let twice = peer.session.open(OpenOptions::default()).unwrap();
    let ended = peer.session.open(OpenOptions::default()).unwrap();
    peer.hears();
    assert_eq!(peer.sends(early, Fin::No, b"x"), [Event::Failed(early)]);
    peer.answers(twice);
    assert_eq!(peer.answers(twice), [Event::Failed(twice)]);
    peer.answers(ended);
    peer.sends(ended, Fin::Yes, b"");
    assert_eq!(peer.sends(ended, Fin::No, b"x"), [Event::Failed(ended)]);
    peer.opens(2);
    assert_eq!(peer.answers(id(2)), [Event::Failed(id(2))]);
    assert_eq!(peer.sends(id(77), Fin::No, b"x"), []);
    assert_eq!(
        peer.hears(),
        [
            reset(1, ResetStatus::ProtocolError),
            reset(3, ResetStatus::StreamInUse),
            reset(5, ResetStatus::StreamAlreadyClosed),
            reset(2, ResetStatus::ProtocolError),
            reset(77, ResetStatus::InvalidStream),
        ]
    );
    // What was on its way to them is passed over.
    assert_eq!(peer.sends(early, Fin::No, b"x"), []);
    assert_eq!(peer.hears(), []);
    assert!(matches!(
        read(&mut peer.session, early),
        Some(Err(StreamError::ResetLocally(ResetStatus::ProtocolError)))
    ));
}

#[test]
fn what_came_before_a_reset_is_read_first() {
    let mut peer = Peer::of(Role::Client, FlowControl::Auto);
    let stream = peer.session.open(OpenOptions::default()).unwrap();
    peer.answers(stream);
    peer.sends(stream, Fin::No, b"status");
    peer.says(&reset(1, ResetStatus::Cancel));
    let data = read(&mut peer.session, stream).unwrap().unwrap();
    assert_eq!(data, Some("status".into()));
    assert!(matches!(
        read(&mut peer.session, stream),
        Some(Err(StreamError::ResetByRemote(ResetStatus::Cancel)))
    ));
    peer.session.release(stream, Half::Receiver);
    peer.session.release(stream, Half::Sender);
    assert_eq!(peer.session.streams(), 0);
}

#[test]
fn a_sender_that_is_dropped_resets_and_a_receiver_that_is_dropped_discards() {
    let mut peer = Peer::of(Role::Server, FlowControl::Auto);
    peer.opens(1);
    peer.opens(3);
    peer.session.release(id(1), Half::Sender);
    assert_eq!(peer.hears(), [reset(1, ResetStatus::Cancel)]);
    peer.session.accept(id(3), Headers::new()).unwrap();
    peer.session.finish(id(3)).unwrap();
    peer.session.release(id(3), Half::Sender);
    peer.session.release(id(3), Half::Receiver);
    assert_eq!(peer.hears().len(), 2);
    for _ in 0..10 {
        peer.sends(id(3), Fin::No, &LARGE);
        assert!(peer.session.wants_input());
    }
    // It does not hold up the end of the connection.
    peer.session.release(id(1), Half::Receiver);
    peer.session.shut_down();
    assert!(peer.session.can_close());
    peer.sends(id(3), Fin::Yes, b"");
    assert_eq!(peer.session.streams(), 0);
}

#[test]
fn windows_hold_a_sender_where_they_count() {
    let mut peer = Peer::of(Role::Client, FlowControl::Always);
    let stream = peer.session.open(OpenOptions::default()).unwrap();
    peer.answers(stream);
    peer.session.write(stream, vec![1; 300_000].into()).unwrap();
    peer.session.finish(stream).unwrap();
    assert!(peer.session.poll_capacity(stream).is_ready(), "an error");
    assert_eq!(peer.hears_bytes(), 65_536);
    peer.widens(Some(stream), 100_000);
    assert_eq!(peer.hears_bytes(), 0, "the connection's window");
    peer.widens(None, 150_000);
    assert_eq!(peer.hears_bytes(), 100_000);
    // Another initial size moves the windows of streams that are open.
    peer.says(&Frame::Settings(Settings {
        clear: false,
        settings: vec![Setting {
            flags: 0,
            id: SettingId::InitialWindowSize,
            value: 165_536,
        }],
    }));
    assert_eq!(peer.hears_bytes(), 50_000);
    peer.widens(None, 150_000);
    assert_eq!(peer.hears_bytes(), 50_000);
    peer.widens(Some(stream), 100_000);
    let frames = peer.hears();
    assert!(matches!(frames.last(), Some(Frame::Data(data)) if data.fin == Fin::Yes));
}

#[test]
fn a_window_that_overflows_is_an_error() {
    let mut peer = Peer::of(Role::Client, FlowControl::Auto);
    let stream = peer.session.open(OpenOptions::default()).unwrap();
    peer.hears();
    assert_eq!(
        peer.widens(Some(stream), 0x7fff_ffff),
        [Event::Failed(stream)]
    );
    let update = WindowUpdate {
        stream: None,
        delta: 0x7fff_ffff,
    };
    let mut wire = BytesMut::new();
    update.encode(&mut wire);
    assert!(peer.session.receive(&mut wire).is_err());
}

#[test]
fn one_that_says_nothing_of_windows_is_sent_everything() {
    for flow_control in [FlowControl::Auto, FlowControl::Never] {
        let mut peer = Peer::of(Role::Client, flow_control);
        let stream = peer.session.open(OpenOptions::default()).unwrap();
        peer.answers(stream);
        peer.session
            .write(stream, vec![1; 10_000_000].into())
            .unwrap();
        assert_eq!(peer.hears_bytes(), 10_000_000);
        // And is not told of windows either, but slowed when it sends too much.
        peer.sends(stream, Fin::No, &LARGE);
        assert!(peer.session.wants_input());
        peer.sends(stream, Fin::No, &LARGE);
        assert!(!peer.session.wants_input());
        assert!(peer.session.is_over_limit(stream));
        read(&mut peer.session, stream).unwrap().unwrap();
        assert!(peer.session.wants_input());
        assert!(!peer.session.is_over_limit(stream));
        assert_eq!(peer.hears(), []);
        // Until it shows that it knows them: then all is made good.
        peer.widens(Some(stream), 1_000);
        let heard = peer.hears();
        if flow_control == FlowControl::Never {
            assert_eq!(heard, []);
            continue;
        }
        let granted: Vec<_> = heard
            .iter()
            .map(|frame| match frame {
                Frame::WindowUpdate(update) => (update.stream, update.delta),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(granted, [(None, 0x7ffe_ffff), (Some(stream), 90_000)]);
        peer.session.write(stream, "x".into()).unwrap();
        assert_eq!(peer.hears(), [], "its window is spent");
    }
}

#[test]
fn streams_send_in_turn_and_by_priority() {
    let mut peer = Peer::of(Role::Client, FlowControl::Never);
    let mut open = |priority| {
        let opening = OpenOptions {
            priority: Priority::new(priority),
            ..OpenOptions::default()
        };
        let stream = peer.session.open(opening).unwrap();
        peer.answers(stream);
        peer.session
            .write(stream, vec![1; 1_000_000].into())
            .unwrap();
        stream
    };
    let (first, second, low) = (open(0), open(0), open(7));
    let frames = peer.hears();
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
fn pings_are_answered_and_answers_recognized() {
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
fn one_who_only_asks_is_not_read() {
    let mut peer = Peer::of(Role::Server, FlowControl::Never);
    let mut asked = 0;
    while peer.session.wants_input() {
        peer.says(&Frame::Ping(skewbridge_spdy::frame::Ping { id: 1 }));
        asked += 1;
        assert!(asked < 100_000);
    }
    assert_eq!(peer.hears().len(), asked);
    assert!(peer.session.wants_input());
}

#[test]
fn who_goes_away_refuses_what_it_has_not_seen() {
    let mut peer = Peer::of(Role::Client, FlowControl::Never);
    let seen = peer.session.open(OpenOptions::default()).unwrap();
    let unseen = peer.session.open(OpenOptions::default()).unwrap();
    peer.answers(seen);
    let events = peer.says(&Frame::GoAway(GoAway {
        last: Some(seen),
        status: GoAwayStatus::Ok,
    }));
    assert_eq!(events, [Event::GoAway, Event::Failed(unseen)]);
    assert!(matches!(
        peer.session.poll_reply(unseen),
        Poll::Ready(Err(StreamError::Refused))
    ));
    assert!(matches!(
        peer.session.open(OpenOptions::default()),
        Err(OpenError::GoingAway)
    ));
    assert!(peer.session.poll_capacity(seen).is_ready());
    peer.hears();
    assert!(!peer.session.can_close());
    for stream in [seen, unseen] {
        peer.session.release(stream, Half::Receiver);
        peer.session.release(stream, Half::Sender);
    }
    assert_eq!(peer.hears(), [reset(1, ResetStatus::Cancel)]);
    assert!(peer.session.can_close());
}
