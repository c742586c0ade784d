//! A backend described in a file: what its API has, and how its machines come and go. `docs/plugin-authors.md` documents the
//! language, which is as small as a typical API of machines allows.

mod server;
pub(super) mod ssh;
mod state;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

pub(super) use server::Server;

/// A scripted backend.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// Backends over HTTP, each in the place of one connection.
    #[serde(default)]
    pub http: Vec<HttpBackend>,
    /// Hosts over SSH, each in the place of one connection.
    #[serde(default)]
    pub ssh: Vec<ssh::SshHost>,
}

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// Says which line or which path in it is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let script: Self = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
        // Every request would go to the Provider's own backend.
        if script.http.is_empty() && script.ssh.is_empty() {
            return Err("it describes no backend; it holds http, ssh or both".into());
        }
        for collection in script.http.iter().flat_map(|backend| &backend.collections) {
            collection.check()?;
        }
        Ok(script)
    }
}

/// An API.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpBackend {
    /// The connection that leads to it.
    pub connection: String,
    /// A header that every request must carry; another value is answered 401.
    pub auth: Option<AuthHeader>,
    /// Fixed answers to `GET`, by path.
    #[serde(default)]
    pub documents: BTreeMap<String, Value>,
    /// What it has.
    #[serde(default)]
    pub collections: Vec<Collection>,
    /// What goes wrong by itself.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// Body of a 404 for something that is not there.
    #[serde(default = "not_found")]
    pub not_found: Value,
}

fn not_found() -> Value {
    serde_json::json!({"error": "not_found"})
}

/// A header that every request must carry.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthHeader {
    /// Its name.
    pub header: String,
    /// Its value.
    pub value: String,
}

/// Things of one kind. Words in braces in its paths become fields of a thing; the last one of `item` is its id.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Collection {
    /// Path of the listing, and of `POST`.
    pub path: String,
    /// Path of one thing.
    pub item: String,
    /// How one is made.
    pub create: Create,
    /// Fields that are the server's, over what a request says; `{id}` in a text is the thing's id.
    #[serde(default)]
    pub fields: Map<String, Value>,
    /// Fields that no answer shows.
    #[serde(default)]
    pub hidden: Vec<String>,
    /// How it lists.
    #[serde(default)]
    pub list: Listing,
    /// How they come and go.
    #[serde(default)]
    pub states: States,
    /// Paths of one thing for `POST` that change its states.
    #[serde(default)]
    pub actions: Vec<Action>,
    /// Status of a `DELETE` that is carried out.
    #[serde(default = "accepted")]
    pub delete_status: u16,
}

fn accepted() -> u16 {
    202
}

/// How a thing is made.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Create {
    /// `POST` to the collection, or `PUT` to the item.
    pub method: String,
    /// Status of one that made a thing.
    #[serde(default = "created")]
    pub status: u16,
    /// A field in which no two things are alike. With `PUT` the id is, anyway.
    pub unique: Option<String>,
    /// Status of one that meets such a thing; at 2xx the thing is the answer.
    #[serde(default = "conflict")]
    pub duplicate: u16,
}

fn created() -> u16 {
    201
}

fn conflict() -> u16 {
    409
}

/// How a collection lists.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Listing {
    /// Field with the things.
    pub items: String,
    /// Most things of a page.
    pub size: usize,
    /// Query parameter that asks for fewer.
    pub limit: String,
    /// Query parameter with the token of a page.
    pub cursor: String,
    /// Field with the token of the next page; null on the last.
    pub next: String,
    /// Query parameters that filter, each with the field that it looks at. A dot leads into a field.
    pub filters: BTreeMap<String, String>,
}

impl Default for Listing {
    fn default() -> Self {
        Self {
            items: "items".into(),
            size: 100,
            limit: "limit".into(),
            cursor: "cursor".into(),
            next: "next".into(),
            filters: BTreeMap::new(),
        }
    }
}

