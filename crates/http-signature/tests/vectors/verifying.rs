//! Signed requests are accepted, in any order of headers; requests that are altered anywhere are
//! refused.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;
use skewbridge_http_signature::Request;
use skewbridge_http_signature::base::signature_base;
use skewbridge_http_signature::structured::InnerList;
use skewbridge_http_signature::{
    Algorithm, Content, HasBody, SignatureInput, Signer, SigningKey, Verified, Verifier,
    VerifyError, VerifyingKey, Window, random_nonce,
};

use crate::rfc9421::{ED25519, ED25519_PRIVATE};

const NOW: u64 = 1_618_884_500;
const AUTHORITY: &str = "kube.example:6443";
const BODY: &[u8] = b"{\"kind\":\"Pod\"}";

fn signer() -> Signer {
    let key = SigningKey::from_pem(ED25519_PRIVATE.as_bytes()).unwrap();
    Signer::new(key, "laptop").unwrap()
}

fn verifier() -> Verifier {
    Verifier {
        authorities: vec![AUTHORITY.to_owned()],
        window: Window {
            max_age: 300,
            skew: 30,
            since: 0,
        },
    }
}

fn key() -> VerifyingKey {
    VerifyingKey::from_pem(Algorithm::Ed25519, ED25519.as_bytes()).unwrap()
}

/// A request that owns its parts.
#[derive(Clone, Debug)]
struct Owned {
    method: Method,
    authority: String,
    path: String,
    query: Option<String>,
    headers: HeaderMap,
    body: HasBody,
}

impl Owned {
    fn new() -> Self {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-type", "application/json"),
            ("accept", "application/json"),
            ("impersonate-user", "bob"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        Self {
            method: Method::POST,
            authority: AUTHORITY.to_owned(),
            path: "/api/v1/namespaces/a/pods".to_owned(),
            query: Some("dryRun=All&fieldManager=x".to_owned()),
            headers,
            body: HasBody::Yes,
        }
    }

    fn request(&self) -> Request<'_> {
        Request {
            method: &self.method,
            scheme: "https",
            authority: &self.authority,
            path: &self.path,
            query: self.query.as_deref(),
            headers: &self.headers,
        }
    }

    fn sign(mut self, signer: &Signer, created: u64) -> Self {
        let nonce = random_nonce().unwrap();
        let content = match self.body {
            HasBody::Yes => Content::Bytes(BODY),
            HasBody::No => Content::None,
        };
        let to_set = signer.sign(&self.request(), content, created, &nonce);
        for (name, value) in to_set.unwrap() {
            self.headers.insert(name, value);
        }
        self
    }

    /// Signs with these parameters.
    fn sign_as(mut self, input: &str) -> Self {
        let list = InnerList::parse(input.as_bytes()).unwrap();
        let input = SignatureInput::read(&list).unwrap();
        let base = signature_base(&self.request(), &input).unwrap();
        let key = SigningKey::from_pem(ED25519_PRIVATE.as_bytes()).unwrap();
        let signature = key.sign(base.as_bytes()).unwrap();
        let set = |name: &'static str, value: String| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        let signature = STANDARD.encode(signature);
        let headers: [(_, HeaderValue); 2] = [
            set("signature-input", format!("x={list}")),
            set("signature", format!("x=:{signature}:")),
        ];
        self.headers.extend(headers);
        self
    }

    fn verify_at(&self, now: u64) -> Result<Verified, VerifyError> {
        let key = key();
        let known = |id: &str| (id == "laptop").then_some(&key);
        verifier().verify(&self.request(), self.body, now, known)
    }

    fn verify(&self) -> Result<Verified, VerifyError> {
        self.verify_at(NOW)
    }
}

#[test]
fn a_signed_request_is_accepted_and_determines_the_digest_of_its_body() {
    let signed = Owned::new().sign(&signer(), NOW);
    let verified = signed.verify().unwrap();
    assert_eq!(verified.key_id, "laptop");
    let digest = verified.digest.unwrap();
    assert!(digest.matches(BODY) && !digest.matches(b"other"));
    // A minute, and the skew of clocks.
    assert_eq!(verified.until, NOW + 60 + 30);

    let mut bare = Owned::new();
    bare.body = HasBody::No;
    bare.query = None;
    assert!(bare.sign(&signer(), NOW).verify().unwrap().digest.is_none());
}

