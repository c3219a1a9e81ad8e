//! Bounds on what a field may contain. `sfv` has none; this visitor counts and keeps nothing,
//! so a field that is too large is refused before it is allocated.

use sfv::visitor::{
    DictionaryVisitor, EntryVisitor, InnerListVisitor, ItemVisitor, ListVisitor, ParameterVisitor,
};
use sfv::{BareItemFromInput, KeyRef};

/// Members of a list or a dictionary: what RFC 8941 (3.1 and 3.2) requires every parser to
/// accept, and no more.
pub const MAX_MEMBERS: usize = 1024;

/// Items of an inner list, and parameters of a value, likewise.
pub const MAX_INNER_LIST_ITEMS: usize = 256;

/// How many more members, items or parameters may follow.
pub(super) struct Bounds(usize);

#[derive(Debug, thiserror::Error)]
#[error("too many members, items or parameters")]
pub(super) struct TooMany;

impl Bounds {
    pub(super) fn members() -> Self {
        Self(MAX_MEMBERS)
    }

    pub(super) fn inner() -> Self {
        Self(MAX_INNER_LIST_ITEMS)
    }

    fn count(&mut self) -> Result<(), TooMany> {
        self.0 = self.0.checked_sub(1).ok_or(TooMany)?;
        Ok(())
    }
}

impl<'de> DictionaryVisitor<'de> for Bounds {
    type Out = ();
    type Error = TooMany;

    fn entry(&mut self, _: &'de KeyRef) -> Result<impl EntryVisitor<'de>, TooMany> {
        self.count()?;
        Ok(Self::inner())
    }

    fn finish(self) -> Result<(), TooMany> {
        Ok(())
    }
}

impl<'de> ListVisitor<'de> for Bounds {
    type Out = ();
    type Error = TooMany;

    fn entry(&mut self) -> Result<impl EntryVisitor<'de>, TooMany> {
        self.count()?;
        Ok(Self::inner())
    }

    fn finish(self) -> Result<(), TooMany> {
        Ok(())
    }
}

impl<'de> EntryVisitor<'de> for Bounds {
    type Error = TooMany;

    fn item(self) -> Result<impl ItemVisitor<'de>, TooMany> {
        Ok(self)
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, TooMany> {
        Ok(self)
    }
}

impl<'de> InnerListVisitor<'de> for Bounds {
    type Error = TooMany;

    fn item(&mut self) -> Result<impl ItemVisitor<'de>, TooMany> {
        self.count()?;
        Ok(Self::inner())
    }

    fn finish(self) -> Result<impl ParameterVisitor<'de>, TooMany> {
        Ok(Self::inner())
    }
}

impl<'de> ItemVisitor<'de> for Bounds {
    type Out = ();
    type Error = TooMany;

    fn bare_item(
        self,
        _: BareItemFromInput<'de>,
    ) -> Result<impl ParameterVisitor<'de, Out = ()>, TooMany> {
        Ok(Self::inner())
    }
}

impl<'de> ParameterVisitor<'de> for Bounds {
    type Out = ();
    type Error = TooMany;

    fn parameter(&mut self, _: &'de KeyRef, _: BareItemFromInput<'de>) -> Result<(), TooMany> {
        self.count()
    }

    fn finish(self) -> Result<(), TooMany> {
        Ok(())
    }
}
