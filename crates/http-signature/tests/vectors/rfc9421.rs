//! The examples of RFC 9421: its keys, requests, signature bases and signatures.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue, Method};
use skewbridge_http_signature::Request;
use skewbridge_http_signature::base::signature_base;
use skewbridge_http_signature::structured::InnerList;
use skewbridge_http_signature::{Algorithm, SignatureInput, SigningKey, VerifyingKey};

/// B.1.1, a key in PKCS#1.
const RSA: &str = "MIIBCgKCAQEAhAKYdtoeoy8zcAcR874L8cnZxKzAGwd7v36APp7Pv6Q2jdsPBRrwWEBnez6d0UDKDwGbc6nxfEXAy5mbhgajzrw3MOEt8uA5txSKobBpKDeBLOsdJKFqMGmXCQvEG7YemcxDTRPxAleIAgYYRjTSd/QBwVW9OwNFhekro3RtlinV0a75jfZgkne/YiktSvLG34lw2zqXBDTC5NHROUqGTlML4PlNZS5Ri2U4aCNx2rUPRcKIlE0PuKxI4T+HIaFpv8+rdV6eUgOrB2xeI1dSFFn/nnv5OoZJEIB+VmuKn3DCUcCZSFlQPSXSfBDiUGhwOw76WuSSsf1D4b/vLoJ10wIDAQAB";

/// B.1.2
const RSA_PSS: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAr4tmm3r20Wd/PbqvP1s2
+QEtvpuRaV8Yq40gjUR8y2Rjxa6dpG2GXHbPfvMs8ct+Lh1GH45x28Rw3Ry53mm+
oAXjyQ86OnDkZ5N8lYbggD4O3w6M6pAvLkhk95AndTrifbIFPNU8PPMO7OyrFAHq
gDsznjPFmTOtCEcN2Z1FpWgchwuYLPL+Wokqltd11nqqzi+bJ9cvSKADYdUAAN5W
Utzdpiy6LbTgSxP7ociU4Tn0g5I6aDZJ7A8Lzo0KSyZYoA485mqcO0GVAdVw9lq4
aOT9v6d+nb4bnNkQVklLQ3fVAvJm+xdDOp9LCNCN48V2pnDOkFV6+U9nV5oyc6XI
2wIDAQAB
-----END PUBLIC KEY-----
";

/// B.1.3
const P256: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEqIVYZVLCrPZHGHjP17CTW0/+D9Lf
w0EkjqF7xB4FivAxzic30tMM4GF+hR6Dxh71Z50VGGdldkkDXZCnTNnoXQ==
-----END PUBLIC KEY-----
";
const P256_PRIVATE: &str = "-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIFKbhfNZfpDsW43+0+JjUr9K+bTeuxopu653+hBaXGA7oAoGCCqGSM49
AwEHoUQDQgAEqIVYZVLCrPZHGHjP17CTW0/+D9Lfw0EkjqF7xB4FivAxzic30tMM
4GF+hR6Dxh71Z50VGGdldkkDXZCnTNnoXQ==
-----END EC PRIVATE KEY-----
";

/// B.1.4
pub(crate) const ED25519: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=
-----END PUBLIC KEY-----
";
pub(crate) const ED25519_PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF
-----END PRIVATE KEY-----
";

/// B.1.5
const SECRET: &str =
    "uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==";

const DIGEST: &str = "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:";

/// The fields of B.2's request.
const FIELDS: [(&str, &str); 5] = [
    ("host", "example.com"),
    ("date", "Tue, 20 Apr 2021 02:07:55 GMT"),
    ("content-type", "application/json"),
    ("content-digest", DIGEST),
    ("content-length", "18"),
];

fn decode(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap()
}

fn public(algorithm: Algorithm, pem: &str) -> VerifyingKey {
    VerifyingKey::from_pem(algorithm, pem.as_bytes()).unwrap()
}

type Fields<'a> = &'a [(&'static str, &'a str)];