#[test]
fn two_signatures_have_two_fingerprints() {
    let (a, b) = (
        Owned::new().sign(&signer(), NOW),
        Owned::new().sign(&signer(), NOW),
    );
    let of = |it: &Owned| it.verify().unwrap().fingerprint;
    assert_eq!(of(&a), of(&a));
    assert_ne!(of(&a), of(&b));
}

#[test]
fn expired_and_future_signatures_are_refused() {
    let lasting = signer().lifetime(None);
    let rows = [
        (NOW - 90, &signer(), Ok(())),
        (NOW - 91, &signer(), Err(VerifyError::Expired)),
        (NOW - 330, &lasting, Ok(())),
        (NOW - 331, &lasting, Err(VerifyError::Expired)),
        (NOW + 30, &lasting, Ok(())),
        (NOW + 31, &lasting, Err(VerifyError::NotYetValid)),
        (0, &lasting, Err(VerifyError::Expired)),
    ];
    for (created, signer, expected) in rows {
        let verified = Owned::new().sign(signer, created).verify();
        assert_eq!(verified.map(|_| ()), expected, "{created}");
    }
    let mut strict = verifier();
    strict.window.since = NOW - 30;
    let key = key();
    for (created, expected) in [(NOW + 1, Ok(())), (NOW, Err(VerifyError::BeforeStart))] {
        let signed = Owned::new().sign(&signer(), created);
        let verified = strict.verify(&signed.request(), signed.body, NOW, |_| Some(&key));
        assert_eq!(verified.map(|_| ()), expected);
    }
}

#[test]
fn a_signature_from_before_a_restart_is_refused_after_it() {
    let key = key();
    let until = |since: u64| {
        let mut verifier = verifier();
        verifier.window.since = since;
        verifier
    };
    let (first, second) = (until(NOW - 1000), until(NOW + 1));
    // All signatures that the first verifier accepts in its last second.
    for created in NOW - 300..=NOW + 30 {
        let signed = Owned::new().sign(&signer().lifetime(None), created);
        let verify = |by: &Verifier, now| {
            let verified = by.verify(&signed.request(), signed.body, now, |_| Some(&key));
            verified.map(|_| ())
        };
        assert_eq!(verify(&first, NOW), Ok(()), "{created}");
        for now in [NOW + 1, NOW + 20] {
            assert_eq!(
                verify(&second, now),
                Err(VerifyError::BeforeStart),
                "{created}"
            );
        }
    }
}

