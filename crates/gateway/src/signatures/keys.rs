//! `--http-signature-keys`: the keys of users that sign requests.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::str::FromStr as _;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use skewbridge_http_signature::{Algorithm, VerifyingKey};
use skewbridge_k8s_api::identity::{IdentityHeaders, User};
use zeroize::{Zeroize as _, Zeroizing};

use crate::authn::SignedUser;
use crate::tls::files::{FileError, Fingerprint, PemError, read};

/// Users by the ids of their keys.
#[derive(Debug)]
pub struct SignatureKeys {
    keys: HashMap<String, Arc<SignedUser>>,
    pub(crate) fingerprint: Fingerprint,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    keys: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    algorithm: String,
    #[serde(default)]
    public_key: Option<String>,
    #[serde(default)]
    secret: Option<String>,
    user: String,
    #[serde(default)]
    uid: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl SignatureKeys {
    /// Reads the file. `headers` are the names of the identity headers of its users.
    pub fn load(path: &Path, headers: &IdentityHeaders) -> Result<Self, FileError> {
        let in_file = |problem| FileError {
            path: path.to_owned(),
            problem,
        };
        let bytes = read(path).map_err(|error| match error.problem {
            PemError::Empty => in_file(key_file_problem("is empty; it must have `keys`")),
            PemError::TooLarge => {
                in_file(key_file_problem("is larger than 1 MiB; correct the path"))
            }
            _ => error,
        })?;
        let bytes = Zeroizing::new(bytes);
        let keys = parse(&bytes, headers).map_err(|cause| in_file(key_file_problem(cause)))?;
        Ok(Self {
            keys,
            fingerprint: Fingerprint::of(&[&bytes]),
        })
    }

    /// The user of a key.
    pub(crate) fn get(&self, id: &str) -> Option<&Arc<SignedUser>> {
        self.keys.get(id)
    }
}

fn key_file_problem(cause: impl Into<String>) -> PemError {
    PemError::SignatureKeys(cause.into())
}

fn parse(
    bytes: &[u8],
    headers: &IdentityHeaders,
) -> Result<HashMap<String, Arc<SignedUser>>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
    // Without the lines around an error, because they may contain a secret.
    let document: Document =
        serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string())?;
    let mut keys = HashMap::with_capacity(document.keys.len());
    for (id, entry) in document.keys {
        let user = entry
            .user(headers)
            .map_err(|it| format!("key {id:?}: {it}"))?;
        keys.insert(id, Arc::new(user));
    }
    Ok(keys)
}

impl Entry {
    fn user(&self, headers: &IdentityHeaders) -> Result<SignedUser, String> {
        if self.user.is_empty() || self.groups.iter().any(String::is_empty) {
            return Err("`user` and each of `groups` must have a name".to_owned());
        }
        let user = User {
            name: self.user.clone(),
            uid: self.uid.clone(),
            groups: self.groups.clone(),
            extra: self.extra.clone(),
        };
        Ok(SignedUser {
            headers: headers.prepare(&user).map_err(|it| it.to_string())?,
            key: self.key()?,
            name: user.name,
        })
    }

