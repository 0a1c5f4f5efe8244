//! The calls, and what is said about each.

pub(super) struct Case {
    pub(super) call: &'static str,
    pub(super) code: &'static str,
    pub(super) message: &'static str,
    pub(super) detail: &'static str,
    pub(super) hint: &'static str,
}

const fn case(
    call: &'static str,
    code: &'static str,
    message: &'static str,
    detail: &'static str,
    hint: &'static str,
) -> Case {
    Case { call, code, message, detail, hint }
}

pub(super) const EMIT: &[Case] = &[
    case("emit(null, '{}')", "22004", "type of an event must not be null", "", "Name what happened"),
    case("emit(null, '{}'::json)", "22004", "type of an event must not be null", "", "Name what happened"),
    case("emit(null, '{}'::jsonb)", "22004", "type of an event must not be null", "", "Name what happened"),
    case("emit('', '{}')", "22023", "type of an event must not be empty", "", "Name what happened"),
    case("emit(repeat('t', 256), '{}')", "54000", "over a limit", "type is 256 bytes long, 255", "Shorten"),
    // Bytes, not characters.
    case("emit(repeat('ü', 128), '{}')", "54000", "over a limit", "type is 256 bytes long, 255", "Shorten"),
    case(
        "emit('t', '{}', key => repeat('k', 1025))",
        "54000",
        "'t'",
        "key is 1025 bytes long, 1024",
        "Shorten",
    ),
    case("emit('t', '{}', tenant => repeat('k', 256))", "54000", "'t'", "tenant is 256 bytes", "Shorten"),
    case("emit('t', '{}', entity => repeat('k', 256))", "54000", "'t'", "entity is 256 bytes", "Shorten"),
    case("emit('t', null::text)", "22004", "payload of event 't' must not be null", "", "in quotes"),
    case("emit('t', null::json)", "22004", "payload of event 't' must not be null", "", "in quotes"),
    case("emit('t', null::jsonb)", "22004", "payload of event 't' must not be null", "", "in quotes"),
    case("emit('t', '{nope')", "22P02", "payload of event 't' is not JSON", "", "to_json"),
    case("emit('t', '')", "22P02", "payload of event 't' is not JSON", "", "to_json"),
    case("emit('t', '{}', headers => 'nope')", "22P02", "headers of event 't' are not JSON", "", "to_json"),
    case(
        "emit('t', '{}', headers => '[]')",
        "22023",
        "headers of event 't' must be",
        "JSON array",
        "traceparent",
    ),
    case(
        "emit('t', '{}', headers => '1'::text)",
        "22023",
        "headers of event 't'",
        "JSON number",
        "traceparent",
    ),
    case("emit('t', '{}'::json, headers => '[]'::json)", "22023", "headers of event", "JSON array", "leave"),
    case(
        "emit('t', '{}'::jsonb, headers => '\"x\"'::jsonb)",
        "22023",
        "headers of event",
        "JSON string",
        "leave",
    ),
    case(
        "emit('t', to_json(repeat('x', 999))::text)",
        "54000",
        "'t' is over a limit",
        "payload is 1001 bytes long, 1000 are allowed",
        "--max-payload",
    ),
    case(
        "emit('t', to_json(repeat('x', 999)))",
        "54000",
        "over a limit",
        "payload is 1001 bytes",
        "object store",
    ),
    case(
        "emit('t', to_jsonb(repeat('x', 999)))",
        "54000",
        "over a limit",
        "payload is 1001 bytes",
        "object store",
    ),
    case(
        "emit('t', '{}', headers => format('{\"h\":\"%s\"}', repeat('x', 65536)))",
        "54000",
        "'t' is over a limit",
        "headers, with the context of the transaction, are 65544 bytes long, 65536 are allowed",
        "belongs in its payload",
    ),
    case(
        "emit('t', '{}'::json, headers => json_build_object('h', repeat('x', 65536)))",
        "54000",
        "over a limit",
        "65536 are allowed",
        "payload",
    ),
    case(
        "emit('t', '{}'::jsonb, headers => jsonb_build_object('h', repeat('x', 65536)))",
        "54000",
        "over a limit",
        "65536 are allowed",
        "payload",
    ),
];

