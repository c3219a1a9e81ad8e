//! A user's credential: request headers and a client certificate.

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use crate::Secret;
use crate::error::{Entry, Error};
use crate::kubeconfig::{Exec, Impersonation, Target, User, read_secret_file};
use crate::transport::{
    Certificate, basic_value, bearer_header, bearer_value, is_valid_header_value,
};

/// The characters that are not escaped in a header name; all others are, as in client-go.
const EXTRA_KEY_ESCAPES: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'!')
    .remove(b'#')
    .remove(b'$')
    .remove(b'&')
    .remove(b'\'')
    .remove(b'*')
    .remove(b'+')
    .remove(b'-')
    .remove(b'.')
    .remove(b'^')
    .remove(b'_')
    .remove(b'`')
    .remove(b'|')
    .remove(b'~');

/// A user's credential.
#[derive(Debug, Clone, Default)]
pub(crate) struct Credential {
    /// Headers of every request, without secrets.
    pub(crate) headers: HeaderMap,
    /// The value of `Authorization`. Stored as a secret so that it is zeroed; the header is
    /// made for each connection.
    pub(crate) authorization: Option<Secret>,
    /// The client certificate for the TLS handshake.
    pub(crate) certificate: Option<Certificate>,
    /// The credential plugin, if no other credential is configured.
    pub(crate) plugin: Option<Exec>,
}

impl Credential {
    /// Loads the credential of a target's user, reading its files.
    pub(crate) fn load(target: &Target) -> Result<Self, Error> {
        let user = &target.user;
        let invalid = |cause: &str| Error::Invalid {
            entry: Entry::User,
            name: target.user_name.clone(),
            cause: cause.to_owned(),
        };
        let certificate = match (&user.client_certificate, &user.client_key) {
            (None, None) => None,
            (Some(chain), Some(key)) => Some(Certificate {
                chain: chain.read()?,
                key: key.read()?,
            }),
            (Some(_), None) => return Err(invalid("client-certificate without client-key")),
            (None, Some(_)) => return Err(invalid("client-key without client-certificate")),
        };
        let mut credential = Self {
            headers: HeaderMap::new(),
            authorization: None,
            certificate,
            plugin: None,
        };
        let token = match (&user.token_file, &user.token) {
            (Some(path), None) => Some(trimmed(&read_secret_file(path)?)),
            (Some(path), Some(token)) => {
                let from_file = read_secret_file(path).ok();
                Some(from_file.map_or_else(|| token.clone(), |it| trimmed(&it)))
            }
            (None, token) => token.clone(),
        };
        let unusable = || {
            invalid("the token or the password contains a line break or another control character")
        };
        match (token, &user.username, &user.exec) {
            (Some(_), Some(_), _) => {
                return Err(invalid(
                    "username/password or bearer token may be set, but not both",
                ));
            }
            (Some(token), None, _) => {
                if !is_valid_header_value(&token) {
                    return Err(unusable());
                }
                credential.authorization = Some(bearer_value(&token));
            }
            (None, Some(name), _) => {
                let password = user.password.as_ref().map_or(&[][..], Secret::expose);
                credential.authorization = Some(basic_value(name, password));
            }
            (None, None, Some(exec)) => credential.plugin = Some(exec.clone()),
            (None, None, None) => {}
        }
        impersonate(&user.impersonate, &mut credential.headers).map_err(invalid)?;
        Ok(credential)
    }
}

/// The bearer header from the user's token file, as the file is now: kubelets replace the token
/// before it expires. `None` if the file is unreadable or its content unusable.
pub(crate) fn token_from_file(user: &User) -> Option<HeaderValue> {
    let path = user.token_file.as_ref()?;
    bearer_header(&trimmed(&read_secret_file(path).ok()?))
}

fn trimmed(secret: &Secret) -> Secret {
    Secret::new(secret.expose().trim_ascii())
}

