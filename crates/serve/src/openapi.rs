//! What may be asked, as OpenAPI 3.1: written from the table of questions. How answers look is kept beside it
//! (`answers.json`), as tests saw them.

use crate::questions::{AGAINST, DRAWN, JOB, Key, Kind, QUESTIONS, Question};
use draw::Picture;
use serde_json::{Map, Value, json};

/// Schemas of answers, by question.
const ANSWERS: &str = include_str!("answers.json");

/// Words for a command, and for a flag of it.
pub type Describe<'a> = &'a dyn Fn(&[&str], Option<&str>) -> String;

/// The whole document.
pub fn openapi(version: &str, describe: Describe) -> Value {
    let mut paths = Map::new();
    for question in QUESTIONS {
        paths.insert(format!("/api/v1/{}", question.name), question_path(question, describe));
    }
    for (name, picture) in Picture::ALL {
        paths.insert(format!("/api/v1/draw/{name}"), picture_path(name, *picture));
    }
    paths.insert("/api/v1/jobs/{id}".to_string(), job_path());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Shardwright", "version": version,
            "description": "A body's keys are the flags of the command with `_` for `-`; the answer is what the command prints with `--json`.",
        },
        "paths": paths,
        "components": { "schemas": schemas(describe), "responses": responses() },
    })
}

fn question_path(question: &Question, describe: Describe) -> Value {
    let mut path = json!({
        "post": {
            "operationId": question.name, "summary": describe(question.command, None),
            "parameters": [job_header()],
            "requestBody": { "required": true, "content": { "application/json": { "schema": { "$ref": format!("#/components/schemas/{}.asked", question.name) } } } },
            "responses": answers(question.name),
        },
    });
    // A query has no objects: jobs and recipes that come as texts are for bodies.
    if !question.keys().any(|key| key.kind == Kind::Job) {
        let parameters: Vec<Value> = question.keys().map(|key| parameter(question, key, describe)).collect();
        path["get"] = json!({
            "operationId": format!("{}.get", question.name), "summary": describe(question.command, None),
            "parameters": parameters, "responses": answers(question.name),
        });
    }
    path
}

fn answers(name: &str) -> Value {
    json!({
        "200": {
            "description": "The answer; `error` is true where it is that something does not fit",
            "content": { "application/json": { "schema": { "$ref": format!("#/components/schemas/{name}") } } },
        },
        "400": { "$ref": "#/components/responses/refused" },
        "422": { "$ref": "#/components/responses/refused" },
        "500": { "$ref": "#/components/responses/refused" },
        "503": { "$ref": "#/components/responses/busy" },
    })
}

fn picture_path(name: &str, picture: Picture) -> Value {
    let of = picture.question();
    let more = if picture == Picture::Memory { [DRAWN, AGAINST] } else { [DRAWN, &[]] };
    let mut asked = object(more.iter().flat_map(|keys| keys.iter()), &[], &|_, _| String::new());
    // The keys of the question besides these: a body with others is refused by name.
    if let Some(asked) = asked.as_object_mut() {
        asked.remove("additionalProperties");
    }
    json!({ "post": {
        "operationId": format!("draw.{name}"),
        "summary": format!("A picture of what `{of}` answers: its keys, and how the picture is drawn"),
        "requestBody": { "required": true, "content": { "application/json": { "schema": asked } } },
        "responses": {
            "200": { "description": "The picture", "content": { "image/svg+xml": { "schema": { "type": "string" } } } },
            "422": { "$ref": "#/components/responses/refused" },
            "503": { "$ref": "#/components/responses/busy" },
        },
    } })
}

fn job_header() -> Value {
    json!({
        "name": "x-job", "in": "header", "required": false,
        "description": "A name of your own, by which the question can be asked about and stopped while it is answered",
        "schema": { "type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$" },
    })
}

fn job_path() -> Value {
    let id = json!([{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }]);
    let answers = json!({
        "200": { "description": "How far it is", "content": { "application/json": { "schema": { "$ref": "#/components/schemas/job" } } } },
        "404": { "$ref": "#/components/responses/refused" },
    });
    json!({
        "get": { "operationId": "job.get", "summary": "How far a question is", "parameters": id, "responses": answers },
        "delete": { "operationId": "job.stop", "summary": "Stop it", "parameters": id, "responses": answers },
    })
}

fn parameter(question: &Question, key: &Key, describe: Describe) -> Value {
    let name = key.flag.replace('-', "_");
    // A query is text: what a body says as a number or as true and false is read from its words.
    json!({
        "name": name, "in": "query", "required": key.is_required,
        "description": describe(question.command, Some(key.flag)), "schema": query_schema(key.kind),
    })
}

