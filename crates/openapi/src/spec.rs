//! The two OpenAPI versions that kube-apiserver publishes, in two formats each, and the fields
//! of a document that are merged.

/// A version of OpenAPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Spec {
    /// `/openapi/v2`: one document for everything that a server serves.
    V2,
    /// `/openapi/v3/…`: one document per group version.
    V3,
}

/// The format of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// `application/json`
    Json,
    /// gnostic's protobuf messages.
    Protobuf,
}

impl Format {
    /// The `Content-Type` of kube-apiserver's response.
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

    /// The format of this media type, without parameters. Names with `@` are no valid media
    /// types, but kube-apiserver still accepts them.
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

/// A field of an OpenAPI message, or the member of the same object in JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) json: &'static str,
    /// The field number in gnostic's protobuf.
    pub(crate) number: u32,
    pub(crate) role: FieldRole,
}

/// The content of a field, which decides how it is merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldRole {
    /// Taken from the local server.
    Local,
    /// Paths with their methods.
    Paths,
    /// Named items.
    Names,
    /// A list of items with a name.
    Tags,
    /// A message with such fields.
    Components,
}

/// The paths of a document.
pub(crate) const PATHS: &str = "paths";
/// The schemas of v2.
pub(crate) const DEFINITIONS: &str = "definitions";
/// The numbers of both in gnostic's protobuf of v2.
pub(crate) const V2_PATHS: u32 = 8;
pub(crate) const V2_DEFINITIONS: u32 = 9;

const fn field(json: &'static str, number: u32, role: FieldRole) -> Field {
    Field { json, number, role }
}

// In the order of kube-apiserver's JSON. Shared parameters and responses are merged as well,
// although they belong to no API: paths refer to them.

const V2: &[Field] = &[
    field("consumes", 6, FieldRole::Local),
    field("produces", 7, FieldRole::Local),
    field("schemes", 5, FieldRole::Local),
    field("swagger", 1, FieldRole::Local),
    field("info", 2, FieldRole::Local),
    field("host", 3, FieldRole::Local),
    field("basePath", 4, FieldRole::Local),
    field(PATHS, V2_PATHS, FieldRole::Paths),
    field(DEFINITIONS, V2_DEFINITIONS, FieldRole::Names),
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
    field(PATHS, 4, FieldRole::Paths),
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

/// The members of a path, in order; its methods are in `METHODS`.
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

/// All methods, in the order of their protobuf numbers.
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

    /// The fields of a [`FieldRole::Components`] field.
    pub(crate) fn components(self) -> &'static [Field] {
        match self {
            // None: its names are in the document itself.
            Self::V2 => &[],
            Self::V3 => V3_COMPONENTS,
        }
    }

    /// The number of a path inside a [`FieldRole::Paths`] field.
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

/// The position of a member in a path; unknown ones are last.
pub(crate) fn rank_in_path(member: &str) -> usize {
    let place = PATH_ITEM.iter().position(|known| *known == member);
    place.unwrap_or(PATH_ITEM.len())
}

/// The position of a member among these fields; unknown ones are last.
pub(crate) fn rank_among(fields: &[Field], member: &str) -> usize {
    let place = fields.iter().position(|field| field.json == member);
    place.unwrap_or(fields.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_a_media_type_and_a_deprecated_one() {
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
