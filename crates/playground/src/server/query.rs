//! The query of a request: options of the API.

use percent_encoding::percent_decode_str;
use skewbridge_k8s_api::status::Status;

use crate::status::{Fault, FieldError, invalid};
use crate::store::Effect;

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

    /// As Kubernetes reads what is true or false: anything but `false` and `0` is true.
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

    /// Whether a write is to be done, by `dryRun`.
    pub(super) fn effect(&self, options: &'static str) -> Result<Effect, Status> {
        effect(
            self.0
                .iter()
                .filter(|(name, _)| name == "dryRun")
                .map(|(_, value)| &**value),
            options,
        )
    }
}

/// Whether a write is to be done, by the values of `dryRun`.
pub(super) fn effect<'a>(
    values: impl Iterator<Item = &'a str>,
    options: &'static str,
) -> Result<Effect, Status> {
    let mut effect = Effect::Lasting;
    for value in values {
        match value {
            "All" => effect = Effect::DryRun,
            "" => {}
            other => {
                let why = r#"supported values: "All""#;
                let error = FieldError {
                    field: "dryRun".to_owned(),
                    fault: Fault::Unsupported(other.to_owned(), why.to_owned()),
                };
                return Err(invalid("meta.k8s.io", options, "", &[error]));
            }
        }
    }
    Ok(effect)
}

fn decode(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_as_they_are_written() {
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
        let effect = |text| Query::parse(Some(text)).effect("CreateOptions");
        assert_eq!(effect("dryRun=All"), Ok(Effect::DryRun));
        assert_eq!(effect("dryRun="), Ok(Effect::Lasting));
        assert_eq!(effect(""), Ok(Effect::Lasting));
        let refused = effect("dryRun=some").unwrap_err();
        assert_eq!(
            refused.message,
            "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"some\": \
             supported values: \"All\""
        );
    }
}
