//! What a scripted API holds, and its answers.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

use super::{Collection, HttpBackend, matched};

/// A request, as far as it matters here.
pub(super) struct Asked {
    pub method: String,
    pub path: String,
    pub query: BTreeMap<String, String>,
    pub body: Value,
}

/// A status, headers and a body.
pub(super) type Reply = (u16, BTreeMap<String, String>, Value);

struct Thing {
    fields: Map<String, Value>,
    /// The present state first.
    states: VecDeque<String>,
    deleted: bool,
}

/// Everything that a scripted API knows.
pub(super) struct State {
    script: HttpBackend,
    /// By the number of the collection, then in the order in which they were made.
    things: Vec<Vec<Thing>>,
    /// How often each fault may still strike.
    faults: Vec<usize>,
    made: usize,
    frozen: bool,
}

impl State {
    pub fn new(script: HttpBackend) -> Self {
        let things = script.collections.iter().map(|_| vec![]).collect();
        let faults = script.faults.iter().map(|fault| fault.times).collect();
        Self { script, things, faults, made: 0, frozen: false }
    }

    pub fn auth(&self) -> Option<&super::AuthHeader> {
        self.script.auth.as_ref()
    }

    /// As at the start.
    pub fn reset(&mut self) {
        *self = Self::new(self.script.clone());
    }

    /// Nothing comes or goes any more, or it does again.
    pub fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    pub fn count(&self) -> usize {
        self.things.iter().map(Vec::len).sum()
    }

    /// Whatever holds the first of a pair holds the second instead: it is somebody else's. Its place stays, for the name may
    /// be made of the owner's id, and it is that name which is taken.
    pub fn rewrite(&mut self, pairs: &[(String, String)]) {
        for (things, collection) in self.things.iter_mut().zip(&self.script.collections) {
            let names = |field: &str| collection.item.contains(&format!("{{{field}}}"));
            for (_, value) in things.iter_mut().flat_map(|thing| &mut thing.fields).filter(|(field, _)| !names(field)) {
                rewrite(value, pairs);
            }
        }
    }

    pub fn answer(&mut self, asked: &Asked) -> Reply {
        if let Some(reply) = self.fault(asked) {
            return reply;
        }
        if asked.method == "GET"
            && let Some(document) = self.script.documents.get(&asked.path)
        {
            return plain(200, document.clone());
        }
        for number in 0..self.script.collections.len() {
            let collection = self.script.collections[number].clone();
            if let Some(found) = matched(&collection.item, &asked.path) {
                return self.item(number, &collection, found, asked);
            }
            if let Some(found) = matched(&collection.path, &asked.path) {
                return match asked.method.as_str() {
                    "GET" => self.list(number, &collection, &found, asked),
                    "POST" if collection.create.method == "POST" => self.create(number, &collection, found, asked),
                    _ => wrong_method(),
                };
            }
            for action in &collection.actions {
                if let Some(found) = matched(&action.path, &asked.path) {
                    return match self.find(number, &found) {
                        _ if asked.method != "POST" => wrong_method(),
                        None => self.nothing(),
                        Some(thing) if thing.deleted => plain(409, json!({"error": "wrong_state"})),
                        Some(thing) => {
                            thing.states = action.states.iter().cloned().collect();
                            plain(200, show(&collection, thing))
                        }
                    };
                }
            }
        }
        plain(404, json!({"error": "no_such_path"}))
    }

    fn fault(&mut self, asked: &Asked) -> Option<Reply> {
        let fits = |fault: &super::Fault| {
            fault.method.as_ref().is_none_or(|method| *method == asked.method)
                && fault.path.as_ref().is_none_or(|path| matched(path, &asked.path).is_some())
        };
        let struck = (0..self.faults.len()).find(|n| self.faults[*n] > 0 && fits(&self.script.faults[*n]))?;
        self.faults[struck] -= 1;
        let fault = &self.script.faults[struck];
        Some((fault.status, fault.headers.clone(), fault.body.clone()))
    }

    fn item(&mut self, number: usize, collection: &Collection, found: Vec<(String, String)>, asked: &Asked) -> Reply {
        if asked.method == "PUT" && collection.create.method == "PUT" {
            return self.create(number, collection, found, asked);
        }
        self.step(number, Some(&found));
        let Some(thing) = self.find(number, &found) else { return self.nothing() };
        match asked.method.as_str() {
            "GET" => plain(200, show(collection, thing)),
            "PATCH" => {
                if let Value::Object(changes) = &asked.body {
                    thing.fields.extend(changes.clone());
                }
                plain(200, show(collection, thing))
            }
            "DELETE" => {
                if !thing.deleted {
                    thing.deleted = true;
                    thing.states = collection.states.deleted.iter().cloned().collect();
                }
                let answer = show(collection, thing);
                self.things[number].retain(|thing| !thing.states.is_empty());
                plain(collection.delete_status, answer)
            }
            _ => wrong_method(),
        }
    }