pub(super) const EMIT_MANY: &[Case] = &[
    case("emit_many(null::json)", "22023", "takes a JSON array", "given null", "select postrider.emit_many"),
    case("emit_many('{\"type\": \"t\"}')", "22023", "takes a JSON array", "a JSON object", "select"),
    case("emit_many('{}'::jsonb)", "22023", "takes a JSON array", "a JSON object", "select"),
    case("emit_many('[nope')", "22P02", "argument of emit_many is not JSON", "", "Pass one JSON array"),
    case(
        "emit_many('[{\"type\": \"t\", \"payload\": 1}, 7]')",
        "22023",
        "event 2 of",
        "a JSON number",
        "fields",
    ),
    case(
        "emit_many('[{\"type\": \"t\", \"payload\": 1, \"kye\": 1}]')",
        "22023",
        "event 1 of",
        "\"kye\"",
        "fields",
    ),
    case(
        "emit_many('[{\"payload\": 1}]'::json)",
        "22004",
        "must not be null (event 1 of emit_many)",
        "",
        "Name",
    ),
    case("emit_many('[{\"type\": \"\", \"payload\": 1}]'::jsonb)", "22023", "empty (event 1 of", "", "Name"),
    case("emit_many('[{\"type\": \"t\"}]')", "22004", "'t' must not be null (event 1 of", "", "in quotes"),
    case(
        "emit_many(json_build_array(json_build_object('type', 'a', 'payload', 1),
            json_build_object('type', 'b', 'payload', 1, 'key', repeat('k', 1025))))",
        "54000",
        "'b' is over a limit (event 2 of emit_many)",
        "key is 1025 bytes long, 1024",
        "Shorten",
    ),
    case(
        "emit_many(json_build_array(json_build_object('type', 'a', 'payload', repeat('x', 999))))",
        "54000",
        "(event 1 of emit_many)",
        "payload is 1001 bytes long, 1000",
        "--max-payload",
    ),
    case(
        "emit_many('[{\"type\": \"t\", \"payload\": 1, \"headers\": [1]}]')",
        "22023",
        "headers of event 't' must be a JSON object (event 1 of emit_many)",
        "JSON array",
        "leave headers out",
    ),
    case(
        "emit_many(json_build_array(json_build_object('type', 'a', 'payload', 1),
            json_build_object('type', 'b', 'payload', 1, 'headers', json_build_object('h', repeat('x', 65536)))))",
        "54000",
        "'b' is over a limit (event 2 of emit_many)",
        "65536 are allowed",
        "payload",
    ),
    // JSON that no text can hold: in a payload, in a field, in the name of one, deep inside.
    case(
        r#"emit_many('[{"type": "a", "payload": 1}, {"type": "b", "payload": "\u0000"}]')"#,
        "22P05",
        "event 2 of emit_many contains an escape",
        "\\u0000",
        "by itself",
    ),
    case(
        r#"emit_many('[{"type": "a", "payload": 1, "key": "\u0000"}]'::json)"#,
        "22P05",
        "event 1 of emit_many contains an escape",
        "\\u0000",
        "by itself",
    ),
    case(
        r#"emit_many('[{"type": "a", "payload": {"\u0000": [{"x": 1}]}}]')"#,
        "22P05",
        "event 1 of",
        "\\u0000",
        "by itself",
    ),
    case(
        r#"emit_many('[{"type": "a", "payload": 1}, {"type": "b", "payload": ["\ud83d"]}]')"#,
        "22P02",
        "event 2 of emit_many contains an escape",
        "surrogate",
        "by itself",
    ),
    case(
        r#"emit_many('[{"type": "a", "payload": 1, "headers": {"h": "\ude00"}}]')"#,
        "22P02",
        "event 1 of emit_many contains an escape",
        "surrogate",
        "by itself",
    ),
];

/// Under a context: calls, and contexts that somebody has set by hand.
pub(super) const IN_CONTEXT: &[(&str, Case)] = &[
    (
        r#"{"initiator": "u"}"#,
        case(
            r#"emit('t', '{}', headers => '{"h": "\u0000"}')"#,
            "22P05",
            "headers of event 't' cannot be joined with the context",
            "\\u0000",
            "fit into jsonb",
        ),
    ),
    (
        r#"{"initiator": "u"}"#,
        case(
            r#"emit('t', '{}'::json, headers => '{"h": 1e999999}'::json)"#,
            "22003",
            "headers of event 't' cannot be joined with the context",
            "",
            "fit into jsonb",
        ),
    ),
    (
        r#"{"initiator": "u"}"#,
        case(
            "emit_many(json_build_array(json_build_object('type', 't', 'payload', 1, 'headers', '{\"h\": 1e999999}'::json)))",
            "22003",
            "headers of event 't' cannot be joined with the context",
            "",
            "fit into jsonb",
        ),
    ),
    (
        r#"{"initiator": "u"}"#,
        case(
            "emit('t', '{}', headers => '[1]')",
            "22023",
            "must be a JSON object",
            "JSON array",
            "leave headers out",
        ),
    ),
    (
        r#"{"initiator": "u"}"#,
        case(
            r#"emit_many('[{"type": "t", "payload": 1, "headers": [1]}]')"#,
            "22023",
            "must be a JSON object (event 1 of emit_many)",
            "JSON array",
            "leave headers out",
        ),
    ),
    ("[1]", NO_OBJECT),
    ("[1]", case("emit('t', '{}', headers => '{}')", "22023", NO_CONTEXT, "is a JSON array", "set_context")),
    ("[1]", case("emit('t', '{}'::jsonb)", "22023", NO_CONTEXT, "is a JSON array", "set_context")),
    (
        "[1]",
        case(
            "emit_many('[{\"type\": \"t\", \"payload\": 1}]')",
            "22023",
            NO_CONTEXT,
            "is a JSON array",
            "set_context",
        ),
    ),
    (
        "[1]",
        case("set_context('a', 'b')", "22023", NO_CONTEXT, "is a JSON array", "set postrider.context = ''"),
    ),
    ("null", case("emit('t', '{}')", "22023", NO_CONTEXT, "is a JSON null", "set_context")),
    (
        "nope",
        case("emit('t', '{}')", "22023", NO_CONTEXT, "is not JSON: Token \"nope\" is invalid", "set_context"),
    ),
    ("{nope", case("emit('t', '{}', headers => '{}')", "22023", NO_CONTEXT, "is not JSON", "set_context")),
    ("{nope", case("emit_many('[]')", "22023", NO_CONTEXT, "is not JSON", "set_context")),
    ("{nope", case("set_context('a', 'b')", "22023", NO_CONTEXT, "is not JSON", "set_context")),
    (
        r#"{"a": "\u0000"}"#,
        case("emit('t', '{}'::json)", "22023", NO_CONTEXT, "is not JSON: \\u0000", "set_context"),
    ),
];
const NO_CONTEXT: &str = "the context of this transaction is not a JSON object";
pub(super) const NO_OBJECT: Case =
    case("emit('t', '{}')", "22023", NO_CONTEXT, "is a JSON array", "set_context");
