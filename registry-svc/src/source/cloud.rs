//! `manifest.json` of the cloud directory, in the admin server's shape: which id each directory was published under.

use std::collections::HashMap;
use std::path::Path;

use super::findings::Findings;
use super::node::{Data, Member};
use super::text::{MAX_TEXT_BYTES, Text, read_bounded};
use super::{codes, json};

/// Ids by directory; a directory that is not listed is its own name.
pub(crate) fn ids(path: &Path, findings: &mut Findings) -> HashMap<String, String> {
    if matches!(std::fs::symlink_metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
        return HashMap::new();
    }
    let read = read_bounded(path, MAX_TEXT_BYTES).and_then(|bytes| Text::of_file(&bytes)).and_then(|text| {
        let root = json::parse(&text)?;
        Ok((text, root))
    });
    let (text, root) = match read {
        Ok(read) => read,
        Err(mut fault) => {
            fault.code = codes::E_CLOUD_MANIFEST;
            findings.fault(fault);
            return HashMap::new();
        }
    };
    let at = text.position(root.span.start);
    let Data::Map(mut members) = root.data else {
        findings.parse(codes::E_CLOUD_MANIFEST, at, "it is not an object with \"skills\": sync again");
        return HashMap::new();
    };
    let skills = members.iter().position(|member| member.key == "skills").map(|index| members.remove(index).value);
    let Some(Data::List(skills)) = skills.map(|skills| skills.data) else {
        findings.parse(codes::E_CLOUD_MANIFEST, at, "it has no list of \"skills\": sync again");
        return HashMap::new();
    };
    let mut ids = HashMap::new();
    for skill in skills {
        if findings.is_full() {
            break;
        }
        let at = || text.position(skill.span.start);
        let Data::Map(members) = skill.data else {
            findings.parse(codes::E_CLOUD_MANIFEST, at(), "a skill is not an object: sync again");
            continue;
        };
        let Some(id) = value(&members, "id") else {
            findings.parse(codes::E_CLOUD_MANIFEST, at(), "a skill has no \"id\": sync again");
            continue;
        };
        let directory = value(&members, "dirname").unwrap_or(id);
        if let Some(first) = ids.insert(directory.to_owned(), id.to_owned()) {
            let message =
                format!("the directory {directory:?} is listed twice, for {first:?} and for {id:?}: sync again");
            findings.parse(codes::E_CLOUD_MANIFEST, at(), message);
            ids.insert(directory.to_owned(), first);
        }
    }
    ids
}

/// A text that is there and not empty.
fn value<'a>(members: &'a [Member], key: &str) -> Option<&'a str> {
    let member = members.iter().find(|member| member.key == key)?;
    match &member.value.data {
        Data::Text(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}
