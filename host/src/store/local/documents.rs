//! A file of manifests as text: one document is put in the place of another, or taken out, and all else stays as it is
//! written, comments too.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use crate::model::manifest::{Manifest, parse};
use crate::model::naming::ObjectRef;

/// Metadata that belongs to the operator: what `get -o yaml` shows of it is not written back.
const OWNED: [&str; 7] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "finalizers",
];

/// A document, as it stands between two markers.
pub(super) struct Document {
    text: String,
    /// None: comments alone.
    holds: Option<(ObjectRef, Manifest)>,
}

/// A file of documents.
pub(super) struct Documents(Vec<Document>);

impl Documents {
    /// Takes a text apart.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        let whole = parse(text).map_err(|e| e.to_string())?.len();
        let mut all = Vec::new();
        for text in split(text) {
            let mut manifests = parse(&text).map_err(|e| e.to_string())?;
            let holds = manifests.pop().map(|manifest| (manifest.reference(), manifest));
            if !manifests.is_empty() {
                return Err("its documents cannot be told apart; put `---` between them".into());
            }
            all.push(Document { text, holds });
        }
        let this = Self(all);
        if this.objects().count() != whole {
            return Err("its documents cannot be told apart; put `---` between them".into());
        }
        Ok(this)
    }

    /// What its documents name.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        self.0.iter().filter_map(|document| document.holds.as_ref()).map(|(object, _)| object)
    }

    /// Its documents that hold something, each without the marker before it.
    pub fn into_bodies(self) -> Vec<(Manifest, String)> {
        self.0.into_iter().filter_map(|one| Some((one.holds?.1, body(&one.text)))).collect()
    }

    /// Puts documents in the place of those that name the same objects.
    pub fn replace(&mut self, mut bodies: HashMap<ObjectRef, String>) {
        for one in &mut self.0 {
            if let Some(body) = one.holds.as_ref().and_then(|(object, _)| bodies.remove(object)) {
                let marked = is_marker(&one.text, "---") && !is_marker(&body, "---");
                one.text = if marked { format!("---\n{body}") } else { body };
            }
        }
    }

    /// Takes out what names these objects.
    pub fn take(&mut self, objects: &HashSet<ObjectRef>) {
        self.0.retain(|one| one.holds.as_ref().is_none_or(|(object, _)| !objects.contains(object)));
    }

    /// The file's text; none when it holds no object any more.
    pub fn text(&self) -> Option<String> {
        self.objects().next()?;
        let mut text = String::new();
        for one in &self.0 {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text.push_str(&one.text);
        }
        Some(text)
    }
}

