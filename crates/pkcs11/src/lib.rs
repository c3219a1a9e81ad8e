//! TLS client keys in PKCS#11 tokens.