    fn create(&mut self, number: usize, collection: &Collection, found: Vec<(String, String)>, asked: &Asked) -> Reply {
        let Value::Object(mut fields) = asked.body.clone() else {
            return plain(400, json!({"error": "a JSON object is needed"}));
        };
        fields.extend(found.iter().map(|(name, value)| (name.clone(), Value::from(value.clone()))));
        self.step(number, Some(&found));
        let id_field = collection.id_field().to_owned();
        let unique = match collection.create.method.as_str() {
            "PUT" => Some(&id_field),
            _ => collection.create.unique.as_ref(),
        };
        if let Some(field) = unique
            && let Some(there) = self.things[number].iter().find(|thing| thing.fields.get(field) == fields.get(field))
        {
            let status = collection.create.duplicate;
            return match status {
                200..=299 => plain(status, show(collection, there)),
                _ => plain(status, json!({"error": "exists"})),
            };
        }
        self.made += 1;
        let id = fields.entry(id_field).or_insert_with(|| format!("id-{}", self.made).into()).clone();
        for (name, value) in &collection.fields {
            let mut value = value.clone();
            rewrite(&mut value, &[("{id}".to_owned(), id.as_str().unwrap_or_default().to_owned())]);
            fields.insert(name.clone(), value);
        }
        let thing = Thing { fields, states: collection.states.made.iter().cloned().collect(), deleted: false };
        let answer = show(collection, &thing);
        self.things[number].push(thing);
        plain(collection.create.status, answer)
    }

    fn list(&mut self, number: usize, collection: &Collection, found: &[(String, String)], asked: &Asked) -> Reply {
        let start: usize = match asked.query.get(&collection.list.cursor).map(|text| text.parse()) {
            None => 0,
            Some(Ok(start)) => start,
            Some(Err(_)) => return plain(400, json!({"error": "no such page"})),
        };
        if start == 0 {
            self.step(number, None);
        }
        let list = &collection.list;
        let asks = |thing: &&Thing| {
            let below = found.iter().all(|(name, value)| text_at(&thing.fields, name) == Some(value));
            below
                && list.filters.iter().all(|(parameter, field)| {
                    asked.query.get(parameter).is_none_or(|value| text_at(&thing.fields, field) == Some(value))
                })
        };
        let limit = asked.query.get(&list.limit).and_then(|text| text.parse().ok()).unwrap_or(list.size);
        let size = list.size.min(limit).max(1);
        let all: Vec<_> = self.things[number].iter().filter(asks).collect();
        let page: Vec<_> = all.iter().skip(start).take(size).map(|thing| show(collection, thing)).collect();
        let next = (start + size < all.len()).then(|| (start + size).to_string());
        plain(200, json!({list.items.as_str(): page, list.next.as_str(): next}))
    }

    /// One step for each thing that a request is about; without `which`, for all.
    fn step(&mut self, number: usize, which: Option<&[(String, String)]>) {
        if self.frozen {
            return;
        }
        self.things[number].retain_mut(|thing| {
            if which.is_some_and(|which| !is(thing, which)) {
                return true;
            }
            if thing.states.len() > 1 || thing.deleted {
                thing.states.pop_front();
            }
            !thing.states.is_empty()
        });
    }

    fn find(&mut self, number: usize, which: &[(String, String)]) -> Option<&mut Thing> {
        self.things[number].iter_mut().find(|thing| is(thing, which))
    }

    fn nothing(&self) -> Reply {
        plain(404, self.script.not_found.clone())
    }
}

fn is(thing: &Thing, which: &[(String, String)]) -> bool {
    which.iter().all(|(name, value)| text_at(&thing.fields, name) == Some(value))
}

fn plain(status: u16, body: Value) -> Reply {
    (status, BTreeMap::new(), body)
}

fn wrong_method() -> Reply {
    plain(405, json!({"error": "method_not_allowed"}))
}

/// A thing as an answer shows it.
fn show(collection: &Collection, thing: &Thing) -> Value {
    let mut fields = thing.fields.clone();
    fields.retain(|name, _| !collection.hidden.contains(name));
    if let Some(state) = thing.states.front() {
        fields.insert(collection.states.field.clone(), state.clone().into());
        fields.extend(collection.states.show.get(state).cloned().unwrap_or_default());
    }
    Value::Object(fields)
}

