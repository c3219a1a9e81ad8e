use super::*;

fn request(text: &str) -> Result<Option<RequestHead>, HeadError> {
    parse_request(&mut BytesMut::from(text))
}

fn response(text: &str, method: &Method) -> Result<Option<ResponseHead>, HeadError> {
    parse_response(&mut BytesMut::from(text), method)
}

#[test]
fn request_framing_follows_rfc_9112() {
    let rows: &[(&str, Result<Framing, ()>)] = &[
        ("", Ok(Framing::Empty)),
        ("Content-Length: 0\r\n", Ok(Framing::Empty)),
        ("Content-Length: 12\r\n", Ok(Framing::Length(12))),
        ("Transfer-Encoding: chunked\r\n", Ok(Framing::Chunked)),
        ("Transfer-Encoding: Chunked\r\n", Ok(Framing::Chunked)),
        ("Transfer-Encoding: gzip, chunked\r\n", Err(())),
        ("Transfer-Encoding: chunked, chunked\r\n", Err(())),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
            Err(()),
        ),
        ("Transfer-Encoding: xchunked\r\n", Err(())),
        (
            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
            Err(()),
        ),
        (
            "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
            Err(()),
        ),
        ("Content-Length: 3\r\nContent-Length: 4\r\n", Err(())),
        ("Content-Length: 3, 3\r\n", Err(())),
        ("Content-Length: +3\r\n", Err(())),
        ("Content-Length: -3\r\n", Err(())),
        ("Content-Length: 0x3\r\n", Err(())),
        ("Content-Length: \r\n", Err(())),
        ("Content-Length: 99999999999999999999\r\n", Err(())),
        ("Content-Length : 3\r\n", Err(())),
        ("Transfer-Encoding : chunked\r\n", Err(())),
        (" folded: x\r\n", Err(())),
        ("A: b\r\n folded\r\n", Err(())),
    ];
    for (fields, expected) in rows {
        let got = request(&format!("POST / HTTP/1.1\r\nHost: k\r\n{fields}\r\n"))
            .map(|head| head.expect("a whole head").framing)
            .map_err(|_| ());
        assert_eq!(&got, expected, "{fields:?}");
    }
}