/// The base of a `POST`, or another method, to a URI with these fields.
fn base(method: &Method, uri: &str, fields: Fields<'_>, input: &str) -> String {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_str(value).unwrap());
    }
    let uri = uri.parse().unwrap();
    let request = Request::of("https", method, &uri, &headers).unwrap();
    let input = InnerList::parse(input.as_bytes()).unwrap();
    signature_base(&request, &SignatureInput::read(&input).unwrap()).unwrap()
}

fn test_request(input: &str) -> String {
    base(&Method::POST, "/foo?param=Value&Pet=dog", &FIELDS, input)
}

/// The signature verifies, and no altered one does.
fn assert_verifies(key: &VerifyingKey, base: &str, signature: &str) {
    let signature = decode(signature);
    assert!(key.verify(base.as_bytes(), &signature), "{base}");
    let mut altered = base.as_bytes().to_vec();
    altered[3] ^= 1;
    assert!(!key.verify(&altered, &signature));
    for at in [0, signature.len() / 2, signature.len() - 1] {
        let mut altered = signature.clone();
        altered[at] ^= 1;
        assert!(!key.verify(base.as_bytes(), &altered));
    }
    assert!(!key.verify(base.as_bytes(), &signature[1..]));
    assert!(!key.verify(base.as_bytes(), &[]));
}

#[test]
fn b_2_1_minimal_signature_using_rsa_pss_sha512() {
    let input = r#"();created=1618884473;keyid="test-key-rsa-pss";nonce="b3k2pp5k7z-50gnwp.yemd""#;
    let base = test_request(input);
    assert_eq!(base, format!("\"@signature-params\": {input}"));
    let signature = "d2pmTvmbncD3xQm8E9ZV2828BjQWGgiwAaw5bAkgibUopemLJcWDy/lkbbHAve4cRAtx31Iq786U7it++wgGxbtRxf8Udx7zFZsckzXaJMkA7ChG52eSkFxykJeNqsrWH5S+oxNFlD4dzVuwe8DhTSja8xxbR/Z2cOGdCbzR72rgFWhzx2VjBqJzsPLMIQKhO4DGezXehhWwE56YCE+O6c0mKZsfxVrogUvA4HELjVKWmAvtl6UnCh8jYzuVG5WSb/QEVPnP5TmcAnLH1g+s++v6d4s8m0gCw1fV5/SITLq9mhho8K3+7EPYTU8IU1bLhdxO5Nyt8C8ssinQ98Xw9Q==";
    assert_verifies(&public(Algorithm::RsaPssSha512, RSA_PSS), &base, signature);
}

#[test]
fn b_2_2_selective_covered_components_using_rsa_pss_sha512() {
    let input = r#"("@authority" "content-digest" "@query-param";name="Pet");created=1618884473;keyid="test-key-rsa-pss";tag="header-example""#;
    let base = test_request(input);
    assert_eq!(
        base,
        format!(
            "\"@authority\": example.com\n\
             \"content-digest\": {DIGEST}\n\
             \"@query-param\";name=\"Pet\": dog\n\
             \"@signature-params\": {input}"
        )
    );
    let signature = "LjbtqUbfmvjj5C5kr1Ugj4PmLYvx9wVjZvD9GsTT4F7GrcQEdJzgI9qHxICagShLRiLMlAJjtq6N4CDfKtjvuJyE5qH7KT8UCMkSowOB4+ECxCmT8rtAmj/0PIXxi0A0nxKyB09RNrCQibbUjsLS/2YyFYXEu4TRJQzRw1rLEuEfY17SARYhpTlaqwZVtR8NV7+4UKkjqpcAoFqWFQh62s7Cl+H2fjBSpqfZUJcsIk4N6wiKYd4je2U/lankenQ99PZfB4jY3I5rSV2DSBVkSFsURIjYErOs0tFTQosMTAoxk//0RoKUqiYY8Bh0aaUEb0rQl3/XaVe4bXTugEjHSw==";
    assert_verifies(&public(Algorithm::RsaPssSha512, RSA_PSS), &base, signature);
}

