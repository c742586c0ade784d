//! JSON Schemas that plugins bring. The validator writes out what a `$ref` refers to, at each place, in memory and on its
//! stack: a few lines would take all memory, or end the operator. So what a schema may come to is counted before.

use std::collections::{HashMap, HashSet};

use jsonschema::{PatternOptions, ValidationError, Validator};
use percent_encoding::percent_decode_str;
use serde_json::Value;

/// Text of one schema.
pub const BYTES: usize = 128 << 10;
/// Parts of one schema with all its references written out.
const PARTS: u64 = 5_000;
/// What a pattern counts for.
const PATTERN: u64 = 50;
/// Schemas inside each other, references included.
const DEPTH: usize = 64;
/// Of one compiled pattern, and of what it keeps while it is matched.
const PATTERN_BYTES: usize = 256 << 10;

/// A validator. Patterns are those of linear time, as the API server's are.
///
/// # Errors
/// When it is no JSON Schema.
pub fn validator(schema: &Value) -> Result<Validator, ValidationError<'static>> {
    let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES).dfa_size_limit(PATTERN_BYTES);
    jsonschema::draft202012::options().with_pattern_options(patterns).build(schema)
}

/// Reads a plugin's schema.
///
/// # Errors
/// Says what is wrong with it.
pub fn parse(text: &str) -> Result<Value, String> {
    if text.len() > BYTES {
        return Err(format!("has {} bytes, over the limit of {BYTES}", text.len()));
    }
    let schema: Value = serde_json::from_str(text).map_err(|e| format!("is no JSON: {e}"))?;
    let mut walk = Walk { root: &schema, known: HashMap::new(), within: HashSet::new() };
    if walk.schema(&schema)? > PARTS {
        return Err(format!("has over {PARTS} parts with its references written out"));
    }
    validator(&schema).map_err(|e| format!("is no JSON Schema: {e}"))?;
    Ok(schema)
}

struct Walk<'a> {
    root: &'a Value,
    /// What was counted, by its place in memory.
    known: HashMap<*const Value, u64>,
    within: HashSet<*const Value>,
}

impl<'a> Walk<'a> {
    fn schema(&mut self, schema: &'a Value) -> Result<u64, String> {
        let at = std::ptr::from_ref(schema);
        if let Some(parts) = self.known.get(&at) {
            return Ok(*parts);
        }
        if !self.within.insert(at) {
            return Err("refers to itself in a circle".into());
        }
        if self.within.len() > DEPTH {
            return Err(format!("is nested, or refers, over {DEPTH} deep"));
        }
        let parts = match schema {
            Value::Object(fields) => {
                let mut sum = 1u64;
                for (name, value) in fields {
                    sum = sum.saturating_add(self.field(name, value)?);
                }
                sum
            }
            Value::Array(items) => {
                items.iter().try_fold(1u64, |sum, item| Ok::<_, String>(sum.saturating_add(self.schema(item)?)))?
            }
            _ => 1,
        };
        self.within.remove(&at);
        self.known.insert(at, parts);
        Ok(parts)
    }

    fn field(&mut self, name: &str, value: &'a Value) -> Result<u64, String> {
        match (name, value) {
            ("$ref", Value::String(to)) => {
                let target = to.strip_prefix('#').filter(|rest| rest.is_empty() || rest.starts_with('/'));
                let pointer = target.and_then(|pointer| percent_decode_str(pointer).decode_utf8().ok());
                let target = pointer.and_then(|pointer| self.root.pointer(&pointer));
                self.schema(
                    target.ok_or_else(|| {
                        format!("refers to {to:?}; only #/… within the schema itself can be referred to")
                    })?,
                )
            }
            ("$dynamicRef" | "$recursiveRef", Value::String(_)) => {
                Err(format!("uses {name}; write $ref with #/… instead"))
            }
            // What a reference is relative to.
            ("$id", Value::String(_)) if self.within.len() > 1 => Err("has an $id in its inside; leave it out".into()),
            // Not looked at where nothing refers there.
            ("$defs" | "definitions", Value::Object(_)) => Ok(1),
            ("const" | "enum" | "default" | "examples", data) => Ok(size(data)),
            ("pattern", _) => Ok(PATTERN),
            ("patternProperties", Value::Object(fields)) => {
                Ok(self.schema(value)?.saturating_add(PATTERN * fields.len() as u64))
            }
            _ => self.schema(value),
        }
    }
}

