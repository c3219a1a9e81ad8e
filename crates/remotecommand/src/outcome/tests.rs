use proptest::prelude::*;

use super::*;
use crate::outcome::error_channel::{ErrorChannelEnd, MAX_ERROR_BYTES};

const ALL: [Version; 5] = [
    Version::V1,
    Version::V2,
    Version::V3,
    Version::V4,
    Version::V5,
];

fn exited(code: u8) -> Outcome {
    Outcome::Exited(ExitCode::new(code).unwrap())
}

fn failed(code: Option<u16>, reason: &str, message: &str) -> Outcome {
    Outcome::Failed(Failure {
        code,
        reason: reason.to_owned(),
        message: message.to_owned(),
    })
}

#[test]
fn a_status_is_encoded_as_kube_apiserver_does() {
    let rows = [
        (Outcome::Success, r#"{"metadata":{},"status":"Success"}"#),
        (
            exited(3),
            concat!(
                r#"{"metadata":{},"status":"Failure","#,
                r#""message":"command terminated with non-zero exit code: command terminated with exit code 3","#,
                r#""reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}"#,
            ),
        ),
        (
            Outcome::Failed(Failure::internal("no such container")),
            concat!(
                r#"{"metadata":{},"status":"Failure","message":"Internal error occurred: no such container","#,
                r#""reason":"InternalError","details":{"causes":[{"message":"no such container"}]},"code":500}"#,
            ),
        ),
        (
            failed(Some(403), "Forbidden", "no"),
            r#"{"metadata":{},"status":"Failure","message":"no","reason":"Forbidden","code":403}"#,
        ),
    ];
    for (outcome, expected) in rows {
        for version in [Version::V4, Version::V5] {
            assert_eq!(outcome.encode(version), expected);
            assert_eq!(Outcome::decode(version, expected.as_bytes()), outcome);
        }
    }
}

#[test]
fn a_status_is_decoded_as_client_go_does() {
    let rows = [
        // As runtimes write it, with and without the other fields of metav1.Status.
        (r#"{"status":"Success"}"#, Outcome::Success),
        (
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}"#,
            Outcome::Success,
        ),
        (
            r#"{"status":"Failure","message":"command terminated with non-zero exit code: error executing command [sh], exit code 137","reason":"NonZeroExitCode","details":{"causes":[{"reason":"Other","message":"1"},{"reason":"ExitCode","message":"137"}]}}"#,
            exited(137),
        ),
        (
            r#"{"status":"Failure","message":"Internal error occurred: error executing command in container: x","reason":"InternalError","code":500}"#,
            failed(
                Some(500),
                "InternalError",
                "Internal error occurred: error executing command in container: x",
            ),
        ),
        (
            r#"{"status":"Failure","message":"m"}"#,
            failed(None, "", "m"),
        ),
    ];
    for (json, outcome) in rows {
        assert_eq!(
            Outcome::decode(Version::V4, json.as_bytes()),
            outcome,
            "{json}"
        );
    }
    // Neither a success nor an exit code.
    for json in [
        "{}",
        r#"{"status":"Maybe"}"#,
        r#"{"status":"Failure","reason":"NonZeroExitCode"}"#,
        r#"{"status":"Failure","reason":"NonZeroExitCode","details":{}}"#,
        r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"0"}]}}"#,
        r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"256"}]}}"#,
        r#"{"status":"Success"} and more"#,
        "command terminated",
        "\u{feff}",
    ] {
        let outcome = Outcome::decode(Version::V4, json.as_bytes());
        assert!(matches!(outcome, Outcome::Failed(_)), "{json}: {outcome:?}");
    }
}

#[test]
fn earlier_versions_use_plain_text_and_an_empty_channel_for_success() {
    for version in [Version::V1, Version::V2, Version::V3] {
        assert_eq!(Outcome::Success.encode(version), "");
        let text =
            "command terminated with non-zero exit code: command terminated with exit code 3";
        assert_eq!(exited(3).encode(version), text);
        let rows = [
            (text, exited(3)),
            (
                "command terminated with non-zero exit code: exit status 1",
                exited(1),
            ),
            (
                "command terminated with non-zero exit code: signal: killed",
                failed(
                    None,
                    "",
                    "command terminated with non-zero exit code: signal: killed",
                ),
            ),
            (
                "Internal error occurred: x",
                failed(None, "", "Internal error occurred: x"),
            ),
        ];
        for (text, outcome) in rows {
            assert_eq!(Outcome::decode(version, text.as_bytes()), outcome, "{text}");
        }
    }
}

#[test]
fn an_end_without_a_status_is_not_a_success() {
    let end = |version, bytes: &str, end| {
        let mut channel = ErrorChannel::new(version);
        channel.push(bytes.as_bytes());
        channel.end(end)
    };
    for version in ALL {
        assert_eq!(
            end(version, "", ErrorChannelEnd::Aborted),
            Outcome::Disconnected
        );
        // A complete result counts, whatever comes after it.
        let encoded = exited(1).encode(version);
        let encoded = str::from_utf8(&encoded).unwrap();
        assert_eq!(end(version, encoded, ErrorChannelEnd::Aborted), exited(1));
        let reencoded = Outcome::Disconnected.encode(version);
        assert!(matches!(
            Outcome::decode(version, &reencoded),
            Outcome::Failed(_)
        ));
    }
    for version in [Version::V4, Version::V5] {
        assert_eq!(
            end(version, "", ErrorChannelEnd::Clean),
            Outcome::Disconnected
        );
        assert_eq!(
            end(version, r#"{"status":"Succ"#, ErrorChannelEnd::Clean),
            Outcome::Disconnected
        );
    }
    assert_eq!(
        end(Version::V3, "", ErrorChannelEnd::Clean),
        Outcome::Success
    );
}

#[test]
fn the_error_channel_is_bounded() {
    for version in ALL {
        let mut channel = ErrorChannel::new(version);
        for _ in 0..100 {
            channel.push(&[b'x'; 4096]);
        }
        assert_eq!(channel.bytes().len(), MAX_ERROR_BYTES);
        assert!(matches!(
            channel.end(ErrorChannelEnd::Clean),
            Outcome::Failed(_)
        ));
    }
}

#[test]
fn exit_codes_map_to_signals() {
    let signal = |code| ExitCode::new(code).and_then(ExitCode::signal);
    assert_eq!(
        [0, 1, 128, 130, 137, 143, 192, 255].map(signal),
        [None, None, None, Some(2), Some(9), Some(15), Some(64), None]
    );
    assert_eq!(ExitCode::new(0), None);
}

proptest! {
    #[test]
    fn encoded_results_decode_to_themselves(
        code in prop::option::of(1..600u16), reason in "[A-Z][A-Za-z]{0,8}", message in "\\PC{1,30}", exit in 1..=255u8,
    ) {
        prop_assume!(reason != "NonZeroExitCode");
        let failure = failed(code, &reason, &message);
        for outcome in [Outcome::Success, exited(exit), failure] {
            for version in [Version::V4, Version::V5] {
                prop_assert_eq!(Outcome::decode(version, &outcome.encode(version)), outcome.clone());
            }
        }
        for version in [Version::V1, Version::V2, Version::V3] {
            prop_assert_eq!(Outcome::decode(version, &exited(exit).encode(version)), exited(exit));
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
        for version in ALL {
            let outcome = Outcome::decode(version, &bytes);
            prop_assert!(bytes.is_empty() || outcome != Outcome::Success);
        }
    }
}