/// The text of a field; a dot leads into a field.
fn text_at<'a>(fields: &'a Map<String, Value>, path: &str) -> Option<&'a String> {
    let mut steps = path.split('.');
    let mut value = fields.get(steps.next()?)?;
    for step in steps {
        value = value.get(step)?;
    }
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn rewrite(value: &mut Value, pairs: &[(String, String)]) {
    match value {
        Value::String(text) => {
            for (from, to) in pairs {
                *text = text.replace(from.as_str(), to);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, pairs)),
        Value::Object(fields) => fields.values_mut().for_each(|value| rewrite(value, pairs)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::Script;
    use super::*;

    const SCRIPT: &str = "
http:
- connection: api
  collections:
  - path: /zones/{zone}/machines
    item: /zones/{zone}/machines/{id}
    create: {method: PUT, duplicate: 200}
    fields: {link: 'https://example.test/{id}'}
    hidden: [password]
    list: {items: machines, size: 2, filters: {owner: tags.owner}}
    states: {made: [booting, running], show: {running: {port: 3128}}}
    actions: [{path: '/zones/{zone}/machines/{id}/stop', states: [stopped]}]
  - {path: /jobs, item: '/jobs/{id}', create: {method: POST, unique: name}}
  faults: [{method: GET, path: /jobs, times: 1, status: 500}]
";

    fn mk_state() -> State {
        State::new(Script::parse(SCRIPT).unwrap().http.remove(0))
    }

    fn ask(state: &mut State, method: &str, target: &str, body: Value) -> (u16, Value) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = query.split('&').filter_map(|pair| pair.split_once('='));
        let asked = Asked {
            method: method.into(),
            path: path.into(),
            query: query.map(|(name, value)| (name.into(), value.into())).collect(),
            body,
        };
        let (status, _, body) = state.answer(&asked);
        (status, body)
    }

    #[test]
    fn a_thing_is_made_once_comes_and_goes_step_by_step() {
        let mut state = mk_state();
        let body = json!({"password": "p", "tags": {"owner": "me"}});
        let (status, made) = ask(&mut state, "PUT", "/zones/a/machines/m1", body.clone());
        assert_eq!(
            (status, &made["state"], &made["link"]),
            (201, &"booting".into(), &"https://example.test/m1".into())
        );
        assert!(made.get("password").is_none() && made.get("port").is_none());
        assert_eq!(ask(&mut state, "PUT", "/zones/a/machines/m1", body).0, 200);
        let (_, found) = ask(&mut state, "GET", "/zones/a/machines/m1", Value::Null);
        assert_eq!((&found["state"], &found["port"]), (&"running".into(), &3128.into()));
        assert_eq!(ask(&mut state, "GET", "/zones/b/machines/m1", Value::Null).0, 404);
        assert_eq!(ask(&mut state, "POST", "/zones/a/machines/m1/stop", Value::Null).1["state"], "stopped");
        assert_eq!(ask(&mut state, "DELETE", "/zones/a/machines/m1", Value::Null).1["state"], "deleting");
        state.freeze(true);
        assert_eq!(ask(&mut state, "GET", "/zones/a/machines/m1", Value::Null).1["state"], "deleting");
        state.freeze(false);
        assert_eq!(ask(&mut state, "GET", "/zones/a/machines/m1", Value::Null).0, 404);
        assert_eq!(state.count(), 0);
    }

    #[test]
    fn a_listing_filters_and_has_pages() {
        let mut state = mk_state();
        for (name, owner) in [("m1", "me"), ("m2", "you"), ("m3", "me"), ("m4", "me")] {
            ask(&mut state, "PUT", &format!("/zones/a/machines/{name}"), json!({"tags": {"owner": owner}}));
        }
        let (_, first) = ask(&mut state, "GET", "/zones/a/machines?owner=me", Value::Null);
        assert_eq!((first["machines"].as_array().unwrap().len(), &first["next"]), (2, &"2".into()));
        let (_, second) = ask(&mut state, "GET", "/zones/a/machines?owner=me&cursor=2", Value::Null);
        assert_eq!((&second["machines"][0]["id"], &second["next"]), (&"m4".into(), &Value::Null));
        assert_eq!(ask(&mut state, "GET", "/zones/b/machines", Value::Null).1["machines"], json!([]));
    }

    #[test]
    fn a_post_gets_an_id_and_meets_what_is_there() {
        let mut state = mk_state();
        assert_eq!(ask(&mut state, "POST", "/jobs", json!({"name": "x"})).1["id"], "id-1");
        assert_eq!(ask(&mut state, "POST", "/jobs", json!({"name": "x"})).0, 409);
        assert_eq!(ask(&mut state, "GET", "/jobs", Value::Null).0, 500, "the fault strikes once");
        assert_eq!(ask(&mut state, "GET", "/jobs", Value::Null).0, 200);
        state.rewrite(&[("x".into(), "y".into())]);
        assert_eq!(ask(&mut state, "GET", "/jobs/id-1", Value::Null).1["name"], "y");
    }
}
