//! Label selectors: `app=web,tier in (front, back),!canary,size>3`.

use std::collections::BTreeSet;

use crate::name_validation::{label_key_errors, label_value_errors};
use crate::status::FieldError;

/// Requirements on labels, all of which must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: LabelOperator,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelOperator {
    Exists,
    Missing,
    /// One of them; equality is a set of one.
    In(BTreeSet<String>),
    /// None of them, or no such label.
    NotIn(BTreeSet<String>),
    Above(i64),
    Below(i64),
}

impl LabelSelector {
    /// Parses a selector. The error is kube-apiserver's message.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser {
            tokens: tokens(text),
            at: 0,
        };
        parser.selector().map(Self)
    }

    /// Whether it matches labels.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0
            .iter()
            .all(|it| it.test.matches_value(label(&it.key)))
    }

    /// Whether it matches all labels.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }
}

impl LabelOperator {
    fn matches_value(&self, value: Option<&str>) -> bool {
        let number = || value?.parse::<i64>().ok();
        match self {
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
            Self::In(values) => value.is_some_and(|value| values.contains(value)),
            Self::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Self::Above(limit) => number().is_some_and(|number| number > *limit),
            Self::Below(limit) => number().is_some_and(|number| number < *limit),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    /// `= == != > < ! , ( )`, and nothing at the end.
    Mark(&'static str),
}

const END: &str = "";
const OPERATOR_TOKENS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];
const OPERATORS: &str = "in, notin, =, ==, !=, gt, lt";

fn tokens(text: &str) -> Vec<Token> {
    let is_space = |it: char| matches!(it, ' ' | '\t' | '\r' | '\n');
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        let mark = OPERATOR_TOKENS
            .into_iter()
            .find(|mark| rest.starts_with(mark));
        let length = if let Some(mark) = mark {
            found.push(Token::Mark(mark));
            mark.len()
        } else {
            let ends = |it: char| is_space(it) || "=!(),><".contains(it);
            let length = rest.find(ends).unwrap_or(rest.len());
            found.push(Token::Word(rest[..length].to_owned()));
            length
        };
        rest = rest[length..].trim_start_matches(is_space);
    }
    found.push(Token::Mark(END));
    found
}

impl Token {
    fn literal(&self) -> &str {
        match self {
            Self::Word(word) => word,
            Self::Mark(mark) => mark,
        }
    }
}

/// kube-apiserver's grammar, with its error messages.
struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Token {
        self.tokens
            .get(self.at)
            .cloned()
            .unwrap_or(Token::Mark(END))
    }

