//! The placement rules of `--guard-*`.

use std::time::Duration;

use skewbridge_gateway::admission_guard::AdmissionGuard;
use skewbridge_gateway::config::Guards;
use skewbridge_gateway::field_guard::FieldGuard;
use skewbridge_k8s_api::component::GuardedComponents;

use super::non_empty;
use crate::flag_values::{self, Parsed};
use crate::serve::diagnostics::Diagnostics;
use crate::serve::flags::PeerFlags;

/// Upper limit of `--guard-retention`, as its help says.
const MAX_GUARD_RETENTION: Duration = Duration::from_hours(24);

/// The placement rules of `--guard-*`.
pub(super) fn guards(flags: &PeerFlags, diagnostics: &mut Diagnostics) -> Option<Guards> {
    let components = guarded_components(&flags.guard_components);
    let components = diagnostics.value("--guard-components", components);
    let fields = diagnostics.value("--guard-fields", field_guard(&flags.guard_fields));
    let admission = admission_guard(&flags.guard_admission);
    let admission = diagnostics.value("--guard-admission", admission);
    let retention = non_empty(flags.guard_retention.as_ref());
    let retention = retention.map(guard_retention).transpose();
    let retention = diagnostics.value("--guard-retention", retention);
    Some(Guards {
        components: components?,
        fields: fields?,
        admission: admission?,
        retention: retention?,
    })
}

fn guard_retention(text: &str) -> Parsed<Duration> {
    let retention = flag_values::duration(text)?;
    if retention > MAX_GUARD_RETENTION {
        return Err(format!("{text} is more than 24h"));
    }
    Ok(retention)
}

fn field_guard(text: &str) -> Parsed<FieldGuard> {
    match text {
        "off" => Ok(FieldGuard::Off),
        "writes" => Ok(FieldGuard::Writes),
        "all" => Ok(FieldGuard::All),
        _ => Err(format!("{text:?} is not off, writes or all")),
    }
}

fn admission_guard(text: &str) -> Parsed<AdmissionGuard> {
    match text {
        "off" => Ok(AdmissionGuard::Off),
        "on" => Ok(AdmissionGuard::On),
        _ => Err(format!("{text:?} is not on or off")),
    }
}

/// The components of `--guard-components`.
fn guarded_components(values: &[String]) -> Parsed<GuardedComponents> {
    let names = flag_values::list(values)?;
    match names.as_slice() {
        [] => Ok(GuardedComponents::default()),
        [only] if only == "off" => Ok(GuardedComponents::none()),
        names => GuardedComponents::new(names.iter().map(String::as_str))
            .map_err(|error| error.to_string()),
    }
}
