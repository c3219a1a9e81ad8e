//! The feature gate for plugins that proxy requests.

/// The environment variable that turns the feature off, named as in client-go.
const ENV_VARIABLE: &str = "KUBE_FEATURE_ClientExecProxy";

/// The feature gate `ClientExecProxy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FeatureGate {
    /// Plugins get a lock file path and may return a proxy.
    On,
    /// Plugins get no lock file path and must not return a proxy.
    Off,
}

impl FeatureGate {
    /// Reads the environment variable; unset means on.
    pub(crate) fn from_environment(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, String> {
        // The values that Go's ParseBool accepts.
        match variable(ENV_VARIABLE).as_deref() {
            None | Some("" | "1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(Self::On),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(Self::Off),
            Some(other) => Err(format!(
                "{ENV_VARIABLE} is {other:?}; set it to true or false"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feature_is_on_unless_the_environment_turns_it_off() {
        let rows = [
            (None, Ok(FeatureGate::On)),
            (Some(""), Ok(FeatureGate::On)),
            (Some("true"), Ok(FeatureGate::On)),
            (Some("1"), Ok(FeatureGate::On)),
            (Some("false"), Ok(FeatureGate::Off)),
            (Some("F"), Ok(FeatureGate::Off)),
            (
                Some("maybe"),
                Err("KUBE_FEATURE_ClientExecProxy is \"maybe\"; set it to true or false"),
            ),
        ];
        for (value, expected) in rows {
            let found = FeatureGate::from_environment(|name| {
                assert_eq!(name, "KUBE_FEATURE_ClientExecProxy");
                value.map(str::to_owned)
            });
            assert_eq!(found, expected.map_err(str::to_owned), "{value:?}");
        }
    }
}
