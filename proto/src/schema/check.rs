//! Arguments against a skill's schema: each place that breaks it is named before anything starts.

use super::Schema;
use crate::arguments::Arguments;
use crate::service::error::{Reason, Refusal};

/// Violations that are reported; more do not fit into a status.
const MAX_VIOLATIONS: usize = 16;
/// From this size on, arguments and results are looked at on a blocking thread, so that other runs do not wait for it.
pub const LARGE: usize = 256 << 10;
/// Steps of a check, as [`Schema::cost`] counts them, that are taken where the other runs wait for them.
const AT_ONCE: u64 = 10_000;
/// Steps of a check that are taken at all, and how many more for each byte of the arguments.
const MOST_STEPS: u64 = 1_000_000;
const STEPS_A_BYTE: u64 = 4;
/// Where a check takes more steps, the first violation is reported alone: each that is found is kept in memory.
const ALL_VIOLATIONS: u64 = 100_000;

/// Whether they are checked against the schema so fast that nobody else need be kept from it.
#[must_use]
pub fn is_fast(arguments: &Arguments, schema: &Schema) -> bool {
    arguments.size() <= LARGE && schema.cost(arguments.value(), AT_ONCE).is_some()
}

/// Checks them against a skill's schema.
///
/// # Errors
/// INVALID_ARGUMENTS with a violation for each place that breaks it, by JSON pointer; or because the check would take
/// too long.
pub fn validate(arguments: &Arguments, skill: &str, schema: &Schema) -> Result<(), Refusal> {
    let most = MOST_STEPS + STEPS_A_BYTE * arguments.size() as u64;
    let Some(cost) = schema.cost(arguments.value(), most) else {
        let message = format!(
            "the arguments are not checked against the schema of {skill:?}: it would take more than {most} steps; \
             pass less deeply nested ones, or have the choices and references in the schema made simpler"
        );
        return Err(Refusal::new(Reason::InvalidArguments, message).violation("", "too costly to check"));
    };
    let schema = schema.validator();
    if cost > ALL_VIOLATIONS && schema.is_valid(arguments.value()) {
        return Ok(());
    }
    let most_violations = if cost > ALL_VIOLATIONS { 1 } else { usize::MAX };
    let mut errors = schema.iter_errors(arguments.value()).take(most_violations).peekable();
    if errors.peek().is_none() {
        return Ok(());
    }
    let mut refusal = None;
    let mut more = 0;
    for (i, error) in errors.enumerate() {
        if i >= MAX_VIOLATIONS {
            more += 1;
            continue;
        }
        let pointer = error.instance_path().to_string();
        let text = error.to_string();
        let refused = refusal.take().unwrap_or_else(|| {
            let at = if pointer.is_empty() { "at the top".to_owned() } else { format!("at {pointer}") };
            Refusal::new(
                Reason::InvalidArguments,
                format!(
                    "the arguments break the schema of {skill:?} {at}: {text}; CatalogService.GetSkill has the schema"
                ),
            )
        });
        refusal = Some(refused.violation(pointer, text));
    }
    match refusal {
        Some(refused) if more > 0 => Err(refused.with("more_violations", more.to_string())),
        Some(refused) => Err(refused),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::RawArguments;
    use serde_json::json;

    #[test]
    fn violations_have_pointers() {
        let schema = json!({"type": "object", "properties": {"path": {}, "n": {"type": "array", "items": {"type": "integer"}}},
                            "required": ["path"], "additionalProperties": false});
        let schema = Schema::compile(&schema.to_string()).unwrap();
        let arguments = Arguments::parse(RawArguments::Json(r#"{"n": [1, "x"], "y": 1}"#.into())).unwrap();
        let status = tonic::Status::from(validate(&arguments, "s", &schema).unwrap_err());
        let details = tonic_types::StatusExt::get_error_details(&status);
        let mut fields: Vec<_> =
            details.bad_request().unwrap().field_violations.iter().map(|v| v.field.clone()).collect();
        fields.sort();
        assert_eq!(fields, ["", "", "/n/1"]);
        let good = Arguments::parse(RawArguments::Json(r#"{"path": ""}"#.into())).unwrap();
        validate(&good, "s", &schema).unwrap();
    }
}
