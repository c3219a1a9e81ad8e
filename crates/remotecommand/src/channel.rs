//! The channels of a remote command.

/// The header of an SPDY stream that names its channel, as on the wire: SPDY/3 header names
/// are lower case, though Kubernetes writes `streamType`.
pub const STREAM_TYPE: &str = "streamtype";

/// A channel of a remote command: a stream over SPDY, the first byte of a
/// message over WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// To the process.
    Stdin,
    /// From the process.
    Stdout,
    /// From the process; with a terminal all output goes to stdout.
    Stderr,
    /// From the server: the result of the command.
    Error,
    /// To the server: terminal sizes.
    Resize,
}

impl Channel {
    /// All channels, ordered by number.
    pub const ALL: [Self; 5] = [
        Self::Stdin,
        Self::Stdout,
        Self::Stderr,
        Self::Error,
        Self::Resize,
    ];

    /// The value of [`STREAM_TYPE`].
    pub fn stream_type(self) -> &'static str {
        match self {
            Self::Stdin => "stdin",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Error => "error",
            Self::Resize => "resize",
        }
    }

    /// From the value of [`STREAM_TYPE`].
    pub fn from_stream_type(value: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|channel| channel.stream_type() == value)
    }
}

/// The channels that clients write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Input {
    /// To the process.
    Stdin,
    /// Terminal sizes.
    Resize,
}

/// The channels that servers write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Output {
    /// From the process.
    Stdout,
    /// From the process, if it has no terminal.
    Stderr,
    /// The result of the command.
    Error,
}

impl From<Input> for Channel {
    fn from(input: Input) -> Self {
        match input {
            Input::Stdin => Self::Stdin,
            Input::Resize => Self::Resize,
        }
    }
}

impl From<Output> for Channel {
    fn from(output: Output) -> Self {
        match output {
            Output::Stdout => Self::Stdout,
            Output::Stderr => Self::Stderr,
            Output::Error => Self::Error,
        }
    }
}

/// The channels of one direction of a WebSocket, by the number at the start of their messages.
pub trait ChannelId: Copy + PartialEq {
    /// How many numbers are channels, of either direction.
    const CHANNEL_COUNT: u8;
    /// Whether the writer may close a single channel, where the protocol version has a signal
    /// for it.
    const CLOSABLE: bool;

    /// The first byte of a message.
    fn number(self) -> u8;

    /// `None` for a number that is not a channel of this direction.
    fn from_number(number: u8) -> Option<Self>;
}

impl ChannelId for Channel {
    const CHANNEL_COUNT: u8 = 5;
    const CLOSABLE: bool = false;

    fn number(self) -> u8 {
        self as u8
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl ChannelId for Input {
    const CHANNEL_COUNT: u8 = Channel::CHANNEL_COUNT;
    const CLOSABLE: bool = true;

    fn number(self) -> u8 {
        Channel::from(self).number()
    }

    fn from_number(number: u8) -> Option<Self> {
        match Channel::from_number(number)? {
            Channel::Stdin => Some(Self::Stdin),
            Channel::Resize => Some(Self::Resize),
            Channel::Stdout | Channel::Stderr | Channel::Error => None,
        }
    }
}

impl ChannelId for Output {
    const CHANNEL_COUNT: u8 = Channel::CHANNEL_COUNT;
    const CLOSABLE: bool = false;

    fn number(self) -> u8 {
        Channel::from(self).number()
    }

    fn from_number(number: u8) -> Option<Self> {
        match Channel::from_number(number)? {
            Channel::Stdout => Some(Self::Stdout),
            Channel::Stderr => Some(Self::Stderr),
            Channel::Error => Some(Self::Error),
            Channel::Stdin | Channel::Resize => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_the_numbers_and_names_of_kubernetes() {
        let names = ["stdin", "stdout", "stderr", "error", "resize"];
        for (number, name) in (0..).zip(names) {
            let channel = Channel::from_number(number).unwrap();
            assert_eq!((channel.number(), channel.stream_type()), (number, name));
            assert_eq!(Channel::from_stream_type(name), Some(channel));
            let input = Input::from_number(number).map(Channel::from);
            let output = Output::from_number(number).map(Channel::from);
            assert_eq!(input.xor(output), Some(channel), "each has one direction");
        }
        assert_eq!(Channel::from_number(5), None);
        assert_eq!(Channel::from_stream_type("Stdin"), None);
    }
}
