//! What is in a token: keys, certificates, and which of them belong together.

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
    /// Of a certificate.
    pub(crate) value: Vec<u8>,
}

/// Objects of a kind that a token may have: more than anybody keeps in one.
const MAX_OBJECTS: usize = 256;

/// What a session sees of this class.
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

/// More intermediates than anybody has.
const MAX_CHAIN: usize = 8;

/// A certificate and those that lead to its root, as far as the token has them.
pub(crate) fn chain_of(leaf: &[u8], all: &[Vec<u8>]) -> Vec<CertificateDer<'static>> {
    let mut chain = vec![CertificateDer::from(leaf.to_vec())];
    let mut last = leaf;
    while chain.len() < MAX_CHAIN {
        let Ok((_, below)) = X509Certificate::from_der(last) else {
            break;
        };
        let above = all.iter().find(|der| {
            X509Certificate::from_der(der)
                .is_ok_and(|(_, it)| it.subject() == below.issuer() && it.subject() != it.issuer())
        });
        let Some(above) = above else { break };
        chain.push(CertificateDer::from(above.clone()));
        last = above;
    }
    chain
}
