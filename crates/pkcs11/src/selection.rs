//! Selection of a token and a key: RFC 7512 URIs, and flags with the same meaning.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use percent_encoding::percent_decode_str;

/// Why a URI with a PIN is refused. The text does not contain the PIN.
pub const PIN_REFUSED: &str = "pin-value is refused, because other processes can read arguments; \
                               write the PIN to a file and name the file with pin-source or \
                               --pkcs11-pin-file, or use --pkcs11-askpass";

/// Attributes that a token and a key must have. An absent attribute matches everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// The token's label.
    pub token: Option<String>,
    /// The token's serial number.
    pub serial: Option<String>,
    /// The token's manufacturer.
    pub manufacturer: Option<String>,
    /// The token's model.
    pub model: Option<String>,
    /// The label of key and certificate.
    pub object: Option<String>,
    /// The identifier (`CKA_ID`) of key and certificate.
    pub id: Option<Vec<u8>>,
    /// The PKCS#11 library: `module-path`.
    pub module: Option<PathBuf>,
    /// The file with the PIN: `pin-source`.
    pub pin_file: Option<PathBuf>,
}

impl FromStr for Selection {
    type Err = String;

    /// Parses `pkcs11:NAME=VALUE;NAME=VALUE?NAME=VALUE&NAME=VALUE`. Errors do not quote
    /// values, because a value may be a PIN.
    fn from_str(text: &str) -> Result<Self, String> {
        if Self::mentions_pin(text) {
            return Err(PIN_REFUSED.to_owned());
        }
        let rest = text
            .get(..7)
            .filter(|scheme| scheme.eq_ignore_ascii_case("pkcs11:"))
            .and_then(|_| text.get(7..))
            .ok_or("it does not begin with pkcs11:")?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut found = Self::default();
        let mut seen = Vec::new();
        for part in path.split(';').filter(|part| !part.is_empty()) {
            let (name, value) = pair(part)?;
            if seen.contains(&name) {
                return Err(format!("{name} is given twice"));
            }
            seen.push(name);
            match name {
                "token" => found.token = Some(text_of(name, value)?),
                "serial" => found.serial = Some(text_of(name, value)?),
                "manufacturer" => found.manufacturer = Some(text_of(name, value)?),
                "model" => found.model = Some(text_of(name, value)?),
                "object" => found.object = Some(text_of(name, value)?),
                "id" => found.id = Some(percent_decode_str(value).collect()),
                "type" if matches!(value, "private" | "cert") => {}
                "type" => return Err("type is neither private nor cert".to_owned()),
                // RFC 7512, 2.3: an unknown attribute cannot be matched and must not be
                // ignored.
                _ => return Err(format!("{name} is not a known attribute")),
            }
        }
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = pair(part)?;
            match name {
                "module-path" => found.module = Some(text_of(name, value)?.into()),
                "pin-source" => {
                    let source = text_of(name, value)?;
                    let path = source.strip_prefix("file:").unwrap_or(&source);
                    found.pin_file = Some(path.trim_start_matches("//").into());
                }
                _ => return Err(format!("{name} is not a known attribute")),
            }
        }
        Ok(found)
    }
}

fn pair(part: &str) -> Result<(&str, &str), String> {
    part.split_once('=')
        .ok_or_else(|| "it has a part that is not NAME=VALUE".to_owned())
}

fn text_of(name: &str, value: &str) -> Result<String, String> {
    percent_decode_str(value)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| format!("{name} is not text"))
}

impl Selection {
    /// Whether a text contains the RFC 7512 attribute for a PIN, at any position: after a
    /// wrong separator (`token=a&pin-value=1234`) the PIN would be part of another value,
    /// which messages quote.
    pub fn mentions_pin(text: &str) -> bool {
        text.to_ascii_lowercase().contains("pin-value")
    }

    /// Fills absent attributes from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            token: self.token.or(other.token),
            serial: self.serial.or(other.serial),
            manufacturer: self.manufacturer.or(other.manufacturer),
            model: self.model.or(other.model),
            object: self.object.or(other.object),
            id: self.id.or(other.id),
            module: self.module.or(other.module),
            pin_file: self.pin_file.or(other.pin_file),
        }
    }

    /// Whether a token matches.
    pub(crate) fn matches_token(
        &self,
        label: &str,
        serial: &str,
        manufacturer: &str,
        model: &str,
    ) -> bool {
        let matches =
            |wanted: &Option<String>, is: &str| wanted.as_ref().is_none_or(|it| it == is.trim());
        matches(&self.token, label)
            && matches(&self.serial, serial)
            && matches(&self.manufacturer, manufacturer)
            && matches(&self.model, model)
    }

    /// Whether a key or a certificate matches.
    pub(crate) fn matches_object(&self, label: &str, id: &[u8]) -> bool {
        self.object.as_ref().is_none_or(|it| it == label)
            && self.id.as_ref().is_none_or(|it| it == id)
    }
}

/// Describes the token in messages.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let attributes = [
            ("token", &self.token),
            ("serial", &self.serial),
            ("manufacturer", &self.manufacturer),
            ("model", &self.model),
        ];
        let mut any = false;
        for (name, value) in attributes {
            if let Some(value) = value {
                let between = if any { ", " } else { "" };
                write!(f, "{between}{name} {value:?}")?;
                any = true;
            }
        }
        if any {
            Ok(())
        } else {
            f.write_str("any token")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_parsed_as_in_rfc_7512() {
        let read = |text: &str| text.parse::<Selection>();
        let all = "pkcs11:token=The%20Software%20Token;serial=1b;manufacturer=m;model=x;\
                   object=my-key;id=%69%95%3E;type=private?module-path=/usr/lib/m.so\
                   &pin-source=file:/run/pin";
        let found = read(all).unwrap();
        assert_eq!(found.token.as_deref(), Some("The Software Token"));
        assert_eq!(found.id.as_deref(), Some(&[0x69, 0x95, 0x3e][..]));
        assert_eq!(found.module, Some("/usr/lib/m.so".into()));
        assert_eq!(found.pin_file, Some("/run/pin".into()));
        assert_eq!(read("pkcs11:").unwrap(), Selection::default());
        assert_eq!(read("PKCS11:token=a").unwrap().token.as_deref(), Some("a"));
        let rows = [
            ("token=a", "does not begin"),
            ("pkcs11:token", "not NAME=VALUE"),
            ("pkcs11:token=a;token=b", "token is given twice"),
            ("pkcs11:slot-id=1", "slot-id is not a known attribute"),
            ("pkcs11:type=public", "type is neither"),
            ("pkcs11:token=%ff", "token is not text"),
            ("pkcs11:token=a?pin-value=hunter2", "--pkcs11-pin-file"),
            ("pkcs11:token=a;PIN-value=hunter2", "pin-source"),
            ("pkcs11:token=a&pin-value=hunter2", "--pkcs11-askpass"),
            ("token=a?pin-value=hunter2", "pin-value is refused"),
            ("pkcs11:?x=hunter2", "x is not a known attribute"),
        ];
        for (text, expected) in rows {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn absent_attributes_match_everything() {
        let which = Selection {
            token: Some("jane".to_owned()),
            object: Some("k".to_owned()),
            ..Selection::default()
        };
        assert!(which.matches_token("jane  ", "1", "m", "x"));
        assert!(!which.matches_token("joe", "1", "m", "x"));
        assert!(which.matches_object("k", b"1"));
        assert!(!which.matches_object("l", b"1"));
        assert_eq!(which.to_string(), "token \"jane\"");
    }
}
