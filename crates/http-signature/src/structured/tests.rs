#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;
use sfv::{Decimal, Integer, Key, KeyRef, Parameters, StringRef, TokenRef};

use super::*;

#[test]
fn items_are_parsed_and_serialized_in_one_form() {
    let rows: [(&str, Option<&str>); 44] = [
        ("1", Some("1")),
        ("-0", Some("0")),
        ("0042", Some("42")),
        ("-999999999999999", Some("-999999999999999")),
        ("1000000000000000", None),
        ("--1", None),
        ("-", None),
        ("1.5", Some("1.5")),
        ("-1.500", Some("-1.5")),
        ("-0.25", Some("-0.25")),
        ("1.0", Some("1.0")),
        ("100.000", Some("100.0")),
        ("1.", None),
        ("1.2345", None),
        ("123456789012.125", Some("123456789012.125")),
        ("1234567890123.1", None),
        ("\"\"", Some("\"\"")),
        ("\"a \\\"b\\\" \\\\\"", Some("\"a \\\"b\\\" \\\\\"")),
        ("\"a", None),
        ("\"\\n\"", None),
        ("\"\\", None),
        ("\"\u{e9}\"", None),
        ("\"\t\"", None),
        ("tok", Some("tok")),
        ("*a:/b%", Some("*a:/b%")),
        ("Foo", Some("Foo")),
        ("::", Some("::")),
        (":aGVsbG8=:", Some(":aGVsbG8=:")),
        // Missing padding is no error; unused bits that are not zero are.
        (":aGVsbG8:", Some(":aGVsbG8=:")),
        (":aGVsbG9=:", None),
        (":aGVs bG8=:", None),
        (":aGVsbG8=", None),
        (":_-:", None),
        ("?1", Some("?1")),
        ("?0", Some("?0")),
        ("?2", None),
        ("a;b;c=?1;d=?0;b=2", Some("a;b=2;c;d=?0")),
        ("a; b =1", None),
        ("a ;b", None),
        ("a;B", None),
        ("  a  ", Some("a")),
        ("\ta", None),
        ("", None),
        ("a b", None),
    ];
    for (text, expected) in rows {
        let read = parse_item(text.as_bytes()).map(|it| serialize(&it));
        assert_eq!(read.ok().as_deref(), expected, "{text}");
    }
}

#[test]
fn lists_are_parsed_and_serialized_in_one_form() {
    let rows = [
        ("", Some("")),
        ("  ", Some("")),
        ("a,b ,\tc", Some("a, b, c")),
        ("(a   b),()", Some("(a b), ()")),
        ("( a b );x;y=1", Some("(a b);x;y=1")),
        ("(a;p \"b\";q=2)", Some("(a;p \"b\";q=2)")),
        ("a,", None),
        ("a,,b", None),
        (",a", None),
        ("(a", None),
        ("(a,b)", None),
        ("(\"a\"\"b\")", None),
        ("((a))", None),
        ("a)", None),
    ];
    for (text, expected) in rows {
        let read = parse_list(text.as_bytes()).map(|it| serialize(&it));
        assert_eq!(read.ok().as_deref(), expected, "{text}");
    }
}

#[test]
fn dictionaries_are_parsed_and_serialized_in_one_form() {
    let rows = [
        ("", Some("")),
        (
            "a=1,    b=2;x=1;y=2,   c=(a   b   c), d",
            Some("a=1, b=2;x=1;y=2, c=(a b c), d"),
        ),
        ("a, b;x, c=?0, d=?1;y", Some("a, b;x, c=?0, d;y")),
        // The last value takes the place of the first.
        ("a=1, b=2, a=3", Some("a=3, b=2")),
        ("a=", None),
        ("a=1 b=2", None),
        ("A=1", None),
        ("1=1", None),
        ("a=1,", None),
        ("\"a\"=1", None),
    ];
    for (text, expected) in rows {
        let read = parse_dictionary(text.as_bytes()).map(|it| serialize(&it));
        assert_eq!(read.ok().as_deref(), expected, "{text}");
    }
}

#[test]
fn fields_beyond_the_bounds_are_refused() {
    let inner = |count: usize| format!("({})", vec!["a"; count].join(" "));
    assert!(InnerList::parse(inner(MAX_INNER_LIST_ITEMS).as_bytes()).is_ok());
    assert!(InnerList::parse(inner(MAX_INNER_LIST_ITEMS + 1).as_bytes()).is_err());
    let list = |count: usize| vec!["a"; count].join(",");
    assert!(parse_list(list(MAX_MEMBERS).as_bytes()).is_ok());
    assert!(parse_list(list(MAX_MEMBERS + 1).as_bytes()).is_err());
    let keys = |count: usize| (0..count).map(|it| format!("k{it}")).collect::<Vec<_>>();
    assert!(parse_dictionary(keys(MAX_MEMBERS).join(",").as_bytes()).is_ok());
    assert!(parse_dictionary(keys(MAX_MEMBERS + 1).join(",").as_bytes()).is_err());
    let parameters = |count: usize| format!("a;{}", keys(count).join(";"));
    assert!(parse_item(parameters(MAX_INNER_LIST_ITEMS).as_bytes()).is_ok());
    assert!(parse_item(parameters(MAX_INNER_LIST_ITEMS + 1).as_bytes()).is_err());
}

