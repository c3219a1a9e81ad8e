//! The parts of DER that `rcgen` does not cover: a subject with several organizations, and
//! parsing a subject.

/// The tags used here.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;

/// `id-at-commonName` and `id-at-organizationName`, as encoded contents.
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];

/// The index of the subject in a `TBSCertificate` of version 3 (RFC 5280, section 4.1).
const SUBJECT_FIELD: usize = 5;

/// The subject of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) common_name: String,
    pub(crate) organizations: Vec<String>,
}

impl Subject {
    /// The subject of a certificate in DER.
    pub(crate) fn of(certificate: &[u8]) -> Self {
        let tbs = parse_all(&fields(certificate)[0].contents);
        let mut subject = Self::default();
        for rdn in parse_all(&tbs[SUBJECT_FIELD].contents) {
            for attribute in parse_all(&rdn.contents) {
                let pair = parse_all(&attribute.contents);
                let value = String::from_utf8_lossy(&pair[1].contents).into_owned();
                if pair[0].contents == COMMON_NAME {
                    subject.common_name = value;
                } else if pair[0].contents == ORGANIZATION {
                    subject.organizations.push(value);
                }
            }
        }
        subject
    }

    fn encode(&self) -> Vec<u8> {
        let organizations = self.organizations.iter().map(|name| (ORGANIZATION, name));
        let rdns: Vec<u8> = organizations
            .chain([(COMMON_NAME, &self.common_name)])
            .flat_map(|(oid, value)| {
                let pair = [
                    encode(OBJECT_IDENTIFIER, &oid),
                    encode(UTF8_STRING, value.as_bytes()),
                ]
                .concat();
                encode(SET, &encode(SEQUENCE, &pair))
            })
            .collect();
        encode(SEQUENCE, &rdns)
    }
}

/// The same certificate with another subject; `sign` signs with the issuer's key.
pub(crate) fn with_subject(
    certificate: &[u8],
    subject: &Subject,
    sign: impl Fn(&[u8]) -> Vec<u8>,
) -> Vec<u8> {
    let parts = fields(certificate);
    let tbs: Vec<u8> = parse_all(&parts[0].contents)
        .into_iter()
        .enumerate()
        .flat_map(|(index, field)| match index {
            SUBJECT_FIELD => subject.encode(),
            _ => encode(field.tag, &field.contents),
        })
        .collect();
    let tbs = encode(SEQUENCE, &tbs);
    let algorithm = encode(parts[1].tag, &parts[1].contents);
    // A bit string starts with the number of unused bits of its last byte.
    let signature = encode(BIT_STRING, &[vec![0], sign(&tbs)].concat());
    encode(SEQUENCE, &[tbs, algorithm, signature].concat())
}

struct Value {
    tag: u8,
    contents: Vec<u8>,
}

/// The values inside the single value in `der`.
fn fields(der: &[u8]) -> Vec<Value> {
    parse_all(&parse_all(der)[0].contents)
}

fn parse_all(mut der: &[u8]) -> Vec<Value> {
    let mut values = Vec::new();
    while let [tag, first, rest @ ..] = der {
        let (length, rest) = if *first < 0x80 {
            (usize::from(*first), rest)
        } else {
            let (digits, rest) = rest.split_at(usize::from(first & 0x7f));
            let length = digits.iter().fold(0, |sum, b| sum << 8 | usize::from(*b));
            (length, rest)
        };
        let (contents, rest) = rest.split_at(length);
        values.push(Value {
            tag: *tag,
            contents: contents.to_vec(),
        });
        der = rest;
    }
    values
}

fn encode(tag: u8, contents: &[u8]) -> Vec<u8> {
    let length = u16::try_from(contents.len()).expect("certificates are small");
    let [high, low] = length.to_be_bytes();
    let mut der = match length {
        0..=0x7f => vec![tag, low],
        0x80..=0xff => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    der.extend_from_slice(contents);
    der
}