    fn next(&mut self) -> Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn selector(&mut self) -> Result<Vec<Requirement>, String> {
        let mut requirements = Vec::new();
        if self.peek() == Token::Mark(END) {
            return Ok(requirements);
        }
        loop {
            match self.peek() {
                Token::Word(_) | Token::Mark("!") => {}
                other @ Token::Mark(_) if requirements.is_empty() => {
                    return Err(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        other.literal()
                    ));
                }
                other @ Token::Mark(_) => {
                    return Err(format!(
                        "found '{}', expected: identifier after ','",
                        other.literal()
                    ));
                }
            }
            let requirement = self.requirement();
            requirements
                .push(requirement.map_err(|why| format!("unable to parse requirement: {why}"))?);
            match self.next() {
                Token::Mark(END) => return Ok(requirements),
                Token::Mark(",") => {}
                other => {
                    return Err(format!(
                        "found '{}', expected: ',' or 'end of string'",
                        other.literal()
                    ));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let negated = self.peek() == Token::Mark("!");
        if negated {
            self.next();
        }
        let key = match self.next() {
            Token::Word(key) => key,
            other @ Token::Mark(_) => {
                return Err(format!("found '{}', expected: identifier", other.literal()));
            }
        };
        check("<nil>", &key, &label_key_errors(&key))?;
        let ends = matches!(self.peek(), Token::Mark(END | ","));
        let test = match (negated, ends) {
            (true, _) => LabelOperator::Missing,
            (false, true) => LabelOperator::Exists,
            (false, false) => self.comparison(&key)?,
        };
        Ok(Requirement { key, test })
    }

    fn comparison(&mut self, key: &str) -> Result<LabelOperator, String> {
        let operator = self.next();
        let values = match operator.literal() {
            "in" | "notin" => self.values()?,
            "=" | "==" | "!=" | ">" | "<" => BTreeSet::from([self.value()?]),
            other => return Err(format!("found '{other}', expected: {OPERATORS}")),
        };
        for (place, value) in values.iter().enumerate() {
            let field = format!("values[{place}][{key}]");
            check(&field, value, &label_value_errors(value))?;
        }
        Ok(match operator.literal() {
            ">" => LabelOperator::Above(number(&values)?),
            "<" => LabelOperator::Below(number(&values)?),
            "!=" | "notin" => LabelOperator::NotIn(values),
            _ => LabelOperator::In(values),
        })
    }

    /// An empty value is valid: `app=`.
    fn value(&mut self) -> Result<String, String> {
        if matches!(self.peek(), Token::Mark(END | ",")) {
            return Ok(String::new());
        }
        match self.next() {
            Token::Word(word) => Ok(word),
            other @ Token::Mark(_) => {
                Err(format!("found '{}', expected: identifier", other.literal()))
            }
        }
    }

    /// `(a, b)`, where nothing is a value too.
    fn values(&mut self) -> Result<BTreeSet<String>, String> {
        match self.next() {
            Token::Mark("(") => {}
            other => return Err(format!("found '{}' expected: '('", other.literal())),
        }
        let mut values = BTreeSet::new();
        if self.peek() == Token::Mark(")") {
            self.next();
            return Ok(BTreeSet::from([String::new()]));
        }
        if let Token::Mark(mark) = self.peek()
            && mark != ","
        {
            return Err(format!("found '{mark}', expected: ',', ')' or identifier"));
        }
        loop {
            match self.next() {
                Token::Word(word) => {
                    values.insert(word);
                    match self.peek() {
                        Token::Mark(",") => {}
                        Token::Mark(")") => break,
                        other => {
                            let other = other.literal();
                            return Err(format!("found '{other}', expected: ',' or ')'"));
                        }
                    }
                }
                Token::Mark(",") => {
                    if values.is_empty() || matches!(self.peek(), Token::Mark("," | ")")) {
                        values.insert(String::new());
                    }
                    if self.peek() == Token::Mark(")") {
                        break;
                    }
                }
                other @ Token::Mark(_) => {
                    let other = other.literal();
                    return Err(format!("found '{other}', expected: ',', or identifier"));
                }
            }
        }
        self.next();
        Ok(values)
    }
}

fn number(values: &BTreeSet<String>) -> Result<i64, String> {
    let value = values.first().map(String::as_str).unwrap_or_default();
    let why = "for 'Gt', 'Lt' operators, the value must be an integer";
    let number = value.parse().ok();
    number.ok_or_else(|| FieldError::invalid("values[0]", value, why).to_string())
}

fn check(field: &str, value: &str, errors: &[String]) -> Result<(), String> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(FieldError::invalid(field, value, errors.join("; ")).to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LABELS: [(&str, &str); 4] = [
        ("app", "web"),
        ("tier", "front"),
        ("size", "5"),
        ("example.com/empty", ""),
    ];

    fn matches(selector: &str) -> bool {
        let labels = LabelSelector::parse(selector).unwrap();
        labels.matches(|key| LABELS.iter().find(|it| it.0 == key).map(|it| it.1))
    }

    #[test]
    fn label_selectors_of_kubectl_are_supported() {
        let rows = [
            ("", true),
            ("app", true),
            ("none", false),
            ("!app", false),
            ("! none", true),
            ("app=web", true),
            ("app == web", true),
            ("app=other", false),
            ("app!=other", true),
            ("none!=other", true),
            ("app!=web", false),
            ("app=web,tier=front", true),
            ("app=web,tier=back", false),
            ("tier in (front, back)", true),
            ("tier in (back)", false),
            ("tier notin (front)", false),
            ("none notin (front)", true),
            ("none in (front)", false),
            ("size>4", true),
            ("size > 5", false),
            ("size<6", true),
            ("app>4", false),
            ("example.com/empty=", true),
            ("example.com/empty in ()", true),
            ("example.com/empty in (,x)", true),
            ("example.com/empty in (x,)", true),
            ("app=,tier", false),
            ("in=x", false),
            ("in in (in)", false),
        ];
        for (selector, expected) in rows {
            assert_eq!(matches(selector), expected, "{selector}");
        }
    }

    #[test]
    fn malformed_selectors_have_kube_apiservers_message() {
        let rows = [
            (
                "=web",
                "found '=', expected: !, identifier, or 'end of string'",
            ),
            ("app=web,", "found '', expected: identifier after ','"),
            ("app=web=x", "found '=', expected: ',' or 'end of string'"),
            (
                "app web",
                "unable to parse requirement: found 'web', expected: in, notin, =, ==, !=, gt, lt",
            ),
            (
                "app in web",
                "unable to parse requirement: found 'web' expected: '('",
            ),
            (
                "app in (a b)",
                "unable to parse requirement: found 'b', expected: ',' or ')'",
            ),
            (
                "app in (a",
                "unable to parse requirement: found '', expected: ',' or ')'",
            ),
            (
                "app in (=",
                "unable to parse requirement: found '=', expected: ',', ')' or identifier",
            ),
            (
                "app=(",
                "unable to parse requirement: found '(', expected: identifier",
            ),
            (
                "!",
                "unable to parse requirement: found '', expected: identifier",
            ),
            ("!app=x", "found '=', expected: ',' or 'end of string'"),
            (
                "size>x",
                "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
        ];
        for (selector, expected) in rows {
            assert_eq!(
                LabelSelector::parse(selector),
                Err(expected.to_owned()),
                "{selector}"
            );
        }
        let error = LabelSelector::parse("app=-x").unwrap_err();
        let begins = "unable to parse requirement: values[0][app]: Invalid value: \"-x\": a valid \
                      label must be an empty string or";
        assert!(error.starts_with(begins), "{error}");
        let error = LabelSelector::parse("a/b/c").unwrap_err();
        let begins = "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label";
        assert!(error.starts_with(begins), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[a-c=!(),<> \\-/é]{0,24}") {
            let _ = LabelSelector::parse(&text);
        }

        #[test]
        fn in_and_notin_are_complements(
            values in proptest::collection::btree_set("[a-d]", 1..4), value in proptest::option::of("[a-d]"),
        ) {
            let list = values.iter().cloned().collect::<Vec<_>>().join(",");
            let among = LabelSelector::parse(&format!("key in ({list})")).unwrap();
            let not = LabelSelector::parse(&format!("key notin ({list})")).unwrap();
            let label = |_: &str| value.as_deref();
            prop_assert_ne!(among.matches(label), not.matches(label));
        }
    }
}