    fn key(&self) -> Result<VerifyingKey, String> {
        let algorithm = Algorithm::from_str(&self.algorithm).map_err(|it| it.to_string())?;
        match (algorithm, &self.public_key, &self.secret) {
            (Algorithm::HmacSha256, None, Some(secret)) => {
                let secret = STANDARD.decode(secret.trim());
                let secret = secret.map_err(|_| "`secret` must be base64")?;
                VerifyingKey::hmac(&Zeroizing::new(secret)).map_err(|it| it.to_string())
            }
            (Algorithm::HmacSha256, _, _) => {
                Err("hmac-sha256 needs `secret`, and no `publicKey`".to_owned())
            }
            (algorithm, Some(pem), None) => {
                VerifyingKey::from_pem(algorithm, pem.as_bytes()).map_err(|it| it.to_string())
            }
            (algorithm, _, _) => Err(format!(
                "{} needs `publicKey`, and no `secret`",
                algorithm.as_str()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use skewbridge_testkit::ScratchDir;

    use super::*;

    const PUBLIC: &str = "
    publicKey: |
      -----BEGIN PUBLIC KEY-----
      MCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=
      -----END PUBLIC KEY-----
";
    const SECRET: &str = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0";

    fn load(text: &str) -> Result<SignatureKeys, String> {
        let dir = ScratchDir::new();
        let path = dir.write("keys.yaml", text);
        let loaded = SignatureKeys::load(&path, &IdentityHeaders::default());
        loaded.map_err(|error| error.to_string())
    }

    #[test]
    fn keys_become_users() {
        let keys = load(&format!(
            "keys:
  laptop:
    algorithm: ed25519{PUBLIC}
    user: alice
    uid: '42'
    groups: [dev, ops]
    extra:
      example.org/device: [laptop]
  robot:
    algorithm: hmac-sha256
    secret: {SECRET}
    user: system:serviceaccount:a:robot
"
        ))
        .unwrap();
        let mut headers = http::HeaderMap::new();
        keys.get("laptop").unwrap().headers.apply(&mut headers);
        let expected = [
            ("x-remote-user", "alice"),
            ("x-remote-uid", "42"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-extra-example.org%2fdevice", "laptop"),
        ];
        let actual: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(actual, expected);
        let robot = keys.get("robot").unwrap();
        assert_eq!(robot.name, "system:serviceaccount:a:robot");
        assert!(keys.get("nobody").is_none());
        assert!(!format!("{keys:?}").contains(SECRET));
    }

    #[test]
    fn errors_name_the_key_and_contain_no_secrets() {
        let ed25519 = |rest: &str| format!("keys:\n  k:\n    algorithm: ed25519{PUBLIC}{rest}");
        let hmac =
            |rest: &str| format!("keys:\n  k:\n    algorithm: hmac-sha256\n    user: u\n{rest}");
        let rows = [
            (String::new(), "is empty"),
            ("keys: [".to_owned(), ""),
            ("other: {}".to_owned(), "other"),
            (ed25519(""), "user"),
            (ed25519("    user: ''\n"), "key \"k\": `user`"),
            (
                ed25519("    user: u\n    groups: ['']\n"),
                "key \"k\": `user`",
            ),
            (ed25519("    user: u\n    group: [a]\n"), "group"),
            (
                ed25519("    user: \"a\\nb\"\n"),
                "cannot be written in headers",
            ),
            (
                ed25519("    user: u\n").replace("ed25519", "ed448"),
                "is one of ed25519",
            ),
            (
                ed25519("    user: u\n").replace("ed25519", "hmac-sha256"),
                "needs `secret`",
            ),
            (
                ed25519("    user: u\n").replace("ed25519", "ecdsa-p256-sha256"),
                "not a public key for ecdsa-p256-sha256",
            ),
            (
                ed25519(&format!("    user: u\n    secret: {SECRET}\n")),
                "no `secret`",
            ),
            (hmac("    secret: c2VjcmV0\n"), "at least 32 bytes"),
            (hmac("    secret: '*secret*'\n"), "must be base64"),
            (hmac(""), "needs `secret`"),
            (hmac(&format!("    secret: [{SECRET}]\n")), ""),
            (
                hmac(&format!("    secret: {SECRET}\n    secret: {SECRET}\n")),
                "",
            ),
        ];
        for (text, expected) in rows {
            let error = load(&text).map(|_| ()).unwrap_err();
            assert!(
                error.contains("keys.yaml") && error.contains(expected),
                "{error}"
            );
            assert!(
                !error.contains(SECRET) && !error.contains("*secret*"),
                "{error}"
            );
        }
    }

    #[test]
    fn two_keys_with_the_same_id_are_rejected() {
        let text = format!(
            "keys:\n  k:\n    algorithm: ed25519{PUBLIC}    user: u\n  k:\n    algorithm: ed25519{PUBLIC}    user: v\n"
        );
        assert!(load(&text).is_err());
    }
}
