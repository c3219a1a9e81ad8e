//! The keys and certificates in a token, and which of them belong together.

use cryptoki::error::Error;
use cryptoki::object::{Attribute, AttributeType, ObjectClass, ObjectHandle};
use cryptoki::session::Session;
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// A key or a certificate.
pub(crate) struct Object {
    pub(crate) handle: ObjectHandle,
    pub(crate) label: String,
    pub(crate) id: Vec<u8>,
    /// The DER of a certificate; empty for a key.
    pub(crate) value: Vec<u8>,
}

/// The maximum number of objects of one class: more than tokens hold in practice.
const MAX_OBJECTS: usize = 256;

/// The objects of this class that a session can see.
pub(crate) fn objects(session: &Session, class: ObjectClass) -> Result<Vec<Object>, Error> {
    let mut wanted = vec![AttributeType::Label, AttributeType::Id];
    if class == ObjectClass::CERTIFICATE {
        wanted.push(AttributeType::Value);
    }
    let mut found = Vec::new();
    let handles = session.find_objects(&[Attribute::Class(class)])?;
    for handle in handles.into_iter().take(MAX_OBJECTS) {
        let mut object = Object {
            handle,
            label: String::new(),
            id: Vec::new(),
            value: Vec::new(),
        };
        for attribute in session.get_attributes(handle, &wanted)? {
            match attribute {
                Attribute::Label(label) => {
                    object.label = String::from_utf8_lossy(&label).into_owned();
                }
                Attribute::Id(id) => object.id = id,
                Attribute::Value(value) => object.value = value,
                _ => {}
            }
        }
        found.push(object);
    }
    Ok(found)
}

/// More intermediates than chains have in practice.
const MAX_CHAIN_LENGTH: usize = 8;

/// A certificate with its chain towards the root, as far as the token holds it.
pub(crate) fn chain_of(leaf: &[u8], all: &[Vec<u8>]) -> Vec<CertificateDer<'static>> {
    let mut chain = vec![CertificateDer::from(leaf.to_vec())];
    let mut last = leaf;
    while chain.len() < MAX_CHAIN_LENGTH {
        let Ok((_, subject)) = X509Certificate::from_der(last) else {
            break;
        };
        let issuer = all.iter().find(|der| {
            X509Certificate::from_der(der).is_ok_and(|(_, it)| {
                it.subject() == subject.issuer() && it.subject() != it.issuer()
            })
        });
        let Some(issuer) = issuer else { break };
        chain.push(CertificateDer::from(issuer.clone()));
        last = issuer;
    }
    chain
}
