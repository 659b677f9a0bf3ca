//! A case on one page without a script: the pictures, the tables, what to run, and what was found.

use crate::Picture;
use crate::html::{bytes, code, drawn, findings, levers, list, step, table, text, time, verdict, word};
use serde_json::Value;

/// A section, unless there is nothing in it.
fn section(head: &str, inside: &str) -> String {
    if inside.is_empty() { String::new() } else { format!("<section><h2>{}</h2>{inside}</section>", text(head)) }
}

/// Lines of text as they stand.
fn lines(words: &str) -> String {
    format!("<pre>{}</pre>", code(words))
}

/// The page of a case, from its answers by question; what is not there is left out. `job` is the case as typed.
pub fn page(answers: &Value, job: &str) -> String {
    let [fit, schedule, params, mesh, plan, launch] =
        ["fit", "schedule", "params", "mesh", "plan", "launch"].map(|question| &answers[question]);
    let picture = |kind: Picture, answer: &Value| if answer.is_object() { drawn(kind, answer) } else { String::new() };
    let mut out = format!("<h1>{}</h1>", text(word(fit, "recipe")));
    out += &format!("<p>The case: <code>{}</code></p>", code(job));
    out += &section("Does it fit", &(verdict(fit) + &step(&fit["step"]) + &picture(Picture::Memory, fit)));
    out += &section("What was found", &findings(fit));
    out += &section("Lines of the worst rank", &worst_lines(fit));
    out += &section("Stages", &classes(fit));
    out += &section("Phases", &picture(Picture::Phases, fit));
    out += &section("What one change saves", &levers(fit).replace("<details>", "<details open>"));
    out += &section("A step over time", &(picture(Picture::Schedule, schedule) + &parts(&fit["step"])));
    out += &section("The model", &picture(Picture::Pattern, params));
    out += &section("Ranks", &picture(Picture::Mesh, mesh));
    out += &section("Other layouts", &picture(Picture::Frontier, plan));
    out += &section("What the engine runs otherwise", &seams(fit));
    out += &section("What to run", &run(launch));
    let unknown = list(fit, "unmodelled").iter().filter_map(Value::as_str);
    let unknown: String = unknown.map(|line| format!("<li>{}</li>", text(line))).collect();
    let unknown = if unknown.is_empty() { unknown } else { format!("<ul>{unknown}</ul>") };
    out += &section("Not in any number above", &unknown);
    out
}

fn basis(value: &Value) -> String {
    let said = value.as_object().and_then(|map| map.iter().next());
    match (value.as_str(), said) {
        (Some(word), _) => word.to_string(),
        (_, Some((word, source))) => format!("{word}: {}", source.as_str().unwrap_or_default()),
        _ => String::new(),
    }
}

fn worst_lines(fit: &Value) -> String {
    let worst = &fit["rank_classes"][fit["worst"].as_u64().unwrap_or(0) as usize];
    let row = |line: &Value| {
        let [name, scales, ignores] = ["line", "scales_with", "ignores"].map(|key| word(line, key).to_string());
        vec![name, bytes(&line["bytes"]), scales, ignores, basis(&line["basis"])]
    };
    let rows: Vec<_> = list(worst, "lines").iter().filter(|line| line["bytes"].as_u64() > Some(0)).map(row).collect();
    table(&["line", "bytes", "scales with", "does not care about", "basis"], &[1], rows)
}

fn classes(fit: &Value) -> String {
    let row = |class: &Value| {
        let mut row = vec![class["stage"].to_string()];
        let keys = ["allocated_peak_bytes", "reserved_peak_bytes", "outside_bytes", "total_bytes", "headroom_bytes"];
        row.extend(keys.map(|key| bytes(&class[key])));
        row.push(format!("{} ({})", word(class, "peak_block"), word(class, "peak_phase")));
        row
    };
    let rows: Vec<_> = list(fit, "rank_classes").iter().map(row).collect();
    let head = ["stage", "allocated", "reserved", "outside", "all", "left", "peak stands in"];
    table(&head, &[0, 1, 2, 3, 4, 5], rows)
}

fn parts(step: &Value) -> String {
    let row = |part: &Value| {
        let share = part["share"].as_f64().map_or(String::new(), |share| format!("{:.1}%", 100.0 * share));
        vec![word(part, "name").to_string(), time(&part["seconds"]), share, word(part, "what").to_string()]
    };
    let rows: Vec<_> = list(step, "parts").iter().map(row).collect();
    if rows.is_empty() { String::new() } else { table(&["part of the step", "takes", "share", "what"], &[1, 2], rows) }
}

fn seams(fit: &Value) -> String {
    let row = |seam: &Value| {
        let verdict = if seam["gives_up"].as_bool() == Some(true) { "given up" } else { "kept, custom" };
        ["name", "wanted", "runs"]
            .map(|key| word(seam, key).to_string())
            .into_iter()
            .chain([verdict.to_string()])
            .collect()
    };
    let rows: Vec<_> = list(fit, "seams").iter().map(row).collect();
    if rows.is_empty() { String::new() } else { table(&["seam", "the recipe says", "what runs", ""], &[], rows) }
}

fn run(launch: &Value) -> String {
    if !launch.is_object() {
        return String::new();
    }
    let files = list(launch, "files");
    let names: Vec<&str> = files.iter().map(|file| word(file, "path")).collect();
    let mut out = findings(launch);
    if !names.is_empty() {
        out += &format!("<p>Files of a launch: {}</p>", text(&names.join(", ")));
    }
    for file in files.iter().filter(|file| file["executable"].as_bool() == Some(true)) {
        out += &format!("<h3>{}</h3>{}", text(word(file, "path")), lines(word(file, "contents")));
    }
    out
}
