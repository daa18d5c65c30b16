//! Keys that are nearly others: what a person most likely meant by one that counts for nothing.

/// The key of `keys` that most likely was meant by `key`, which is none of them. `synonyms` are in lower case, without
/// punctuation.
pub(crate) fn meant(
    key: &str,
    keys: &[&'static str],
    synonyms: &[(&'static str, &'static str)],
) -> Option<&'static str> {
    let plain =
        |key: &str| -> String { key.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect() };
    let written = plain(key);
    if let Some((_, meant)) = synonyms.iter().find(|(synonym, _)| *synonym == written) {
        return Some(meant);
    }
    keys.iter().copied().find(|meant| {
        let meant = plain(meant);
        // Two slips in a long key, one in a short one.
        let slips = if meant.len() > 8 { 2 } else { 1 };
        written.len() + slips >= meant.len() && distance(&written, &meant, slips) <= slips
    })
}

/// How many letters must be added, removed or replaced; anything above `most` for many.
fn distance(a: &str, b: &str, most: usize) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.len().abs_diff(b.len()) > most {
        return most + 1;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen() {
        let keys = ["class", "timeout_seconds", "env_allow"];
        let synonyms = [("timeout", "timeout_seconds"), ("env", "env_allow")];
        for (key, means) in [
            ("Class", Some("class")),
            ("clas", Some("class")),
            ("timout_seconds", Some("timeout_seconds")),
            ("timeoutSeconds", Some("timeout_seconds")),
            ("timeout", Some("timeout_seconds")),
            ("env", Some("env_allow")),
            ("glass_box", None),
            ("version", None),
            ("", None),
        ] {
            assert_eq!(meant(key, &keys, &synonyms), means, "{key:?}");
        }
    }
}