fn query_schema(kind: Kind) -> Value {
    match kind {
        Kind::Recipe => json!({ "type": "string" }),
        kind => schema(kind),
    }
}

fn schema(kind: Kind) -> Value {
    let word = json!({ "type": "string", "maxLength": 4096 });
    match kind {
        Kind::Integer => json!({ "type": "integer", "minimum": 0 }),
        Kind::Number => json!({ "type": "number" }),
        Kind::Tokens => json!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string" }] }),
        Kind::Text => word,
        Kind::Switch | Kind::Either(_) => json!({ "type": "boolean" }),
        Kind::List | Kind::Each => json!({ "type": "array", "items": word, "maxItems": 4096 }),
        Kind::Integers => json!({ "type": "array", "items": { "type": "integer" }, "maxItems": 4096 }),
        Kind::Numbers => json!({ "type": "array", "items": { "type": "number" }, "maxItems": 4096 }),
        Kind::Recipe => json!({ "$ref": "#/components/schemas/recipe.given" }),
        Kind::Job => json!({ "$ref": "#/components/schemas/job.given" }),
    }
}

fn object(keys: impl Iterator<Item = &'static Key> + Clone, command: &[&str], describe: Describe) -> Value {
    let properties: Map<String, Value> = keys
        .clone()
        .map(|key| {
            let mut schema = schema(key.kind);
            let words = describe(command, Some(key.flag));
            if !words.is_empty() {
                schema["description"] = json!(words);
            }
            (key.flag.replace('-', "_"), schema)
        })
        .collect();
    let required: Vec<String> = keys.filter(|key| key.is_required).map(|key| key.flag.replace('-', "_")).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

fn schemas(describe: Describe) -> Value {
    let mut all: Map<String, Value> = serde_json::from_str(ANSWERS).unwrap_or_default();
    for question in QUESTIONS {
        all.insert(format!("{}.asked", question.name), object(question.keys(), question.command, describe));
    }
    all.insert("job.given".to_string(), object(JOB.iter().flat_map(|group| group.iter()), &["fit"], describe));
    all.insert(
        "recipe.given".to_string(),
        json!({
            "description": "A built-in name, a path below the folder that the server reads, or a recipe's own text or config.json",
            "anyOf": [
                { "type": "string" },
                {
                    "type": "object", "required": ["text"], "additionalProperties": false,
                    "properties": { "name": { "type": "string", "minLength": 1 }, "text": { "type": "string" } },
                },
            ],
        }),
    );
    all.insert(
        "job".to_string(),
        json!({
            "type": "object", "required": ["job", "question", "state", "seconds", "done", "of"],
            "properties": {
                "job": { "type": "string" }, "question": { "type": "string" },
                "state": { "enum": ["waiting", "running", "stopping"] },
                "seconds": { "type": "number" }, "done": { "type": "integer" }, "of": { "type": "integer" },
            },
        }),
    );
    all.insert("finding".to_string(), finding());
    all.insert(
        "refusal".to_string(),
        json!({
            "type": "object", "required": ["schema", "findings", "error"],
            "properties": {
                "schema": { "const": crate::SCHEMA }, "error": { "const": true },
                "findings": { "type": "array", "minItems": 1, "items": { "$ref": "#/components/schemas/finding" } },
            },
        }),
    );
    all.sort_keys();
    Value::Object(all)
}

fn finding() -> Value {
    json!({
        "type": "object", "required": ["rule", "blame", "severity", "object", "message"],
        "properties": {
            "rule": { "type": "string", "pattern": "^[a-z0-9-]+/[a-z0-9-]+$" },
            "blame": { "enum": ["recipe", "layout", "engine", "environment", "usage", "bug"] },
            "severity": { "enum": ["note", "warning", "error"] },
            "object": { "type": "string" }, "message": { "type": "string" },
            "hint": { "type": "string" }, "quote": { "type": "string" },
            "fix": {
                "type": "object", "required": ["key", "values"],
                "properties": { "key": { "type": "string" }, "values": { "type": "array", "items": { "type": "integer" } } },
            },
            "line": { "type": "integer", "minimum": 1 }, "column": { "type": "integer", "minimum": 1 },
        },
    })
}

fn responses() -> Value {
    let content = json!({ "application/json": { "schema": { "$ref": "#/components/schemas/refusal" } } });
    json!({
        "refused": { "description": "Why there is no answer, or why it is a no", "content": content },
        "busy": {
            "description": "Too many are waiting, or it took too long",
            "headers": { "Retry-After": { "schema": { "type": "integer" } } }, "content": content,
        },
    })
}