#[test]
fn b_2_3_full_coverage_using_rsa_pss_sha512() {
    let input = r#"("date" "@method" "@path" "@query" "@authority" "content-type" "content-digest" "content-length");created=1618884473;keyid="test-key-rsa-pss""#;
    let base = test_request(input);
    assert_eq!(
        base,
        format!(
            "\"date\": Tue, 20 Apr 2021 02:07:55 GMT\n\
             \"@method\": POST\n\
             \"@path\": /foo\n\
             \"@query\": ?param=Value&Pet=dog\n\
             \"@authority\": example.com\n\
             \"content-type\": application/json\n\
             \"content-digest\": {DIGEST}\n\
             \"content-length\": 18\n\
             \"@signature-params\": {input}"
        )
    );
    let signature = "bbN8oArOxYoyylQQUU6QYwrTuaxLwjAC9fbY2F6SVWvh0yBiMIRGOnMYwZ/5MR6fb0Kh1rIRASVxFkeGt683+qRpRRU5p2voTp768ZrCUb38K0fUxN0O0iC59DzYx8DFll5GmydPxSmme9v6ULbMFkl+V5B1TP/yPViV7KsLNmvKiLJH1pFkh/aYA2HXXZzNBXmIkoQoLd7YfW91kE9o/CCoC1xMy7JA1ipwvKvfrs65ldmlu9bpG6A9BmzhuzF8Eim5f8ui9eH8LZH896+QIF61ka39VBrohr9iyMUJpvRX2Zbhl5ZJzSRxpJyoEZAFL2FUo5fTIztsDZKEgM4cUA==";
    assert_verifies(&public(Algorithm::RsaPssSha512, RSA_PSS), &base, signature);
}

/// The example signs a response: only requests are signed here, but the algorithm is the same.
#[test]
fn b_2_4_a_response_using_ecdsa_p256_sha256() {
    let base = "\"@status\": 200\n\
        \"content-type\": application/json\n\
        \"content-digest\": sha-512=:mEWXIS7MaLRuGgxOBdODa3xqM1XdEvxoYhvlCFJ41QJgJc4GTsPp29l5oGX69wWdXymyU0rjJuahq4l5aGgfLQ==:\n\
        \"content-length\": 23\n\
        \"@signature-params\": (\"@status\" \"content-type\" \"content-digest\" \"content-length\");created=1618884473;keyid=\"test-key-ecc-p256\"";
    let signature =
        "wNmSUAhwb5LxtOtOpNa6W5xj067m5hFrj0XQ4fvpaCLx0NKocgPquLgyahnzDnDAUy5eCdlYUEkLIj+32oiasw==";
    assert_verifies(&public(Algorithm::EcdsaP256Sha256, P256), base, signature);
}

#[test]
fn b_2_5_a_request_using_hmac_sha256() {
    let input =
        r#"("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret""#;
    let base = test_request(input);
    assert_eq!(
        base,
        format!(
            "\"date\": Tue, 20 Apr 2021 02:07:55 GMT\n\
             \"@authority\": example.com\n\
             \"content-type\": application/json\n\
             \"@signature-params\": {input}"
        )
    );
    let signature = "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=";
    let secret = decode(SECRET);
    let made = SigningKey::hmac(&secret).unwrap().sign(base.as_bytes());
    assert_eq!(made.unwrap(), decode(signature));
    assert_verifies(&VerifyingKey::hmac(&secret).unwrap(), &base, signature);
}

#[test]
fn b_2_6_a_request_using_ed25519() {
    let input = r#"("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519""#;
    let base = test_request(input);
    assert_eq!(
        base,
        format!(
            "\"date\": Tue, 20 Apr 2021 02:07:55 GMT\n\
             \"@method\": POST\n\
             \"@path\": /foo\n\
             \"@authority\": example.com\n\
             \"content-type\": application/json\n\
             \"content-length\": 18\n\
             \"@signature-params\": {input}"
        )
    );
    let signature =
        "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==";
    let key = SigningKey::from_pem(ED25519_PRIVATE.as_bytes()).unwrap();
    assert_eq!(key.algorithm(), Algorithm::Ed25519);
    assert_eq!(key.sign(base.as_bytes()).unwrap(), decode(signature));
    assert_verifies(&public(Algorithm::Ed25519, ED25519), &base, signature);
}