/// Parameters and the result.
#[test]
fn all_required_components_must_be_covered() {
    let good = r#"("@method" "@authority" "@path" "@query" "content-digest" "content-type" "impersonate-user" "impersonate-group")"#;
    let tail = format!(r#";created={NOW};keyid="laptop""#);
    let without = |name: &str| good.replace(name, "").replace("  ", " ");
    let rows = [
        (good.to_owned(), Ok(())),
        (
            good.replace("\"@path\" \"@query\"", "\"@target-uri\""),
            Ok(()),
        ),
        (
            good.replace("\"@authority\" \"@path\" \"@query\"", "\"@target-uri\""),
            Ok(()),
        ),
        (
            good.replace("\"content-digest\"", "\"content-digest\";sf"),
            Ok(()),
        ),
        (
            good.replace("\"impersonate-group\"", "\"impersonate-group\";bs"),
            Ok(()),
        ),
        (without("\"@method\""), Err(VerifyError::NotCovered)),
        (without("\"@authority\""), Err(VerifyError::NotCovered)),
        (without("\"@path\""), Err(VerifyError::NotCovered)),
        (without("\"@query\""), Err(VerifyError::NotCovered)),
        (
            good.replace("\"@query\"", "\"@query-param\";name=\"dryRun\""),
            Err(VerifyError::NotCovered),
        ),
        (without("\"content-digest\""), Err(VerifyError::NotCovered)),
        (
            good.replace("\"content-digest\"", "\"content-digest\";key=\"sha-256\""),
            Err(VerifyError::NotCovered),
        ),
        (without("\"content-type\""), Err(VerifyError::NotCovered)),
        (
            without("\"impersonate-user\""),
            Err(VerifyError::NotCovered),
        ),
        (
            without("\"impersonate-group\""),
            Err(VerifyError::NotCovered),
        ),
        ("()".to_owned(), Err(VerifyError::NotCovered)),
    ];
    let mut request = Owned::new();
    let digest = skewbridge_http_signature::DigestAlgorithm::Sha256.header(BODY);
    request.headers.insert("content-digest", digest);
    for (covered, expected) in rows {
        let signed = request.clone().sign_as(&format!("{covered}{tail}"));
        assert_eq!(signed.verify().map(|_| ()), expected, "{covered}");
    }
}

#[test]
fn an_added_query_is_not_covered() {
    let mut bare = Owned::new();
    bare.query = None;
    bare.body = HasBody::No;
    bare.headers.clear();
    let tail = format!(r#";created={NOW};keyid="laptop""#);
    let input = format!(r#"("@method" "@authority" "@path"){tail}"#);
    let mut signed = bare.sign_as(&input);
    assert!(signed.verify().is_ok());
    for query in ["", "a=b"] {
        signed.query = Some(query.to_owned());
        assert_eq!(signed.verify().unwrap_err(), VerifyError::NotCovered);
    }
}

#[test]
fn required_parameters_must_be_present_and_valid() {
    let covered =
        r#"("@method" "@authority" "@path" "@query" "impersonate-user" "impersonate-group")"#;
    let mut request = Owned::new();
    request.body = HasBody::No;
    let rows = [
        (
            format!(r#";created={NOW};keyid="laptop";alg="ed25519""#),
            None,
        ),
        (
            format!(r#";created={NOW};keyid="laptop";unheard-of=1"#),
            None,
        ),
        (
            format!(r#";created={NOW};keyid="other""#),
            Some(VerifyError::UnknownKey),
        ),
        (
            format!(r#";created={NOW};keyid="laptop";alg="hmac-sha256""#),
            Some(VerifyError::Mismatch),
        ),
        (format!(";created={NOW}"), Some(VerifyError::Malformed)),
        (
            r#";keyid="laptop""#.to_owned(),
            Some(VerifyError::Malformed),
        ),
        (
            r#";created=-5;keyid="laptop""#.to_owned(),
            Some(VerifyError::Malformed),
        ),
        (
            format!(r#";created={NOW};expires=-1;keyid="laptop""#),
            Some(VerifyError::Malformed),
        ),
        (
            format!(r#";created={NOW};expires={};keyid="laptop""#, NOW - 31),
            Some(VerifyError::Expired),
        ),
    ];
    for (parameters, expected) in rows {
        let signed = request.clone().sign_as(&format!("{covered}{parameters}"));
        assert_eq!(signed.verify().err(), expected, "{parameters}");
    }
}

#[test]
fn malformed_headers_are_refused_and_signatures_of_other_keys_are_ignored() {
    let signed = Owned::new().sign(&signer(), NOW);
    let with = |name: &'static str, change: &dyn Fn(&str) -> String| {
        let mut changed = signed.clone();
        let old = changed.headers[name].to_str().unwrap().to_owned();
        changed.headers.insert(name, change(&old).parse().unwrap());
        changed.verify().map(|_| ())
    };
    let input = "signature-input";
    assert_eq!(
        with(input, &|it| it.replace("sig1", "sig2")),
        Err(VerifyError::Malformed)
    );
    assert_eq!(
        with(input, &|it| format!("{it},")),
        Err(VerifyError::Malformed)
    );
    assert_eq!(
        with(input, &|_| "sig1=1".to_owned()),
        Err(VerifyError::Malformed)
    );
    assert_eq!(
        with("signature", &|_| "sig1=1".to_owned()),
        Err(VerifyError::Malformed)
    );
    assert_eq!(
        with("signature", &|_| String::new()),
        Err(VerifyError::Malformed)
    );
    assert_eq!(
        with(input, &|it| format!("{it}, a={}", "x".repeat(20_000))),
        Err(VerifyError::Malformed)
    );
    assert_eq!(
        with(input, &|it| it
            .replace("\"@method\" ", "\"@method\" \"@method\" ")),
        Err(VerifyError::NotCovered)
    );

    // A further signature, of a key that this verifier does not know.
    let mut two = signed.clone();
    let (first, second) = (
        two.headers[input].to_str().unwrap().to_owned(),
        two.headers["signature"].to_str().unwrap().to_owned(),
    );
    two.headers
        .append(input, "b=();keyid=\"unknown\"".parse().unwrap());
    two.headers.append("signature", "b=:AAAA:".parse().unwrap());
    assert!(two.verify().is_ok());
    // A second signature of the same key is ambiguous.
    two.headers
        .append(input, first.replace("sig1", "c").parse().unwrap());
    two.headers
        .append("signature", second.replace("sig1", "c").parse().unwrap());
    assert_eq!(two.verify().unwrap_err(), VerifyError::Ambiguous);
}

#[test]
fn a_signature_for_another_server_is_refused() {
    let mut elsewhere = Owned::new();
    elsewhere.authority = "other.example".to_owned();
    let signed = elsewhere.sign(&signer(), NOW);
    assert_eq!(signed.verify().unwrap_err(), VerifyError::WrongAuthority);
    let mut upper = Owned::new().sign(&signer(), NOW);
    upper.authority = AUTHORITY.to_uppercase();
    assert!(upper.verify().is_ok());
}

#[test]
fn another_key_of_the_same_name_is_refused() {
    let key = SigningKey::hmac(&[1; 32]).unwrap();
    let forged = Owned::new().sign(&Signer::new(key, "laptop").unwrap(), NOW);
    assert_eq!(forged.verify().unwrap_err(), VerifyError::Mismatch);
}

#[test]
fn signing_twice_or_with_invalid_parameters_is_an_error() {
    let signed = Owned::new().sign(&signer(), NOW);
    let again = signer().sign(&signed.request(), Content::Bytes(BODY), NOW, "n");
    assert!(again.unwrap_err().to_string().contains("already"));
    let plain = Owned::new();
    assert!(
        signer()
            .sign(&plain.request(), Content::Digested, NOW, "n")
            .is_err()
    );
    assert!(
        signer()
            .sign(&plain.request(), Content::None, NOW, "caf\u{e9}")
            .is_err()
    );
    assert!(
        signer()
            .sign(&plain.request(), Content::None, u64::MAX, "n")
            .is_err()
    );
    assert!(signer().tag("a\nb").is_err());
    let key = SigningKey::hmac(&[1; 32]).unwrap();
    assert!(Signer::new(key, "\u{e9}").is_err());
}

proptest! {
    #[test]
    fn headers_may_be_in_any_order(order in Just((0..8_usize).collect::<Vec<_>>()).prop_shuffle()) {
        let signed = Owned::new().sign(&signer(), NOW);
        let lines: Vec<_> = signed.headers.keys().cloned().collect();
        prop_assert!(lines.len() <= 8);
        let mut shuffled = signed.clone();
        shuffled.headers.clear();
        for at in order {
            // The lines of one name stay in their order.
            let Some(name) = lines.get(at) else { continue };
            for value in signed.headers.get_all(name) {
                shuffled.headers.append(name, value.clone());
            }
        }
        prop_assert!(shuffled.verify().is_ok());
    }

    #[test]
    fn any_byte_altered_is_refused(part in 0..8_usize, at in any::<prop::sample::Index>(), bit in 0..7_u32) {
        let signed = Owned::new().sign(&signer(), NOW);
        let flip = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            String::from_utf8(bytes).unwrap()
        };
        let mut altered = signed.clone();
        match part {
            0 => match flip(signed.method.as_str()).parse() {
                Ok(method) => altered.method = method,
                Err(_) => return Ok(()),
            },
            1 => altered.authority = flip(&signed.authority),
            2 => altered.path = flip(&signed.path),
            3 => altered.query = Some(flip(signed.query.as_ref().unwrap())),
            _ => {
                let name = ["content-type", "content-digest", "impersonate-user", "signature"][part - 4];
                let value = flip(signed.headers[name].to_str().unwrap());
                match HeaderValue::from_str(&value) {
                    Ok(value) => drop(altered.headers.insert(name, value)),
                    Err(_) => return Ok(()),
                }
            }
        }
        // The case of an authority means nothing (RFC 9110, 4.2.3).
        let same = altered.authority.eq_ignore_ascii_case(&signed.authority) && part == 1;
        prop_assert_eq!(altered.verify().is_ok(), same, "{:?}", altered);
    }

    #[test]
    fn any_byte_of_the_parameters_altered_is_refused(at in any::<prop::sample::Index>(), bit in 0..7_u32) {
        let signed = Owned::new().sign(&signer(), NOW);
        let text = signed.headers["signature-input"].to_str().unwrap();
        let mut bytes = text.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(value) = HeaderValue::from_bytes(&bytes) {
            let mut altered = signed.clone();
            altered.headers.insert("signature-input", value);
            prop_assert!(altered.verify().is_err(), "{}", String::from_utf8_lossy(&bytes));
        }
    }
}
