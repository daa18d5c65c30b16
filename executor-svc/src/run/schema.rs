//! Arguments against a skill's schema: each place that breaks it is named before anything starts.

use skillyard::arguments::Arguments;
use skillyard::service::error::{Reason, Refusal};

/// Violations that are reported; more do not fit into a status.
const MAX_VIOLATIONS: usize = 16;
/// From this size on, arguments and results are looked at on a blocking thread, so that other runs do not wait for it.
pub const LARGE: usize = 256 << 10;

/// Checks them against a skill's schema.
///
/// # Errors
/// INVALID_ARGUMENTS with a violation for each place that breaks it, by JSON pointer.
pub fn validate(arguments: &Arguments, skill: &str, schema: &jsonschema::Validator) -> Result<(), Refusal> {
    let mut errors = schema.iter_errors(arguments.value()).peekable();
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
    use serde_json::json;
    use skillyard::arguments::RawArguments;

    #[test]
    fn violations_have_pointers() {
        let schema = json!({"type": "object", "properties": {"path": {}, "n": {"type": "array", "items": {"type": "integer"}}},
                            "required": ["path"], "additionalProperties": false});
        let schema = jsonschema::validator_for(&schema).unwrap();
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
