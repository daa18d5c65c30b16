//! What an admin server says, as JSON: the manifest, and one skill. Both directions speak it; knows no HTTP and no disk.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use skillyard::package::MAX_FILES;

/// Where the manifest is, below the server's URL.
pub(super) const SKILLS: [&str; 4] = ["api", "public", "skills", ""];
/// The manifest's place among the skills: no skill can be called so.
pub(super) const MANIFEST: &str = "manifest";

/// Most skills of a manifest.
const MAX_SKILLS: usize = 250_000;
/// Most entries that are named of those that cannot be read.
const MAX_UNREADABLE: usize = 20;

/// What a server publishes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Manifest {
    /// In the server's order. An id may be there twice.
    pub(super) entries: Vec<Entry>,
    /// What is wrong with entries that name no skill: while there is one, it may be any of those that seem to be gone.
    pub(super) unreadable: Vec<String>,
    /// Empty where the server gives none.
    pub(super) version: String,
}

/// A skill of a manifest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Entry {
    pub(super) id: String,
    /// Opaque: another one means other content.
    pub(super) hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tier: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) updated_at: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) dirname: Option<String>,
}

/// An answer that is none of the protocol's.
#[derive(Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("the answer is not the JSON of the protocol ({0})")]
    Json(#[from] serde_json::Error),
    #[error("the manifest has no list of \"skills\"")]
    NoList,
}

impl Entry {
    /// The folder that it is to be in.
    pub(super) fn directory(&self) -> &str {
        self.dirname.as_deref().unwrap_or(&self.id)
    }
}

impl Manifest {
    /// Reads a manifest. One entry that cannot be read does not spoil the others.
    ///
    /// # Errors
    /// There is no list of skills at all.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        #[derive(Deserialize)]
        struct Raw<'a> {
            #[serde(borrow)]
            skills: Option<Bounded<&'a RawValue, MAX_SKILLS>>,
            version: Option<Value>,
        }
        let raw: Raw<'_> = serde_json::from_slice(bytes)?;
        let mut manifest = Self { version: raw.version.and_then(text).unwrap_or_default(), ..Self::default() };
        for (index, skill) in raw.skills.ok_or(Malformed::NoList)?.0.into_iter().enumerate() {
            match entry(skill) {
                Ok(entry) => manifest.entries.push(entry),
                Err(_) if manifest.unreadable.len() >= MAX_UNREADABLE => {}
                Err(what) => manifest.unreadable.push(format!("entry {index} of the manifest {what}")),
            }
        }
        Ok(manifest)
    }

    /// As it is served and kept.
    pub(super) fn write(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct Raw<'a> {
            skills: &'a [Entry],
            version: &'a str,
        }
        // Texts, numbers and lists always have a JSON.
        serde_json::to_vec(&Raw { skills: &self.entries, version: &self.version }).unwrap_or_default()
    }

    /// Ids that are there more than once.
    pub(super) fn repeated(&self) -> BTreeSet<&str> {
        let mut seen = BTreeSet::new();
        self.entries.iter().map(|entry| entry.id.as_str()).filter(|id| !seen.insert(*id)).collect()
    }
}

fn entry(raw: &RawValue) -> Result<Entry, String> {
    let mut members: Map<String, Value> =
        serde_json::from_str(raw.get()).map_err(|error| format!("is not an object ({error})"))?;
    let mut take = |key: &str| members.remove(key).filter(|value| !value.is_null());
    let id = match take("id") {
        Some(Value::String(id)) if !id.is_empty() => id,
        _ => return Err("has no \"id\"".to_owned()),
    };
    let hash = take("hash").and_then(text).filter(|hash| !hash.is_empty());
    let hash = hash.ok_or_else(|| format!("has no \"hash\", for the id {id:?}"))?;
    let mut words = |key: &str| match take(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(format!("has a {key:?} that is not a text, for the id {id:?}")),
    };
    let (tier, dirname) = (words("tier")?, words("dirname")?);
    let updated_at = take("updated_at").filter(|value| value.is_string() || value.is_number());
    Ok(Entry { id, hash, tier, updated_at, dirname })
}

/// A text, or a number as one.
fn text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A skill with its files, as a server answers it.
#[derive(Debug, Deserialize)]
pub(super) struct Body<'a> {
    pub(super) id: String,
    /// `SKILL.md`, byte for byte.
    #[serde(borrow)]
    pub(super) raw_md: Cow<'a, str>,
    /// Whether `SKILL.md` may be executed: what a registry says beyond the protocol.
    #[serde(default)]
    pub(super) executable: Option<bool>,
    /// The package's digest: what a registry says beyond the protocol.
    #[serde(default)]
    pub(super) digest: Option<String>,
    #[serde(default, borrow)]
    pub(super) files: Option<Bounded<File<'a>, MAX_FILES>>,
}

