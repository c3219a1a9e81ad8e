//! The query of a request.

use percent_encoding::percent_decode_str;
use skewbridge_k8s_api::status::Status;

use crate::status::{FieldError, FieldErrorKind, invalid};
use crate::store::DryRun;

/// Names and values, decoded, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn parse(text: Option<&str>) -> Self {
        let pairs = text.unwrap_or_default().split('&');
        let pairs = pairs.filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Self(pairs.collect())
    }

    /// The first value of a name; empty where there is none.
    pub(super) fn get(&self, name: &str) -> &str {
        self.find(name).unwrap_or_default()
    }

    pub(super) fn find(&self, name: &str) -> Option<&str> {
        let mut pairs = self.0.iter();
        let found = pairs.find(|(key, _)| key == name)?;
        Some(&found.1)
    }

    /// Booleans as Kubernetes parses them: anything but `false` and `0` is true.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        let value = self.find(name)?;
        Some(!value.eq_ignore_ascii_case("false") && value != "0")
    }

    /// A number that is not negative.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, Status> {
        match self.get(name) {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                let text = crate::status::quoted(text);
                Status::bad_request(format!("strconv.ParseInt: parsing {text}: invalid syntax"))
            }),
        }
    }

    /// Whether a write is a dry run, by `dryRun`.
    pub(super) fn dry_run(&self, options: &'static str) -> Result<DryRun, Status> {
        dry_run(
            self.0
                .iter()
                .filter(|(name, _)| name == "dryRun")
                .map(|(_, value)| &**value),
            options,
        )
    }
}

/// Whether a write is a dry run, by the values of `dryRun`.
pub(super) fn dry_run<'a>(
    values: impl Iterator<Item = &'a str>,
    options: &'static str,
) -> Result<DryRun, Status> {
    let mut dry_run = DryRun::Off;
    for value in values {
        match value {
            "All" => dry_run = DryRun::On,
            "" => {}
            other => {
                let why = r#"supported values: "All""#;
                let error = FieldError {
                    field: "dryRun".to_owned(),
                    fault: FieldErrorKind::Unsupported(other.to_owned(), why.to_owned()),
                };
                return Err(invalid("meta.k8s.io", options, "", &[error]));
            }
        }
    }
    Ok(dry_run)
}

fn decode(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_options_are_parsed() {
        let query = Query::parse(Some(
            "labelSelector=a%3Db%2Cc&watch&limit=5&x=1+2&follow=false",
        ));
        assert_eq!(query.get("labelSelector"), "a=b,c");
        assert_eq!(query.flag("watch"), Some(true));
        assert_eq!(query.flag("follow"), Some(false));
        assert_eq!(query.flag("none"), None);
        assert_eq!(query.number("limit"), Ok(Some(5)));
        assert_eq!(query.get("x"), "1 2");
        assert_eq!(query.number("x").unwrap_err().code, 400);
    }

    #[test]
    fn only_all_is_a_dry_run() {
        let dry_run = |text| Query::parse(Some(text)).dry_run("CreateOptions");
        assert_eq!(dry_run("dryRun=All"), Ok(DryRun::On));
        assert_eq!(dry_run("dryRun="), Ok(DryRun::Off));
        assert_eq!(dry_run(""), Ok(DryRun::Off));
        let refused = dry_run("dryRun=some").unwrap_err();
        assert_eq!(
            refused.message,
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"some\": \
             supported values: \"All\""
        );
    }
}
