//! The two versions of OpenAPI that kube-apiserver publishes, in two formats
//! each, and where in a document the things are that are merged.

/// A version of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spec {
    /// `/openapi/v2`: one document for all that a server serves.
    V2,
    /// `/openapi/v3/…`: a document for each group-version.
    V3,
}

/// A way to write a document down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `application/json`
    Json,
    /// The messages of gnostic.
    Protobuf,
}

impl Format {
    /// The `Content-Type` with which kube-apiserver answers.
    pub fn media_type(self, spec: Spec) -> &'static str {
        match (self, spec) {
            (Self::Json, _) => "application/json",
            (Self::Protobuf, Spec::V2) => {
                "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
            }
            (Self::Protobuf, Spec::V3) => {
                "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
            }
        }
    }

    /// The format of this media type, without parameters. The names with `@` are
    /// no media types by the book, and kube-apiserver still accepts them.
    pub fn from_media_type(spec: Spec, media_type: &str) -> Option<Self> {
        let deprecated = match spec {
            Spec::V2 => "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
            Spec::V3 => "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
        };
        if media_type.eq_ignore_ascii_case(deprecated) {
            return Some(Self::Protobuf);
        }
        [Self::Json, Self::Protobuf]
            .into_iter()
            .find(|format| media_type.eq_ignore_ascii_case(format.media_type(spec)))
    }
}

/// A field of a message of OpenAPI, or a member of the same object in JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) json: &'static str,
    /// In gnostic's protobuf.
    pub(crate) number: u32,
    pub(crate) role: FieldRole,
}

/// What a field role, which decides how it is merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldRole {
    /// The local server's alone.
    Local,
    /// Paths, and below them methods.
    Paths,
    /// Things by their names.
    Names,
    /// A list of things that say their names.
    Tags,
    /// A message that in turn role such fields.
    Components,
}

const fn field(json: &'static str, number: u32, role: FieldRole) -> Field {
    Field { json, number, role }
}

// The order is that in which kube-apiserver's Go writes them in JSON. Shared
// parameters and responses are merged with the rest, although they are part of
// no API: paths refer to them.

const V2: &[Field] = &[
    field("consumes", 6, FieldRole::Local),
    field("produces", 7, FieldRole::Local),
    field("schemes", 5, FieldRole::Local),
    field("swagger", 1, FieldRole::Local),
    field("info", 2, FieldRole::Local),
    field("host", 3, FieldRole::Local),
    field("basePath", 4, FieldRole::Local),
    field("paths", 8, FieldRole::Paths),
    field("definitions", 9, FieldRole::Names),
    field("parameters", 10, FieldRole::Names),
    field("responses", 11, FieldRole::Names),
    field("securityDefinitions", 13, FieldRole::Names),
    field("security", 12, FieldRole::Local),
    field("tags", 14, FieldRole::Tags),
    field("externalDocs", 15, FieldRole::Local),
];

const V3: &[Field] = &[
    field("openapi", 1, FieldRole::Local),
    field("info", 2, FieldRole::Local),
    field("paths", 4, FieldRole::Paths),
    field("servers", 3, FieldRole::Local),
    field("components", 5, FieldRole::Components),
    field("security", 6, FieldRole::Local),
    field("tags", 7, FieldRole::Tags),
    field("externalDocs", 8, FieldRole::Local),
];

const V3_COMPONENTS: &[Field] = &[
    field("schemas", 1, FieldRole::Names),
    field("securitySchemes", 7, FieldRole::Names),
    field("responses", 2, FieldRole::Names),
    field("parameters", 3, FieldRole::Names),
    field("examples", 4, FieldRole::Names),
    field("requestBodies", 5, FieldRole::Names),
    field("links", 8, FieldRole::Names),
    field("headers", 6, FieldRole::Names),
    field("callbacks", 9, FieldRole::Names),
];

/// What a path can hold, in order; its methods are those in `METHODS`.
const PATH_ITEM: &[&str] = &[
    "$ref",
    "summary",
    "description",
    "get",
    "put",
    "post",
    "delete",
    "options",
    "head",
    "patch",
    "trace",
    "servers",
    "parameters",
];

/// All methods, in the order of their numbers in protobuf.
const METHODS: &[&str] = &[
    "get", "put", "post", "delete", "options", "head", "patch", "trace",
];

impl Spec {
    /// The fields of a document.
    pub(crate) fn document(self) -> &'static [Field] {
        match self {
            Self::V2 => V2,
            Self::V3 => V3,
        }
    }

    /// The fields of what [`FieldRole::Components`].
    pub(crate) fn components(self) -> &'static [Field] {
        match self {
            // Has none: its names are in the document itself.
            Self::V2 => &[],
            Self::V3 => V3_COMPONENTS,
        }
    }

    /// Where a path is within what [`FieldRole::Paths`].
    pub(crate) fn path_number(self) -> u32 {
        match self {
            Self::V2 => 2,
            Self::V3 => 1,
        }
    }

    /// Whether this field of a path is a method.
    pub(crate) fn is_method_number(self, number: u32) -> bool {
        match self {
            Self::V2 => (2..=8).contains(&number),
            Self::V3 => (4..=11).contains(&number),
        }
    }
}

/// Whether this member of a path is a method.
pub(crate) fn is_method(member: &str) -> bool {
    METHODS.contains(&member)
}

/// The place of a member among those of a path; unknown ones are last.
pub(crate) fn rank_in_path(member: &str) -> usize {
    let place = PATH_ITEM.iter().position(|known| *known == member);
    place.unwrap_or(PATH_ITEM.len())
}

/// The place of a member among these fields; unknown ones are last.
pub(crate) fn rank_among(fields: &[Field], member: &str) -> usize {
    let place = fields.iter().position(|field| field.json == member);
    place.unwrap_or(fields.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_a_name_and_an_older_one() {
        for (spec, media_type, expected) in [
            (Spec::V2, "application/json", Some(Format::Json)),
            (Spec::V3, "Application/JSON", Some(Format::Json)),
            (
                Spec::V2,
                "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
                Some(Format::Protobuf),
            ),
            (
                Spec::V3,
                "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
                Some(Format::Protobuf),
            ),
            (
                Spec::V3,
                "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
                None,
            ),
            (Spec::V2, "text/plain", None),
            (Spec::V2, "", None),
        ] {
            assert_eq!(
                Format::from_media_type(spec, media_type),
                expected,
                "{media_type}"
            );
        }
    }

    #[test]
    fn no_number_and_no_name_is_used_twice() {
        for fields in [V2, V3, V3_COMPONENTS] {
            let mut numbers: Vec<_> = fields.iter().map(|field| field.number).collect();
            numbers.sort_unstable();
            let expected: Vec<_> = (1..).take(fields.len()).collect();
            assert_eq!(numbers, expected);
            for (rank, field) in fields.iter().enumerate() {
                assert_eq!(rank_among(fields, field.json), rank);
            }
        }
    }
}