#[test]
fn byte_sequences_with_unused_bits_are_refused_in_every_position() {
    let rows = [
        ("a=:aGVsbG9=:", true),
        ("a=:aGVsbG9:", true),
        ("a=(x :aGVsbG9=:)", true),
        ("a;p=:aGVsbG9=:", true),
        ("a=:aGVsbG8=:, b=:aGVsbG9=:", true),
        ("a=\"\\\\\", b=:aGVsbG9=:", true),
        ("a=tok:, b=:aGVsbG9=:", true),
        // These are not byte sequences.
        ("a=\":aGVsbG9=:\"", false),
        ("a=\"\\\":aGVsbG9=:\"", false),
        ("a=x:aGVsbG9:", false),
        ("a=x:, b=:aGVsbG8=:", false),
        ("a=::, b=:aGVsbG8=:", false),
    ];
    for (text, refused) in rows {
        let parsed = parse_dictionary(text.as_bytes());
        let unused = matches!(parsed, Err(ParseError::UnusedBits));
        assert_eq!((unused, parsed.is_ok()), (refused, !refused), "{text}");
    }
}

#[test]
fn an_inner_list_is_parsed_on_its_own() {
    let rows = [
        ("()", Some("()")),
        (
            "( \"a\";x  b );created=1;tag=\"t\"",
            Some("(\"a\";x b);created=1;tag=\"t\""),
        ),
        ("", None),
        ("a", None),
        ("(a), (b)", None),
        ("(a),", None),
        (" (a)", None),
        ("(a) ", None),
        ("(a) b", None),
    ];
    for (text, expected) in rows {
        let list = InnerList::parse(text.as_bytes()).map(|it| it.to_string());
        assert_eq!(list.ok().as_deref(), expected, "{text}");
    }
}

#[test]
fn types_that_only_rfc_9651_has_are_refused() {
    for text in ["@1659578233", "%\"f%c3%bc\"", "a;p=@1"] {
        assert!(parse_item(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn errors_do_not_repeat_the_field() {
    for text in [&b"hunter2=:hunter2"[..], b"hunter2=:aGVsbG9=:", b"Hunter2"] {
        let error = parse_dictionary(text).unwrap_err().to_string();
        assert!(!error.to_ascii_lowercase().contains("hunter2"), "{error}");
    }
}

#[test]
fn values_without_a_serialized_form_cannot_be_created() {
    assert!(Integer::try_from(1_000_000_000_000_000_i64).is_err());
    assert!(Integer::try_from(-1_000_000_000_000_000_i64).is_err());
    assert!(StringRef::from_str("caf\u{e9}").is_err());
    assert!(StringRef::from_str("a\nb").is_err());
    for token in ["", "1a", "a b"] {
        assert!(TokenRef::from_str(token).is_err(), "{token}");
    }
    assert!(KeyRef::from_str("Upper").is_err());
}

fn bare_item() -> impl Strategy<Value = BareItem> {
    let integer = || {
        (-999_999_999_999_999_i64..=999_999_999_999_999)
            .prop_map(|number| Integer::try_from(number).unwrap())
    };
    prop_oneof![
        integer().prop_map(BareItem::Integer),
        integer().prop_map(|it| BareItem::Decimal(Decimal::from_integer_scaled_1000(it))),
        "[ -~]{0,12}".prop_map(|text| StringRef::from_str(&text).unwrap().into()),
        "[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]{0,8}"
            .prop_map(|text| TokenRef::from_str(&text).unwrap().into()),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(BareItem::ByteSequence),
        any::<bool>().prop_map(BareItem::Boolean),
    ]
}

fn key() -> impl Strategy<Value = Key> {
    "[a-z*][a-z0-9_.*-]{0,6}".prop_map(|text| KeyRef::from_str(&text).unwrap().to_owned())
}

fn parameters() -> impl Strategy<Value = Parameters> {
    proptest::collection::vec((key(), bare_item()), 0..4)
        .prop_map(|pairs| pairs.into_iter().collect())
}

fn item() -> impl Strategy<Value = Item> {
    (bare_item(), parameters()).prop_map(|(value, params)| Item::with_params(value, params))
}

fn member() -> impl Strategy<Value = ListEntry> {
    prop_oneof![
        item().prop_map(ListEntry::Item),
        (proptest::collection::vec(item(), 0..4), parameters())
            .prop_map(|(items, params)| sfv::InnerList::with_params(items, params).into()),
    ]
}

proptest! {
    #[test]
    fn serialized_fields_are_parsed_to_the_same_fields(members in proptest::collection::vec((key(), member()), 0..5)) {
        let mut dictionary = Dictionary::default();
        for (key, member) in &members {
            dictionary.insert(key.clone(), member.clone());
        }
        prop_assert_eq!(parse_dictionary(serialize(&dictionary).as_bytes()).unwrap(), dictionary);
        let list: List = members.into_iter().map(|it| it.1).collect();
        prop_assert_eq!(parse_list(serialize(&list).as_bytes()).unwrap(), list.clone());
        for member in list {
            if let ListEntry::InnerList(inner) = member {
                let inner = InnerList::from(inner);
                prop_assert_eq!(InnerList::parse(inner.to_string().as_bytes()).unwrap(), inner);
            }
        }
    }

    #[test]
    fn any_bytes_are_refused_or_have_a_stable_form(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(read) = parse_dictionary(&bytes) {
            let written = serialize(&read);
            prop_assert_eq!(serialize(&parse_dictionary(written.as_bytes()).unwrap()), written);
        }
        if let Ok(read) = parse_list(&bytes) {
            let written = serialize(&read);
            prop_assert_eq!(serialize(&parse_list(written.as_bytes()).unwrap()), written);
        }
    }
}