/// Values in a value; JSON is not nested deep.
fn size(value: &Value) -> u64 {
    match value {
        Value::Object(fields) => 1 + fields.values().map(size).sum::<u64>(),
        Value::Array(items) => 1 + items.iter().map(size).sum::<u64>(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    fn parsed(schema: &Value) -> Result<Value, String> {
        parse(&schema.to_string())
    }

    /// `a0` refers to `a1`, and so on, each `times`; the last is a string.
    fn row(of: usize, times: usize) -> Value {
        let mut defs = Map::new();
        for i in 0..of {
            let next = json!({"$ref": format!("#/$defs/a{}", i + 1)});
            defs.insert(format!("a{i}"), json!({"allOf": vec![next; times]}));
        }
        defs.insert(format!("a{of}"), json!({"type": "string"}));
        json!({"$defs": defs, "$ref": "#/$defs/a0"})
    }

    #[test]
    fn what_plugins_write_is_taken() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://example.com/config",
            "type": "object",
            "properties": {
                "$id": {"type": "string"},
                "$ref": {"type": "string", "pattern": "^[a-z]{1,63}$"},
                "zones": {"type": "array", "items": {"$ref": "#/$defs/zone"}},
                "spare": {"$ref": "#/$defs/zone"},
                "other": {"$ref": "#/$defs/a~1b%20c"},
            },
            "default": {"$ref": "elsewhere"},
            "$defs": {"zone": {"type": "object", "properties": {"name": {"type": "string"}}}, "a/b c": true},
        });
        assert_eq!(parsed(&schema), Ok(schema));
        assert!(parsed(&row(5, 2)).is_ok());
    }

    #[test]
    fn a_schema_that_would_take_all_memory_or_the_stack_is_refused() {
        let patterns: Vec<_> = (0..200).map(|i| json!({"pattern": format!("x{i}")})).collect();
        let deep = (0..100).fold(json!(true), |inner, _| json!({"not": inner}));
        for (schema, expected) in [
            (row(18, 2), "over 5000 parts"),
            (row(3, 40), "over 5000 parts"),
            (row(2000, 1), "deep"),
            (deep, "deep"),
            (json!({"allOf": patterns}), "over 5000 parts"),
            (json!({"$ref": "#"}), "in a circle"),
            (json!({"properties": {"a": {"$ref": "#"}}}), "in a circle"),
            (json!({"$ref": "#/a", "a": {"$ref": "#/b"}, "b": {"$ref": "#/a"}}), "in a circle"),
            (json!({"$ref": "https://example.com/s"}), "within the schema itself"),
            (json!({"$ref": "file:///etc/passwd"}), "within the schema itself"),
            (json!({"$ref": "#/nowhere"}), "within the schema itself"),
            (json!({"$dynamicRef": "#x"}), "uses $dynamicRef"),
            (json!({"not": {"$id": "x"}}), "an $id in its inside"),
            (json!({"pattern": "(\\p{L}{1000}){100}"}), "is no JSON Schema"),
            (json!({"type": "nonsense"}), "is no JSON Schema"),
            (json!({"description": "x".repeat(BYTES)}), "over the limit of 131072"),
        ] {
            let error = parsed(&schema).expect_err("it is refused");
            assert!(error.contains(expected), "{error}");
        }
        assert!(parse("{").unwrap_err().contains("is no JSON"));
    }

    /// On the stack of a thread of the runtime.
    #[test]
    fn the_deepest_that_is_taken_fits_the_stack() {
        let work = || {
            for schema in [row(DEPTH / 3 - 1, 1), (0..DEPTH - 2).fold(json!(true), |inner, _| json!({"not": inner}))] {
                let schema = parsed(&schema).expect("it is taken");
                assert!(validator(&schema).is_ok_and(|validator| validator.iter_errors(&json!({"a": 1})).count() < 9));
            }
        };
        let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(work).unwrap();
        thread.join().unwrap();
    }
}
