//! The control frames that concern all streams, and windows.

use bytes::{BufMut as _, BytesMut};

use super::{
    GoAwayStatus, Kind, MalformedFrame, StreamId, encode_control, encode_words, take_word,
};

/// The most settings of one frame: SPDY/3.1 defines eight.
const MAX_SETTINGS: usize = 32;

/// Says what its sender can take.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Whether what was said before is void.
    pub clear: bool,
    /// In the order of the wire.
    pub settings: Vec<Setting>,
}

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Whether it is to be remembered. Nobody does.
    pub flags: u8,
    /// What is set.
    pub id: SettingId,
    /// To what.
    pub value: u32,
}

/// What can be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingId {
    /// 4: how many streams the sender lets the other side have open.
    MaxConcurrentStreams,
    /// 7: the window that each stream begins with.
    InitialWindowSize,
    /// Any other, which changes nothing here.
    Other(u32),
}

impl SettingId {
    fn from_code(code: u32) -> Self {
        match code {
            4 => Self::MaxConcurrentStreams,
            7 => Self::InitialWindowSize,
            other => Self::Other(other),
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::MaxConcurrentStreams => 4,
            Self::InitialWindowSize => 7,
            Self::Other(code) => code & 0x00ff_ffff,
        }
    }
}

impl Settings {
    /// The last value of a setting.
    pub fn get(&self, id: SettingId) -> Option<u32> {
        let mut settings = self.settings.iter().rev();
        settings.find(|it| it.id == id).map(|it| it.value)
    }

    pub(crate) fn parse(flags: u8, mut payload: &[u8]) -> Result<Self, MalformedFrame> {
        let count = take_word(&mut payload, "a SETTINGS that is too short")? as usize;
        if count > MAX_SETTINGS {
            return Err(MalformedFrame("too many settings"));
        }
        let mut settings = Vec::with_capacity(count);
        for _ in 0..count {
            let id = take_word(&mut payload, "fewer settings than announced")?;
            settings.push(Setting {
                flags: id.to_be_bytes()[0],
                id: SettingId::from_code(id & 0x00ff_ffff),
                value: take_word(&mut payload, "fewer settings than announced")?,
            });
        }
        Ok(Self {
            clear: flags & 1 != 0,
            settings,
        })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) {
        let Ok(()) = encode_control(out, Kind::Settings, u8::from(self.clear), |out| {
            out.put_u32(u32::try_from(self.settings.len()).unwrap_or(u32::MAX));
            for setting in &self.settings {
                out.put_u32(u32::from(setting.flags) << 24 | setting.id.code());
                out.put_u32(setting.value);
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }
}

/// Asks for an answer, or is one: then it has the id of the question. Questions of
/// clients are odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping {
    /// Which question. moby/spdystream gives up a connection on which it reads 0.
    pub id: u32,
}

impl Ping {
    pub(crate) fn parse(mut payload: &[u8]) -> Result<Self, MalformedFrame> {
        let id = take_word(&mut payload, "a PING that is too short")?;
        Ok(Self { id })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) {
        encode_words(out, Kind::Ping, &[self.id]);
    }
}

/// Takes no more streams.
///
/// moby/spdystream reads nothing that comes after it, data of open streams
/// included: to such a peer it is the last frame of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoAway {
    /// The last of the other side's streams that its sender took.
    pub last: Option<StreamId>,
    /// Why.
    pub status: GoAwayStatus,
}

impl GoAway {
    /// The status may be missing, as it was in SPDY/2.
    pub(crate) fn parse(mut payload: &[u8]) -> Result<Self, MalformedFrame> {
        let last = take_word(&mut payload, "a GOAWAY that is too short")?;
        let status = take_word(&mut payload, "").unwrap_or(0);
        Ok(Self {
            last: StreamId::new(last & 0x7fff_ffff),
            status: GoAwayStatus::from_code(status),
        })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) {
        let words = [self.last.map_or(0, StreamId::get), self.status.code()];
        encode_words(out, Kind::GoAway, &words);
    }
}

/// Lets the other side send more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowUpdate {
    /// On which stream; `None` for all together.
    pub stream: Option<StreamId>,
    /// How many bytes more: 31 bits.
    pub delta: u32,
}

impl WindowUpdate {
    pub(crate) fn parse(mut payload: &[u8]) -> Result<Self, MalformedFrame> {
        let missing = "a WINDOW_UPDATE that is too short";
        let stream = take_word(&mut payload, missing)?;
        let delta = take_word(&mut payload, missing)?;
        Ok(Self {
            stream: StreamId::new(stream & 0x7fff_ffff),
            delta: delta & 0x7fff_ffff,
        })
    }

    /// Appends the frame.
    pub fn encode(&self, out: &mut BytesMut) {
        let words = [self.stream.map_or(0, StreamId::get), self.delta];
        encode_words(out, Kind::WindowUpdate, &words);
    }
}
