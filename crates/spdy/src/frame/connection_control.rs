//! The control frames of the connection, and of flow control.

use bytes::{BufMut as _, BytesMut};

use super::{
    GoAwayStatus, Kind, MalformedFrame, StreamId, encode_control, encode_words, take_word,
};

/// The most settings in one frame: SPDY/3.1 defines eight.
const MAX_SETTINGS: usize = 32;

/// Announces limits of the sender.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Settings {
    /// Whether earlier settings are void.
    pub clear: bool,
    /// In wire order.
    pub settings: Vec<Setting>,
}

/// One setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Whether to persist it, which no implementation does.
    pub flags: u8,
    /// The setting.
    pub id: SettingId,
    /// Its value.
    pub value: u32,
}

/// The id of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingId {
    /// 4: how many open streams the sender allows.
    MaxConcurrentStreams,
    /// 7: the initial window of each stream.
    InitialWindowSize,
    /// Any other setting, which is ignored.
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

/// Requests a reply, or is one: then it has the id of the request. Ids of clients' requests are
/// odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ping {
    /// The id. moby/spdystream closes a connection on which it reads 0.
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

/// The sender accepts no more streams.
///
/// moby/spdystream reads nothing after it, including data of open streams: for such a remote
/// it must be the last frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoAway {
    /// The last stream of the remote that the sender accepted.
    pub last: Option<StreamId>,
    /// The reason.
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

/// Allows the remote to send more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowUpdate {
    /// The stream; `None` for the connection.
    pub stream: Option<StreamId>,
    /// How many more bytes: 31 bits.
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