#[test]
fn b_3_a_tls_terminating_proxy_signs_with_ecdsa() {
    let certificate = ":MIIBqDCCAU6gAwIBAgIBBzAKBggqhkjOPQQDAjA6MRswGQYDVQQKDBJMZXQncyBBdXRoZW50aWNhdGUxGzAZBgNVBAMMEkxBIEludGVybWVkaWF0ZSBDQTAeFw0yMDAxMTQyMjU1MzNaFw0yMTAxMjMyMjU1MzNaMA0xCzAJBgNVBAMMAkJDMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE8YnXXfaUgmnMtOXU/IncWalRhebrXmckC8vdgJ1p5Be5F/3YC8OthxM4+k1M6aEAEFcGzkJiNy6J84y7uzo9M6NyMHAwCQYDVR0TBAIwADAfBgNVHSMEGDAWgBRm3WjLa38lbEYCuiCPct0ZaSED2DAOBgNVHQ8BAf8EBAMCBsAwEwYDVR0lBAwwCgYIKwYBBQUHAwIwHQYDVR0RAQH/BBMwEYEPYmRjQGV4YW1wbGUuY29tMAoGCCqGSM49BAMCA0gAMEUCIBHda/r1vaL6G3VliL4/Di6YK0Q6bMjeSkC3dFCOOB8TAiEAx/kHSB4urmiZ0NX5r5XarmPk0wmuydBVoU4hBVZ1yhk=:";
    let fields = [
        ("host", "service.internal.example"),
        ("client-cert", certificate),
    ];
    let input = r#"("@path" "@query" "@method" "@authority" "client-cert");created=1618884473;keyid="test-key-ecc-p256""#;
    let base = base(&Method::POST, "/foo?param=Value&Pet=dog", &fields, input);
    let signature =
        "xVMHVpawaAC/0SbHrKRs9i8I3eOs5RtTMGCWXm/9nvZzoHsIg6Mce9315T6xoklyy0yzhD9ah4JHRwMLOgmizw==";
    assert_verifies(&public(Algorithm::EcdsaP256Sha256, P256), &base, signature);
}

