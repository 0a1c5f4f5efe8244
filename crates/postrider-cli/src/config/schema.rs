//! The JSON Schema of the file, for editors.

use serde_json::{Value, json};

use super::raw::File;

/// JSON Schema, draft 2020-12. Wherever a number or a word is wanted, a reference to a variable may stand too.
pub(crate) fn published() -> Value {
    let mut schema = schemars::schema_for!(File).to_value();
    let root = schema.clone();
    open(&mut schema, &root);
    if let Some(definitions) = schema.get_mut("$defs").and_then(Value::as_object_mut) {
        definitions.values_mut().for_each(|definition| open(definition, &root));
    }
    schema["title"] = "postrider.yaml".into();
    schema
}

/// Lets a reference stand for every single value of a section that is not any text already.
fn open(schema: &mut Value, root: &Value) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for property in properties.values_mut().filter(|property| is_closed(property, root)) {
        let Some(own) = property.as_object_mut() else { continue };
        let mut outer = serde_json::Map::new();
        for key in ["description", "default"] {
            if let Some(value) = own.remove(key) {
                outer.insert(key.to_owned(), value);
            }
        }
        let reference = json!({ "type": "string", "pattern": r"\$\{.+\}" });
        outer.insert("anyOf".to_owned(), json!([own, reference]));
        *property = Value::Object(outer);
    }
}

fn is_closed(schema: &Value, root: &Value) -> bool {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return root.pointer(reference.trim_start_matches('#')).is_some_and(|target| is_closed(target, root));
    }
    let has_bounds =
        ["pattern", "enum", "const", "oneOf", "anyOf"].iter().any(|key| schema.get(*key).is_some());
    let kinds = match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        Some(Value::String(kind)) => vec![kind.as_str()],
        _ => Vec::new(),
    };
    let is_text = kinds.contains(&"string") && !has_bounds;
    !is_text && !kinds.contains(&"object") && !kinds.contains(&"array")
}