/// Splits before each `---` and after each `...`: at the beginning of a line they are nothing else in YAML.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if is_marker(line, "---") && parts.last().is_some_and(|part| !part.is_empty()) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut() {
            part.push_str(line);
        }
        if is_marker(line, "...") {
            parts.push(String::new());
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Whether a text begins with a marker.
fn is_marker(text: &str, marker: &str) -> bool {
    text.strip_prefix(marker).is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// A document without the markers around it, and without what belongs to the operator.
fn body(text: &str) -> String {
    if let Some(cleaned) = cleaned(text) {
        return cleaned;
    }
    let mut lines: Vec<&str> = text.lines().collect();
    let bare = |line: &str| {
        let rest = line.strip_prefix("---").map(str::trim_start);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
    };
    if lines.first().is_some_and(|line| bare(line)) {
        lines.remove(0);
    }
    lines.retain(|line| !is_marker(line, "..."));
    lines.join("\n").trim_matches('\n').to_owned() + "\n"
}

/// The document written anew, if it holds what is the operator's alone.
fn cleaned(text: &str) -> Option<String> {
    let mut document: Value = serde_saphyr::from_str(text).ok()?;
    let status = document.as_object_mut()?.remove("status").is_some();
    let metadata = document.get_mut("metadata")?.as_object_mut()?;
    let before = metadata.len();
    metadata.retain(|field, _| !OWNED.contains(&field.as_str()));
    let mut changed = status || metadata.len() != before;
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        let before = annotations.len();
        annotations
            .retain(|key, _| key != super::manifests::DIGEST_ANNOTATION && key != super::manifests::FILE_ANNOTATION);
        changed |= annotations.len() != before;
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    changed.then(|| serde_saphyr::to_string(&document).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::naming::Kind;

    fn proxy(name: &str, more: &str) -> String {
        format!(
            "apiVersion: crawl.example.com/v1alpha1\nkind: Proxy\nmetadata: {{name: {name}}}\nspec: {{provider: demo{more}}}\n"
        )
    }

    fn of(name: &str) -> ObjectRef {
        ObjectRef::new(Kind::Proxy, "default", name)
    }

    #[test]
    fn a_document_is_replaced_and_what_stands_around_it_stays() {
        let file =
            format!("# all of ours\n--- # first\n# about a\n{}---\n# about b\n{}", proxy("a", ""), proxy("b", ""));
        let mut documents = Documents::read(&file).unwrap();
        assert_eq!(documents.text().unwrap(), file);
        documents.replace(HashMap::from([(of("a"), proxy("a", ", port: 81"))]));
        let expected = format!("# all of ours\n---\n{}---\n# about b\n{}", proxy("a", ", port: 81"), proxy("b", ""));
        assert_eq!(documents.text().unwrap(), expected);
        documents.take(&HashSet::from([of("a")]));
        assert_eq!(documents.text().unwrap(), format!("# all of ours\n---\n# about b\n{}", proxy("b", "")));
        documents.take(&HashSet::from([of("b")]));
        assert_eq!(documents.text(), None);
    }

    #[test]
    fn documents_are_told_apart_however_they_are_marked() {
        for file in [
            format!("{}---\n{}", proxy("a", ""), proxy("b", "")),
            format!("---\n{}...\n---\n{}", proxy("a", ""), proxy("b", "")),
            format!("{}...\n{}", proxy("a", ""), proxy("b", "").trim_end()),
            format!("---\r\n{}---\r\n{}", proxy("a", "").replace('\n', "\r\n"), proxy("b", "")),
            format!(
                "--- {{apiVersion: crawl.example.com/v1alpha1, kind: Proxy, metadata: {{name: a}}, spec: {{provider: p}}}}\n---\n{}",
                proxy("b", "")
            ),
            format!(
                "{}    note: |\n      text\n       ---\n---\n{}",
                proxy("a", "").replace("spec: {provider: demo}", "spec:\n  provider: demo\n  parameters:"),
                proxy("b", "")
            ),
        ] {
            let mut documents = Documents::read(&file).unwrap_or_else(|e| panic!("{file}\n{e}"));
            assert_eq!(documents.objects().collect::<Vec<_>>(), [&of("a"), &of("b")], "{file}");
            documents.replace(HashMap::from([(of("b"), proxy("b", ", port: 81"))]));
            documents.take(&HashSet::from([of("a")]));
            let left = Documents::read(&documents.text().unwrap()).unwrap();
            assert_eq!(left.objects().collect::<Vec<_>>(), [&of("b")], "{file}");
        }
        assert!(Documents::read("kind: [").is_err());
    }

    #[test]
    fn what_is_the_operators_is_not_written_back() {
        let shown = format!(
            "# edited\n{}status: {{address: x}}\n",
            proxy("a", "").replace(
                "{name: a}",
                "{name: a, uid: u, generation: 3, annotations: {crawl.example.com/manifest: a.yaml}}"
            )
        );
        let (manifest, body) = Documents::read(&shown).unwrap().into_bodies().remove(0);
        assert_eq!(manifest.reference(), of("a"));
        assert!(!body.contains("uid") && !body.contains("status") && !body.contains("annotations"), "{body}");
        assert!(parse(&body).is_ok(), "{body}");
        let kept = format!("# about a\n{}", proxy("a", ""));
        assert_eq!(Documents::read(&format!("---\n{kept}")).unwrap().into_bodies()[0].1, kept);
    }
}