/// How things come and go: one step for each later request about them.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct States {
    /// Field that tells it.
    pub field: String,
    /// From the create on; it stays in the last.
    pub made: Vec<String>,
    /// From the delete on; after the last it is gone. Empty: gone at once.
    pub deleted: Vec<String>,
    /// Fields that are there in one state only.
    pub show: BTreeMap<String, Map<String, Value>>,
}

impl Default for States {
    fn default() -> Self {
        Self {
            field: "state".into(),
            made: vec!["running".into()],
            deleted: vec!["deleting".into()],
            show: BTreeMap::new(),
        }
    }
}

/// A `POST` that changes a thing's states.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// Its path, that of the item and more.
    pub path: String,
    /// Its states from then on.
    pub states: Vec<String>,
}

/// An answer that some requests get instead of theirs; nothing is carried out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Only this method.
    pub method: Option<String>,
    /// Only this path, as in a collection.
    pub path: Option<String>,
    /// How often.
    pub times: usize,
    /// Status.
    pub status: u16,
    /// Body.
    #[serde(default)]
    pub body: Value,
    /// Headers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

impl Collection {
    fn check(&self) -> Result<(), String> {
        if !matches!(self.create.method.as_str(), "POST" | "PUT") {
            return Err(format!("collection {}: create.method is POST or PUT, not {}", self.path, self.create.method));
        }
        if !self.item.ends_with('}') {
            return Err(format!("collection {}: item {} must end with the id in braces", self.path, self.item));
        }
        if self.states.made.is_empty() || self.actions.iter().any(|action| action.states.is_empty()) {
            return Err(format!("collection {}: states.made and an action's states name at least one", self.path));
        }
        if self.list.size == 0 {
            return Err(format!("collection {}: list.size is at least 1", self.path));
        }
        Ok(())
    }

    /// Name of the field with the id.
    fn id_field(&self) -> &str {
        self.item.rsplit_once('{').map_or("id", |(_, name)| name.trim_end_matches('}'))
    }
}

/// The words in braces of `template`, as they stand in `path`; none when it is another path.
fn matched(template: &str, path: &str) -> Option<Vec<(String, String)>> {
    let (mut words, mut parts) = (template.split('/'), path.split('/'));
    let mut found = vec![];
    loop {
        match (words.next(), parts.next()) {
            (None, None) => return Some(found),
            (Some(word), Some(part)) => match word.strip_prefix('{').and_then(|w| w.strip_suffix('}')) {
                Some(name) if !part.is_empty() => found.push((name.to_owned(), part.to_owned())),
                None if word == part => {}
                _ => return None,
            },
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_gives_the_words_in_braces() {
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            matched("/v1/zones/{zone}/machines/{id}", "/v1/zones/a/machines/m-1"),
            Some(vec![pair("zone", "a"), pair("id", "m-1")])
        );
        for path in
            ["/v1/zones/a/machines", "/v1/zones/a/machines/", "/v1/zones/a/machines/b/c", "/v2/zones/a/machines/b"]
        {
            assert_eq!(matched("/v1/zones/{zone}/machines/{id}", path), None, "{path}");
        }
    }

    #[test]
    fn a_script_that_cannot_work_says_where() {
        let collection =
            |more: &str| format!("http: [{{connection: api, collections: [{{path: /a, item: '/a/{{id}}', {more}}}]}}]");
        for (text, expected) in [
            (collection("create: {method: PATCH}"), "create.method is POST or PUT"),
            (collection("create: {method: PUT}, states: {made: []}"), "states.made"),
            (collection("create: {method: PUT}, list: {size: 0}"), "list.size"),
            (collection("create: {method: PUT}, lists: {}"), "lists"),
            (
                "http: [{connection: api, collections: [{path: /a, item: /a, create: {method: PUT}}]}]".into(),
                "the id in braces",
            ),
        ] {
            let error = Script::parse(&text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(Script::parse("").unwrap_err().contains("no backend"));
        Script::parse(&collection("create: {method: PUT}")).unwrap();
    }
}