#[test]
fn lines_of_a_request_end_in_cr_and_lf() {
    for text in [
        "GET / HTTP/1.1\nHost: k\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: k\nA: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: k\r\n\n",
        "\nGET / HTTP/1.1\r\nHost: k\r\n\r\n",
    ] {
        assert!(request(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_request_needs_exactly_one_host() {
    assert!(request("GET / HTTP/1.1\r\n\r\n").is_err());
    assert!(request("GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n").is_err());
    assert!(request("GET / HTTP/1.0\r\n\r\n").is_ok());
}

#[test]
fn keep_alive_is_decided_by_version_and_connection() {
    let keep = |version: &str, connection: &str| {
        request(&format!(
            "GET / HTTP/{version}\r\nHost: k\r\n{connection}\r\n"
        ))
        .unwrap()
        .unwrap()
        .keep_alive
    };
    assert!(keep("1.1", ""));
    assert!(!keep("1.1", "Connection: x, Close\r\n"));
    assert!(!keep("1.0", ""));
    assert!(keep("1.0", "Connection: keep-alive\r\n"));
}

#[test]
fn response_framing_depends_on_status_and_method() {
    let rows = [
        (
            "200 OK",
            "Content-Length: 5\r\n",
            Method::GET,
            Framing::Length(5),
        ),
        (
            "200 OK",
            "Content-Length: 5\r\n",
            Method::HEAD,
            Framing::Empty,
        ),
        ("200 OK", "", Method::GET, Framing::UntilClose),
        (
            "304 Not Modified",
            "Content-Length: 5\r\n",
            Method::GET,
            Framing::Empty,
        ),
        ("204 No Content", "", Method::GET, Framing::Empty),
        ("100 Continue", "", Method::POST, Framing::Empty),
        (
            "200 OK",
            "Transfer-Encoding: chunked\r\n",
            Method::GET,
            Framing::Chunked,
        ),
    ];
    for (status, fields, method, expected) in rows {
        let head = response(&format!("HTTP/1.1 {status}\r\n{fields}\r\n"), &method);
        assert_eq!(
            head.unwrap().unwrap().framing,
            expected,
            "{status} {fields:?}"
        );
    }
    assert!(
        response(
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            &Method::GET
        )
        .is_err()
    );
}

#[test]
fn any_split_of_the_bytes_gives_the_same_head() {
    let text = "\r\nPUT /apis/a/v1/x HTTP/1.1\r\nHost: k\r\nX-Long: abc\r\n\r\nrest";
    let mut buffer = BytesMut::new();
    for (at, byte) in text.bytes().enumerate() {
        buffer.extend_from_slice(&[byte]);
        let parsed = parse_request(&mut buffer).unwrap();
        if at + 1 == text.len() - "rest".len() {
            assert_eq!(parsed.unwrap().uri, "/apis/a/v1/x");
            return;
        }
        assert!(parsed.is_none(), "complete too early at byte {at}");
    }
}

#[test]
fn any_split_of_the_bytes_gives_the_same_end_of_a_head() {
    for text in ["GET / HTTP/1.1\r\nA: b\r\n\r\n", "GET / HTTP/1.1\nA: b\n\n"] {
        for step in 1..text.len() {
            let mut end = HeadTerminator::default();
            let mut at = 0;
            while at < text.len() {
                assert!(!end.reached(&text.as_bytes()[..at]), "{text:?} {step} {at}");
                at += step;
            }
            assert!(end.reached(text.as_bytes()), "{text:?} {step}");
        }
    }
}

#[test]
fn a_line_feed_before_a_request_is_refused_at_once() {
    assert!(request("\n").is_err());
    assert!(request("\n\nGET / HTTP/1.1\r\nHost: k\r\n").is_err());
    assert!(request("\r\n\r\nGET / HTTP/1.1\r\nHost: k\r\n\r\n").is_ok());
}

#[test]
fn many_fields_are_read_and_too_many_are_refused() {
    let head = |fields: usize| {
        use std::fmt::Write as _;
        let mut text = String::from("GET / HTTP/1.1\r\nHost: k\r\n");
        for field in 0..fields {
            let _ = write!(text, "x-{field}: 1\r\n");
        }
        request(&(text + "\r\n"))
    };
    assert_eq!(head(1000).unwrap().unwrap().headers.len(), 1001);
    assert_eq!(head(9000).unwrap_err(), HeadError::TooLarge);
}

#[test]
fn a_head_of_a_mebibyte_is_refused_and_one_just_below_is_read() {
    let head = |bytes: usize| {
        request(&format!(
            "GET / HTTP/1.1\r\nHost: k\r\nx: {}\r\n\r\n",
            "a".repeat(bytes)
        ))
    };
    assert!(head(MAX_HEAD_BYTES - 200).unwrap().is_some());
    assert_eq!(head(MAX_HEAD_BYTES).unwrap_err(), HeadError::TooLarge);
    // Refused while it is still arriving, not only when it is whole.
    let unfinished = format!(
        "GET / HTTP/1.1\r\nHost: k\r\nx: {}",
        "a".repeat(MAX_HEAD_BYTES)
    );
    assert_eq!(request(&unfinished).unwrap_err(), HeadError::TooLarge);
}

#[test]
fn a_too_long_target_is_distinguished_from_too_large_headers() {
    let head = |bytes: usize| {
        request(&format!(
            "GET /{} HTTP/1.1\r\nHost: k\r\n\r\n",
            "a".repeat(bytes - 1)
        ))
    };
    assert!(head(MAX_TARGET_BYTES).unwrap().is_some());
    for bytes in [MAX_TARGET_BYTES + 1, MAX_HEAD_BYTES, 2 * MAX_HEAD_BYTES] {
        assert_eq!(head(bytes).unwrap_err(), HeadError::TargetTooLong);
    }
    let unfinished = format!("GET /{}", "a".repeat(MAX_HEAD_BYTES));
    assert_eq!(request(&unfinished).unwrap_err(), HeadError::TargetTooLong);
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in proptest::collection::vec(0u8.., 0..512)) {
        let _ = parse_request(&mut BytesMut::from(&bytes[..]));
        let _ = parse_response(&mut BytesMut::from(&bytes[..]), &Method::GET);
    }
}
