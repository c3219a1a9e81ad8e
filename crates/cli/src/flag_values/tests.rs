use super::*;

#[test]
fn durations_are_parsed_as_by_go() {
    let table = [
        ("0", 0),
        ("0s", 0),
        ("30s", 30_000_000_000),
        ("+5s", 5_000_000_000),
        ("1m0s", 60_000_000_000),
        ("1m30s", 90_000_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("100ms", 100_000_000),
        ("7us", 7_000),
        ("7\u{b5}s", 7_000),
        ("7\u{3bc}s", 7_000),
        ("1h2m3s4ms5us6ns", 3_723_004_005_006),
        ("0.000000000000000000001h", 0),
        ("0.3333333333333333333h", 1_199_999_999_999),
        ("9223372036854775807ns", 9_223_372_036_854_775_807),
    ];
    for (text, nanos) in table {
        assert_eq!(duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
    }
    let wrong = [
        "",
        "+",
        "5",
        "s",
        ".s",
        ".",
        "1x",
        "1 s",
        "1d",
        "1m 30s",
        "s5",
        "1s5",
        "--1s",
        "ⅷs",
        "9223372036854775808ns",
        "99999999999999999999h",
        "3000000h",
    ];
    for text in wrong {
        assert!(duration(text).is_err(), "{text}");
    }
    assert!(duration("-5s").unwrap_err().contains("negative"));
    assert!(timeout("0s").is_err());
}

#[test]
fn lists_are_joined_and_split_at_commas() {
    let table: [(&[&str], &[&str]); 8] = [
        (&[], &[]),
        (&[""], &[]),
        (&["a"], &["a"]),
        (&["a,b", "c"], &["a", "b", "c"]),
        (&[" a , b "], &["a", "b"]),
        (&["\"a,b\",c"], &["a,b", "c"]),
        (&["\" a\""], &[" a"]),
        (&["\"say \"\"hi\"\"\" , x"], &["say \"hi\"", "x"]),
    ];
    for (values, expected) in table {
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        assert_eq!(list(&values).unwrap(), expected, "{values:?}");
    }
    for wrong in ["a,,b", ",", "a,", "\"a", "\"a\"b", "\"\""] {
        assert!(list(&[wrong.to_owned()]).is_err(), "{wrong}");
    }
}

#[test]
fn booleans_are_parsed_as_by_go() {
    assert_eq!(boolean("T"), Ok(true));
    assert_eq!(boolean("False"), Ok(false));
    for wrong in ["", "yes", "on", "tRUE", "2"] {
        assert!(boolean(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn numbers_must_be_in_their_range() {
    assert_eq!(number("0", &(0..=65_535_u16)), Ok(0));
    for wrong in ["", "-1", "65536", "1e3", "6443 ", "six"] {
        let message = number(wrong, &(0..=65_535_u16)).unwrap_err();
        assert!(message.contains("from 0 to 65535"), "{message}");
    }
}

#[test]
fn bytes_may_have_a_binary_suffix() {
    let range = 1024..=(1 << 40);
    for (text, number) in [
        ("1024", 1024),
        ("64Ki", 64 << 10),
        ("256Mi", 256 << 20),
        ("2Gi", 2 << 30),
    ] {
        assert_eq!(bytes(text, &range), Ok(number), "{text}");
    }
    for wrong in [
        "",
        "Mi",
        "+1Mi",
        "1.5Mi",
        "256M",
        "1023",
        "2048Gi",
        "99999999999999999999",
    ] {
        let message = bytes(wrong, &range).unwrap_err();
        assert!(message.contains("from 1024 to"), "{message}");
    }
}

#[test]
fn an_endpoint_is_a_host_with_an_optional_port() {
    let table = [
        ("https://10.0.0.1:6443", true, "10.0.0.1", Some(6443)),
        ("https://10.0.0.1:6443/", true, "10.0.0.1", Some(6443)),
        ("https://kube.example", true, "kube.example", None),
        ("HTTPS://kube.example", true, "kube.example", None),
        ("http://[::1]:2379", false, "::1", Some(2379)),
        ("https://[fd00::1]", true, "fd00::1", None),
    ];
    for (text, secure, host, port) in table {
        let endpoint = endpoint(text).unwrap();
        let parts = (endpoint.secure, endpoint.host.as_str(), endpoint.port);
        assert_eq!(parts, (secure, host, port), "{text}");
    }
    let wrong = [
        ("", "no scheme"),
        ("10.0.0.1:6443", "no scheme"),
        ("unix:///run/etcd", "is not a URL"),
        ("ftp://a", "neither http nor https"),
        ("https://a/b", "path"),
        ("https://a?b", "query"),
        ("https://a#b", "fragment"),
        ("https://a:0", "port"),
        ("https://a:65536", "port"),
        ("https://a:", "port"),
        ("https://a:x", "port"),
        ("https://", "is not a URL"),
        ("https://a b", "is not a URL"),
        ("https://[a]", "host"),
        ("https://-a-", "host"),
    ];
    for (text, expected) in wrong {
        let message = endpoint(text).unwrap_err();
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn a_password_in_a_url_is_not_repeated() {
    let message = endpoint("https://admin:secret@host").unwrap_err();
    assert!(!message.contains("secret"), "{message}");
}

#[test]
fn networks_need_a_prefix_length() {
    assert_eq!(cidr("10.1.2.3/24").unwrap().to_string(), "10.1.2.0/24");
    assert!(cidr("10.1.2.3").unwrap_err().contains("10.1.2.3/32"));
    assert!(cidr("fd00::1").unwrap_err().contains("fd00::1/128"));
    for wrong in ["", "10.0.0.0/33", "10.0.0/8", "all"] {
        assert!(cidr(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_admin_address_stays_on_loopback() {
    for right in ["127.0.0.1:0", "127.9.9.9:80", "[::1]:10270"] {
        assert!(loopback_socket(right).is_ok(), "{right}");
    }
    for wrong in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"] {
        let message = loopback_socket(wrong).unwrap_err();
        assert!(message.contains("not on loopback"), "{message}");
    }
    for wrong in ["localhost:1", ":10270", "127.0.0.1", "::1:1"] {
        let message = loopback_socket(wrong).unwrap_err();
        assert!(message.contains("is not IP:PORT"), "{message}");
        assert!(any_socket(wrong).is_err(), "{wrong}");
    }
    for right in ["0.0.0.0:10271", "10.0.0.1:0", "[::]:1"] {
        assert!(any_socket(right).is_ok(), "{right}");
    }
}

#[test]
fn identity_headers_must_not_have_another_meaning() {
    assert_eq!(identity_header("X-Remote-User").unwrap(), "x-remote-user");
    assert_eq!(
        identity_prefix("X-Remote-Extra-").unwrap(),
        "x-remote-extra-"
    );
    for wrong in ["", "a b", "Authorization", "Host", "é"] {
        assert!(identity_header(wrong).is_err(), "{wrong}");
    }
    for wrong in ["", "a b", "A", "X-", "impersonate-"] {
        assert!(identity_prefix(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn lease_names_are_dns_subdomains() {
    for right in ["a", "apiserver-0", "a.b-c.d9", &"a".repeat(253)] {
        assert!(dns_subdomain(right).is_ok(), "{right}");
    }
    for wrong in ["", "-a", "a-", "A", "a..b", ".a", "a_b", &"a".repeat(254)] {
        assert!(dns_subdomain(wrong).is_err(), "{wrong}");
    }
}
