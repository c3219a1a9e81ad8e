//! The covered components and the parameters of a signature, as in `Signature-Input` (RFC 9421,
//! 2.3).

use super::component::{Component, Identifier};
use crate::Error;
use crate::structured::{BareItem, InnerList, serialize};

/// One member of `Signature-Input`.
#[derive(Debug, Clone, PartialEq)]
pub struct SignatureInput {
    /// In order, without duplicates.
    pub components: Vec<Identifier>,
    /// Seconds since 1970.
    pub created: Option<i64>,
    /// Seconds since 1970.
    pub expires: Option<i64>,
    /// Unique for each signature.
    pub nonce: Option<String>,
    /// The algorithm that the signer claims.
    pub algorithm: Option<String>,
    /// The identifier of the key.
    pub key_id: Option<String>,
    /// The application that the signature is for.
    pub tag: Option<String>,
    written: InnerList,
}

impl SignatureInput {
    /// Parses one member. Unknown parameters are kept: they are signed too.
    pub fn read(list: &InnerList) -> Result<Self, Error> {
        Self::from_list(list.clone())
    }

    pub(super) fn from_list(list: InnerList) -> Result<Self, Error> {
        let mut components: Vec<Identifier> = Vec::with_capacity(list.items.len());
        for item in &list.items {
            let identifier = Identifier::read(item)?;
            // RFC 9421, 2.5: identifiers that differ only in the order of their parameters are
            // the same.
            if components
                .iter()
                .any(|it| it.component() == identifier.component())
            {
                return Err(Error::Component {
                    identifier: serialize(item),
                    cause: "it is covered already",
                });
            }
            components.push(identifier);
        }
        let wrong = |cause| Error::Form {
            field: "Signature-Input",
            cause,
        };
        let integer = |key| match list.params.get(key) {
            None => Ok(None),
            Some(BareItem::Integer(number)) => Ok(Some(i64::from(*number))),
            Some(_) => Err(wrong("created and expires are integers")),
        };
        let string = |key| match list.params.get(key) {
            None => Ok(None),
            Some(BareItem::String(text)) => Ok(Some(text.as_str().to_owned())),
            Some(_) => Err(wrong("nonce, alg, keyid and tag are strings")),
        };
        Ok(Self {
            components,
            created: integer("created")?,
            expires: integer("expires")?,
            nonce: string("nonce")?,
            algorithm: string("alg")?,
            key_id: string("keyid")?,
            tag: string("tag")?,
            written: list,
        })
    }

    /// The list as it is serialized and signed.
    pub fn written(&self) -> &InnerList {
        &self.written
    }

    /// Whether a component is covered.
    pub fn covers(&self, component: &Component) -> bool {
        self.components.iter().any(|it| it.component() == component)
    }
}
