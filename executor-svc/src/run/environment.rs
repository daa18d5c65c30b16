//! A skill's environment: made by a pure function, denied by default.

use std::collections::HashSet;

/// Names of the environment that a skill may have, with what the executor has: the only way a variable gets there.
///
/// A name that the executor does not have is left out; a value that is not UTF-8 too.
#[must_use]
pub fn allowed<'a>(
    names: impl IntoIterator<Item = &'a String>,
    has: impl Fn(&str) -> Option<String>,
) -> Vec<(String, String)> {
    let mut seen = HashSet::new();
    names
        .into_iter()
        .filter(|name| seen.insert(name.as_str()))
        .filter_map(|name| has(name).map(|value| (name.clone(), value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_names_allowed() {
        let has = |name: &str| (name != "UNSET").then(|| format!("value of {name}"));
        let names = ["B", "UNSET", "A", "B"].map(String::from);
        let environment = allowed(&names, has);
        assert_eq!(environment, [("B".into(), "value of B".into()), ("A".into(), "value of A".into())]);
    }
}