#[test]
fn b_4_changes_in_transit_that_are_allowed_and_that_are_not() {
    let key = public(Algorithm::Ed25519, ED25519);
    let signature = decode(
        "ZT1kooQsEHpZ0I1IjCqtQppOmIqlJPeo7DHR3SoMn0s5JZ1eRGS0A+vyYP9t/LXlh5QMFFQ6cpLt2m0pmj3NDA==",
    );
    let input =
        r#"("@method" "@path" "@authority" "accept");created=1618884473;keyid="test-key-ed25519""#;
    let (json, any) = (("accept", "application/json"), ("accept", "*/*"));
    let host = ("host", "example.org");
    let date = ("date", "Fri, 15 Jul 2022 14:24:55 GMT");
    let uri = "/demo?name1=Value1&Name2=value2";
    let longer = "/demo?name1=Value1&Name2=value2&param=added";
    let language = ("accept-language", "en-US,en;q=0.5");
    let joined = ("accept", "application/json, */*");
    let referer = ("referer", "https://developer.example.org/demo");
    let rows: [(Method, &str, Fields<'_>, bool); 6] = [
        (Method::GET, uri, &[host, date, json, any], true),
        (
            Method::GET,
            longer,
            &[host, date, json, any, language],
            true,
        ),
        (Method::GET, uri, &[host, referer, joined], true),
        (Method::GET, uri, &[json, any, date, host], true),
        (
            Method::POST,
            uri,
            &[("host", "example.com"), date, json, any],
            false,
        ),
        (Method::GET, uri, &[host, date, any, json], false),
    ];
    for (method, uri, fields, good) in rows {
        let base = base(&method, uri, fields, input);
        assert_eq!(key.verify(base.as_bytes(), &signature), good, "{base}");
    }
}

/// 4.3: the client signs its request with ECDSA, the proxy signs the changed request with RSA.
#[test]
fn section_4_3_two_signatures_of_two_keys() {
    let fields = [
        ("content-digest", DIGEST),
        ("content-type", "application/json"),
        ("content-length", "18"),
        ("forwarded", "for=192.0.2.123;host=example.com;proto=https"),
    ];
    let client = [&[("host", "example.com")], &fields[..]].concat();
    let input = r#"("@method" "@authority" "@path" "content-digest" "content-type" "content-length");created=1618884475;keyid="test-key-ecc-p256""#;
    let client = base(&Method::POST, "/foo", &client, input);
    let signature =
        "X5spyd6CFnAG5QnDyHfqoSNICd+BUP4LYMz2Q0JXlb//4Ijpzp+kve2w4NIyqeAuM7jTDX+sNalzA8ESSaHD3A==";
    assert_verifies(
        &public(Algorithm::EcdsaP256Sha256, P256),
        &client,
        signature,
    );

    let proxy = [&[("host", "origin.host.internal.example")], &fields[..]].concat();
    let input = r#"("@method" "@authority" "@path" "content-digest" "content-type" "content-length" "forwarded");created=1618884480;keyid="test-key-rsa";alg="rsa-v1_5-sha256";expires=1618884540"#;
    let proxy = base(&Method::POST, "/foo", &proxy, input);
    let signature = "S6ZzPXSdAMOPjN/6KXfXWNO/f7V6cHm7BXYUh3YD/fRad4BCaRZxP+JH+8XY1I6+8Cy+CM5g92iHgxtRPz+MjniOaYmdkDcnL9cCpXJleXsOckpURl49GwiyUpZ10KHgOEe11sx3G2gxI8S0jnxQB+Pu68U9vVcasqOWAEObtNKKZd8tSFu7LB5YAv0RAGhB8tmpv7sFnIm9y+7X5kXQfi8NMaZaA8i2ZHwpBdg7a6CMfwnnrtflzvZdXAsD3LH2TwevU+/PBPv0B6NMNk93wUs/vfJvye+YuI87HU38lZHowtznbLVdp770I6VHR6WfgS9ddzirrswsE1w5o0LV/g==";
    let key = VerifyingKey::from_der(Algorithm::RsaV15Sha256, &decode(RSA)).unwrap();
    assert_verifies(&key, &proxy, signature);
}

#[test]
fn ecdsa_signatures_verify() {
    let key = SigningKey::from_pem(P256_PRIVATE.as_bytes()).unwrap();
    assert_eq!(key.algorithm(), Algorithm::EcdsaP256Sha256);
    let signature = key.sign(b"base").unwrap();
    assert_eq!(signature.len(), 64);
    assert!(public(Algorithm::EcdsaP256Sha256, P256).verify(b"base", &signature));
}

#[test]
fn keys_of_the_wrong_type_are_refused_and_not_shown() {
    let refused = |algorithm, pem: &str| {
        let error = VerifyingKey::from_pem(algorithm, pem.as_bytes()).unwrap_err();
        error.to_string()
    };
    assert!(refused(Algorithm::Ed25519, P256).contains("not a public key for ed25519"));
    assert!(refused(Algorithm::EcdsaP384Sha384, P256).contains("ecdsa-p384-sha384"));
    assert!(refused(Algorithm::Ed25519, ED25519_PRIVATE).contains("private key"));
    assert!(refused(Algorithm::HmacSha256, ED25519).contains("secret"));
    assert!(refused(Algorithm::Ed25519, "garbage").contains("PEM"));
    assert!(SigningKey::from_pem(ED25519.as_bytes()).is_err());
    let short = SigningKey::hmac(&[0; 31]).unwrap_err().to_string();
    assert!(short.contains("32 bytes"), "{short}");
    let key = SigningKey::from_pem(ED25519_PRIVATE.as_bytes()).unwrap();
    assert_eq!(format!("{key:?}"), "SigningKey(ed25519, [redacted])");
    assert!("ed448".parse::<Algorithm>().is_err());
}