fn impersonate(impersonation: &Impersonation, headers: &mut HeaderMap) -> Result<(), &'static str> {
    const NOT_A_HEADER_VALUE: &str =
        "as, as-uid, as-groups or as-user-extra is not a valid header value";
    let value = |text: &str| HeaderValue::from_str(text).map_err(|_| NOT_A_HEADER_VALUE);
    let Some(user) = &impersonation.user else {
        let has_other_fields = impersonation.uid.is_some()
            || !impersonation.groups.is_empty()
            || !impersonation.extra.is_empty();
        return if has_other_fields {
            Err("requesting uid, groups or user-extra without impersonating a user")
        } else {
            Ok(())
        };
    };
    headers.insert("impersonate-user", value(user)?);
    if let Some(uid) = &impersonation.uid {
        headers.insert("impersonate-uid", value(uid)?);
    }
    for group in &impersonation.groups {
        headers.append("impersonate-group", value(group)?);
    }
    for (key, values) in &impersonation.extra {
        let key = percent_encode(key.as_bytes(), EXTRA_KEY_ESCAPES);
        let name = HeaderName::try_from(format!("impersonate-extra-{key}"))
            .map_err(|_| NOT_A_HEADER_VALUE)?;
        for text in values {
            headers.append(name.clone(), value(text)?);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use http::header::AUTHORIZATION;
    use skewbridge_testkit::ScratchDir;

    use super::*;
    use crate::kubeconfig::{Cluster, PemSource};
    use crate::transport::secret_header;

    fn target(user: User) -> Target {
        Target {
            context: "c".to_owned(),
            cluster_name: "k".to_owned(),
            cluster: Cluster::default(),
            user_name: "u".to_owned(),
            user,
            namespace: None,
        }
    }

    fn headers(user: User) -> Result<Vec<(String, String)>, String> {
        match Credential::load(&target(user)) {
            Ok(credential) => {
                let debug_text = format!("{credential:?}");
                assert!(!debug_text.contains("secret"), "{debug_text}");
                let mut headers = credential.headers;
                if let Some(authorization) = &credential.authorization {
                    headers.insert(AUTHORIZATION, secret_header(authorization).unwrap());
                }
                Ok(headers
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
                    .collect())
            }
            Err(error) => {
                assert!(
                    !format!("{error} {error:?}").contains("secret"),
                    "{error:?}"
                );
                Err(error.to_string())
            }
        }
    }

    fn authorization(text: &str) -> Vec<(String, String)> {
        vec![("authorization".to_owned(), text.to_owned())]
    }

    #[test]
    fn a_readable_token_file_takes_precedence_over_the_token() {
        let dir = ScratchDir::new();
        let file = dir.write("token", "secret-in-file\n");
        let user = |token: Option<&str>, file: Option<&Path>| User {
            token: token.map(Secret::new),
            token_file: file.map(Path::to_owned),
            ..User::default()
        };
        let absent = dir.path().join("absent");
        let rows = [
            (user(Some("secret"), None), "Bearer secret"),
            (user(None, Some(&file)), "Bearer secret-in-file"),
            (user(Some("secret"), Some(&file)), "Bearer secret-in-file"),
            (user(Some("secret"), Some(&absent)), "Bearer secret"),
        ];
        for (user, expected) in rows {
            assert_eq!(headers(user).unwrap(), authorization(expected));
        }
        let error = headers(user(None, Some(&absent))).unwrap_err();
        assert!(error.contains("absent: cannot be read"), "{error}");
        let error = headers(user(Some("secret\nX: y"), None)).unwrap_err();
        assert!(error.contains("line break"), "{error}");
    }

    #[test]
    fn basic_authentication_excludes_a_bearer_token() {
        let mut user = User {
            username: Some("me".to_owned()),
            password: Some(Secret::new("secret")),
            ..User::default()
        };
        assert_eq!(
            headers(user.clone()).unwrap(),
            authorization("Basic bWU6c2VjcmV0")
        );
        user.token = Some(Secret::new("secret"));
        let error = headers(user).unwrap_err();
        assert!(error.contains("but not both"), "{error}");
    }

    #[test]
    fn a_client_key_without_a_certificate_is_rejected() {
        let user = User {
            client_key: Some(PemSource::Data(Secret::new("secret"))),
            ..User::default()
        };
        assert_eq!(
            headers(user),
            Err("user \"u\": client-key without client-certificate".to_owned())
        );
    }

    #[test]
    fn impersonation_is_sent_in_headers() {
        let mut user = User::default();
        user.impersonate.groups = vec!["a".to_owned(), "b".to_owned()];
        user.impersonate.extra = [("Acme.com/x y".to_owned(), vec!["1".to_owned()])].into();
        let error = headers(user.clone()).unwrap_err();
        assert!(error.contains("without impersonating a user"), "{error}");
        user.impersonate.user = Some("you".to_owned());
        let mut found = headers(user).unwrap();
        found.sort();
        let expected = [
            ("impersonate-extra-acme.com%2fx%20y", "1"),
            ("impersonate-group", "a"),
            ("impersonate-group", "b"),
            ("impersonate-user", "you"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found, expected);
    }
}