/// One of its files.
#[derive(Debug, Deserialize)]
pub(super) struct File<'a> {
    #[serde(borrow)]
    pub(super) path: Cow<'a, str>,
    /// UTF-8 text.
    #[serde(default, borrow)]
    pub(super) content: Option<Text<'a>>,
    /// Anything else, in base64.
    #[serde(default, borrow)]
    pub(super) content_b64: Option<Text<'a>>,
    /// Its content is too large for the server.
    #[serde(default)]
    pub(super) truncated: Option<bool>,
    /// In bytes; some servers count characters of texts.
    #[serde(default)]
    pub(super) size: Option<u64>,
    #[serde(default)]
    pub(super) executable: Option<bool>,
}

/// A list that ends with an error where it is longer: a short text can make a very long one.
#[derive(Debug)]
pub(super) struct Bounded<T, const MOST: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Bounded<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items<T, const MOST: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Items<T, MOST> {
            type Value = Bounded<T, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MOST}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = list.next_element()? {
                    if items.len() >= MOST {
                        return Err(A::Error::invalid_length(MOST + 1, &self));
                    }
                    items.push(item);
                }
                Ok(Bounded(items))
            }
        }
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

/// A text that is borrowed where it can be, also behind an `Option`.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_there_and_back() {
        let text = r#"{"skills":[{"id":"a","hash":"1","tier":"pro","updated_at":"2026-01-01","dirname":"A"},
            {"id":"b","hash":7,"tier":null,"more":{"x":[1]}}],"version":12}"#;
        let manifest = Manifest::read(text.as_bytes()).unwrap();
        let dirs: Vec<_> = manifest.entries.iter().map(|entry| (entry.directory(), entry.hash.as_str())).collect();
        assert_eq!((dirs, manifest.version.as_str()), (vec![("A", "1"), ("b", "7")], "12"));
        assert_eq!(Manifest::read(&manifest.write()).unwrap(), manifest);
    }

    #[test]
    fn what_is_no_manifest() {
        for bad in ["", "null", "[]", "{}", r#"{"skills":null}"#, r#"{"skills":{}}"#, r#"{"skills":[]"#] {
            assert!(Manifest::read(bad.as_bytes()).is_err(), "{bad}");
        }
        let text = r#"{"skills":[7,{"hash":"1"},{"id":"a"},{"id":"b","hash":"1","dirname":3},{"id":"c","hash":"1"}]}"#;
        let manifest = Manifest::read(text.as_bytes()).unwrap();
        assert_eq!((manifest.entries.len(), manifest.unreadable.len()), (1, 4));
        let twice = r#"{"skills":[{"id":"a","hash":"1"},{"id":"b","hash":"1"},{"id":"a","hash":"1"}]}"#;
        assert_eq!(Vec::from_iter(Manifest::read(twice.as_bytes()).unwrap().repeated()), ["a"]);
    }

    #[test]
    fn lists_are_bounded() {
        let files = vec![r#"{"path":"p"}"#; MAX_FILES + 1].join(",");
        let body = |files: &str| format!(r#"{{"id":"a","raw_md":"x","files":[{files}]}}"#);
        let error = serde_json::from_str::<Body<'_>>(&body(&files)).unwrap_err().to_string();
        assert!(error.contains("at most 4096"), "{error}");
        assert!(serde_json::from_str::<Body<'_>>(&body(&files[13..])).is_ok());
        let many = format!(r#"{{"skills":[{}0]}}"#, "0,".repeat(MAX_SKILLS));
        assert!(Manifest::read(many.as_bytes()).is_err());
        let unreadable = Manifest::read(format!(r#"{{"skills":[{}0]}}"#, "0,".repeat(99)).as_bytes()).unwrap();
        assert_eq!(unreadable.unreadable.len(), MAX_UNREADABLE);
    }

    #[test]
    fn texts_are_borrowed() {
        let text = r#"{"id":"a","raw_md":"x","files":[{"path":"p","content":"c"},{"path":"q","content":"\n"}]}"#;
        let body: Body<'_> = serde_json::from_str(text).unwrap();
        let files = body.files.unwrap().0;
        assert!(matches!(&files[0].content, Some(Text(Cow::Borrowed("c")))));
        assert!(matches!(&files[1].content, Some(Text(Cow::Owned(_)))));
    }
}
