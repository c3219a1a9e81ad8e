#![allow(clippy::unwrap_used, clippy::expect_used)]

use proptest::prelude::*;

use super::*;

#[test]
fn items_have_one_reading_and_one_form() {
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
        // Padding that is missing is no error; bits that are left over are.
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
        let read = Item::parse(text.as_bytes()).map(|it| it.to_string());
        assert_eq!(read.ok().as_deref(), expected, "{text}");
    }
}

#[test]
fn lists_have_one_reading_and_one_form() {
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
        let read = List::parse(text.as_bytes()).map(|it| it.to_string());
        assert_eq!(read.ok().as_deref(), expected, "{text}");
    }
}

#[test]
fn dictionaries_have_one_reading_and_one_form() {
    let rows = [
        ("", Some("")),
        (
            "a=1,    b=2;x=1;y=2,   c=(a   b   c), d",
            Some("a=1, b=2;x=1;y=2, c=(a b c), d"),
        ),
        ("a, b;x, c=?0, d=?1;y", Some("a, b;x, c=?0, d;y")),
        // The last counts, in the place of the first.
        ("a=1, b=2, a=3", Some("a=3, b=2")),
        ("a=", None),
        ("a=1 b=2", None),
        ("A=1", None),
        ("1=1", None),
        ("a=1,", None),
        ("\"a\"=1", None),
    ];
    for (text, expected) in rows {
        let read = Dictionary::parse(text.as_bytes()).map(|it| it.to_string());
        assert_eq!(read.ok().as_deref(), expected, "{text}");
    }
}

#[test]
fn no_more_is_read_than_the_bounds() {
    let inner = |count: usize| format!("({})", vec!["a"; count].join(" "));
    assert!(InnerList::parse(inner(MAX_INNER).as_bytes()).is_ok());
    assert!(InnerList::parse(inner(MAX_INNER + 1).as_bytes()).is_err());
    let list = |count: usize| vec!["a"; count].join(",");
    assert!(List::parse(list(MAX_MEMBERS).as_bytes()).is_ok());
    assert!(List::parse(list(MAX_MEMBERS + 1).as_bytes()).is_err());
    let keys = |count: usize| (0..count).map(|it| format!("k{it}")).collect::<Vec<_>>();
    assert!(Dictionary::parse(keys(MAX_MEMBERS).join(",").as_bytes()).is_ok());
    assert!(Dictionary::parse(keys(MAX_MEMBERS + 1).join(",").as_bytes()).is_err());
    let parameters = |count: usize| format!("a;{}", keys(count).join(";"));
    assert!(Item::parse(parameters(MAX_INNER).as_bytes()).is_ok());
    assert!(Item::parse(parameters(MAX_INNER + 1).as_bytes()).is_err());
}

#[test]
fn what_has_no_form_is_said_before_it_is_written() {
    let rows = [
        BareItem::Integer(1_000_000_000_000_000),
        BareItem::Decimal(i64::MIN + 1),
        BareItem::String("caf\u{e9}".to_owned()),
        BareItem::String("a\nb".to_owned()),
        BareItem::Token(String::new()),
        BareItem::Token("1a".to_owned()),
        BareItem::Token("a b".to_owned()),
    ];
    for value in rows {
        assert!(Item::new(value.clone()).check().is_err(), "{value:?}");
        let mut parameters = Parameters::default();
        parameters.set("p", value);
        let list = InnerList {
            items: Vec::new(),
            parameters,
        };
        assert!(list.check().is_err());
    }
    let mut dictionary = Dictionary::default();
    dictionary.set("Upper", Member::InnerList(InnerList::default()));
    assert!(dictionary.check().is_err());
}

fn bare_item() -> impl Strategy<Value = BareItem> {
    prop_oneof![
        (-999_999_999_999_999_i64..=999_999_999_999_999).prop_map(BareItem::Integer),
        (-999_999_999_999_999_i64..=999_999_999_999_999).prop_map(BareItem::Decimal),
        "[ -~]{0,12}".prop_map(BareItem::String),
        "[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]{0,8}".prop_map(BareItem::Token),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(BareItem::Bytes),
        any::<bool>().prop_map(BareItem::Boolean),
    ]
}

fn parameters() -> impl Strategy<Value = Parameters> {
    proptest::collection::vec(("[a-z*][a-z0-9_.*-]{0,6}", bare_item()), 0..4).prop_map(|pairs| {
        let mut parameters = Parameters::default();
        for (key, value) in pairs {
            parameters.set(key, value);
        }
        parameters
    })
}

fn item() -> impl Strategy<Value = Item> {
    (bare_item(), parameters()).prop_map(|(value, parameters)| Item { value, parameters })
}

fn member() -> impl Strategy<Value = Member> {
    prop_oneof![
        item().prop_map(Member::Item),
        (proptest::collection::vec(item(), 0..4), parameters())
            .prop_map(|(items, parameters)| Member::InnerList(InnerList { items, parameters })),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(members in proptest::collection::vec(("[a-z*][a-z0-9_.*-]{0,6}", member()), 0..5)) {
        let mut dictionary = Dictionary::default();
        for (key, member) in &members {
            dictionary.set(key.clone(), member.clone());
        }
        prop_assert!(dictionary.check().is_ok());
        prop_assert_eq!(Dictionary::parse(dictionary.to_string().as_bytes()).unwrap(), dictionary);
        let list = List(members.into_iter().map(|it| it.1).collect());
        prop_assert_eq!(List::parse(list.to_string().as_bytes()).unwrap(), list);
    }

    #[test]
    fn any_bytes_are_refused_or_come_out_in_a_form_that_is_stable(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(read) = Dictionary::parse(&bytes) {
            let written = read.to_string();
            prop_assert_eq!(Dictionary::parse(written.as_bytes()).unwrap().to_string(), written);
        }
        if let Ok(read) = List::parse(&bytes) {
            let written = read.to_string();
            prop_assert_eq!(List::parse(written.as_bytes()).unwrap().to_string(), written);
        }
    }
}
