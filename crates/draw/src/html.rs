//! Answers as fragments of HTML: for notebooks, and for readers of a report whose scripts are off. A fragment brings
//! its own styles under one class, for light and dark, loads nothing and runs nothing.

use crate::palette::DARK;
use crate::scale::seconds;
use crate::{Options, Picture, picture};
use diag::quote;
use serde_json::Value;
use std::fmt::Write;
use units::{Bytes, count, longer};

/// Rows of a table at most; how many more there are is said.
const MOST_ROWS: usize = 200;

/// Fragment of a question's answer; nothing where there is no fragment of that question.
pub fn of(question: &str, answer: &Value) -> String {
    let inside = match question {
        "fit" => fit(answer),
        "plan" => plan(answer),
        "splits" => splits(answer),
        "check" => check(answer),
        "params" => drawn(Picture::Pattern, answer),
        "schedule" => drawn(Picture::Schedule, answer),
        "mesh" => drawn(Picture::Mesh, answer),
        _ => return String::new(),
    };
    format!("<div class=\"sw-html\"><style>{}</style>{inside}</div>", style())
}

/// Styles of fragments, all under `.sw-html`.
pub fn style() -> String {
    let dark: String = DARK.iter().map(|(name, value)| format!("{name}:{value};")).collect();
    let light: String = DARK.iter().map(|(name, _)| format!("{name}:initial;")).collect();
    format!(
        ".sw-html{{font:13px/1.45 system-ui,sans-serif;color:var(--sw-ink,#1a1a1a);background:var(--sw-paper,#fff);\
         max-width:980px;padding:4px 10px;overflow-x:auto}}\
         .sw-html svg{{display:block;max-width:100%;height:auto;margin:6px 0}}\
         .sw-html table{{border-collapse:collapse;margin:6px 0;font-size:12px;color:inherit;background:none}}\
         .sw-html th,.sw-html td{{padding:2px 10px 2px 0;text-align:left;vertical-align:top;\
         border-bottom:1px solid var(--sw-line,#d0d0d0)}}\
         .sw-html .sw-r{{text-align:right;white-space:nowrap}}.sw-html .sw-soft{{color:var(--sw-soft,#595959)}}\
         .sw-html .sw-bad{{color:var(--sw-edge,#b00020)}}\
         .sw-html pre{{white-space:pre-wrap;overflow-wrap:anywhere;font-size:12px;background:var(--sw-free,#f0f0f0);\
         color:inherit;padding:8px}}\
         .sw-html code{{overflow-wrap:anywhere;background:none;color:inherit}}\
         .sw-html summary{{cursor:pointer}}\
         @media(prefers-color-scheme:dark){{.sw-html{{{dark}}}}}\
         [data-jp-theme-light=\"false\"] .sw-html,.vscode-dark .sw-html{{{dark}}}\
         [data-jp-theme-light=\"true\"] .sw-html,.vscode-light .sw-html{{{light}}}"
    )
}

/// Text of an element.
pub(crate) fn text(words: &str) -> String {
    quote::xml(words)
}

/// What a reader copies: markup is escaped, and line ends, tabs and backslashes stay as they are.
pub(crate) fn code(words: &str) -> String {
    let kept = ['\n', '\t', '\\'];
    let escaped = |piece: &str| match piece.strip_suffix(kept) {
        Some(words) => text(words) + &piece[words.len()..],
        None => text(piece),
    };
    words.split_inclusive(kept).map(escaped).collect()
}

/// A string of an answer, or nothing.
pub(crate) fn word<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

pub(crate) fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

pub(crate) fn bytes(value: &Value) -> String {
    match (value.as_u64(), value.as_i64()) {
        (Some(bytes), _) => Bytes(bytes).to_string(),
        (_, Some(bytes)) => format!("−{}", Bytes(bytes.unsigned_abs())),
        _ => "–".to_string(),
    }
}

pub(crate) fn time(value: &Value) -> String {
    value.as_f64().map_or("–".to_string(), seconds)
}

/// A table; columns of numbers stand right.
pub(crate) fn table(head: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> String {
    let class = |column: usize| if right.contains(&column) { " class=\"sw-r\"" } else { "" };
    let mut out = String::from("<table><thead><tr>");
    for (column, words) in head.iter().enumerate() {
        let _ = write!(out, "<th scope=\"col\"{}>{}</th>", class(column), text(words));
    }
    out += "</tr></thead><tbody>";
    let left = rows.len().saturating_sub(MOST_ROWS);
    for row in rows.into_iter().take(MOST_ROWS) {
        out += "<tr>";
        for (column, words) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{}</td>", class(column), text(words));
        }
        out += "</tr>";
    }
    out += "</tbody></table>";
    if left > 0 {
        let _ = write!(out, "<p class=\"sw-soft\">and {left} more</p>");
    }
    out
}

/// A picture, or why there is none.
pub(crate) fn drawn(kind: Picture, answer: &Value) -> String {
    let options = Options { titles: true, ..Options::default() };
    picture(kind, answer, &options)
        .unwrap_or_else(|reason| format!("<p class=\"sw-soft\">{}</p>", text(&reason.to_string())))
}

fn folded(summary: &str, inside: &str) -> String {
    format!("<details><summary>{}</summary>{inside}</details>", text(summary))
}

/// Findings with what would do instead.
pub(crate) fn findings(answer: &Value) -> String {
    let mut out = String::new();
    for finding in list(answer, "findings") {
        let class = if word(finding, "severity") == "error" { "sw-bad" } else { "sw-soft" };
        let hint = word(finding, "hint");
        let hint = if hint.is_empty() { String::new() } else { format!("<br>hint: {}", text(hint)) };
        let _ = write!(
            out,
            "<li><span class=\"{class}\">{}</span>: {} <code>{}</code>{hint}</li>",
            text(word(finding, "severity")),
            text(word(finding, "message")),
            text(word(finding, "rule"))
        );
    }
    if out.is_empty() { out } else { format!("<ul>{out}</ul>") }
}

/// How long a step takes, in a sentence.
pub(crate) fn step(step: &Value) -> String {
    if let Some(why) = step["unpriced"].as_str() {
        return format!("<p>No time for a step: {}</p>", text(why));
    }
    if step["seconds"].as_f64().is_none() {
        return String::new();
    }
    let interval = &step["interval"];
    let between = match interval["low"].as_f64() {
        Some(_) => format!(", {} to {} in 8 of 10 such runs", time(&interval["low"]), time(&interval["high"])),
        None => String::new(),
    };
    let tokens = step["tokens_per_second_per_device"].as_f64().map_or(0, |tokens| tokens as u64);
    let said = format!(
        "A step takes {}{between}: {} tokens/s a device, bound by {}.",
        time(&step["seconds"]),
        count(tokens),
        word(step, "bound")
    );
    format!("<p>{}</p>", text(&said))
}

/// The verdict of an answer of `fit`, in a sentence.
pub(crate) fn verdict(answer: &Value) -> String {
    let worst = &answer["rank_classes"][answer["worst"].as_u64().unwrap_or(0) as usize];
    let class = if word(answer, "verdict") == "fits" { "" } else { " class=\"sw-bad\"" };
    format!(
        "<p><strong{class}>{}</strong> on {}: the worst rank, of stage {}, holds {} of {} ({} left); its peak stands in <code>{}</code>.</p>",
        text(&word(answer, "verdict").replace('-', " ")),
        text(word(&answer["case"]["cluster"], "typed")),
        worst["stage"],
        bytes(&worst["total_bytes"]),
        bytes(&answer["device_bytes"]),
        bytes(&worst["headroom_bytes"]),
        text(word(worst, "peak_block"))
    )
}

/// Memory of a job.
pub fn fit(answer: &Value) -> String {
    if answer["rank_classes"].as_array().is_none() {
        return findings(answer);
    }
    verdict(answer)
        + &step(&answer["step"])
        + &drawn(Picture::Memory, answer)
        + &folded("Phases of the worst rank", &drawn(Picture::Phases, answer))
        + &levers(answer)
        + &findings(answer)
}

/// What one change saves.
pub(crate) fn levers(answer: &Value) -> String {
    let row = |lever: &Value| {
        vec![
            word(lever, "change").to_string(),
            bytes(&lever["saves_bytes"]),
            bytes(&lever["headroom_bytes"]),
            longer(lever["slows"].as_f64()),
            word(lever, "costs").to_string(),
        ]
    };
    let rows: Vec<_> = list(answer, "levers").iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    folded(
        "What one change saves on the worst rank",
        &table(&["change", "saves", "left then", "time a token", "costs"], &[1, 2, 3], rows),
    )
}

/// What to run, and what stands beside it.
pub fn plan(answer: &Value) -> String {
    if answer["sweep"].is_array() {
        return drawn(Picture::Sweep, answer);
    }
    let Some(flags) = answer["best"]["flags"].as_str() else {
        return format!("<p><strong class=\"sw-bad\">no layout fits</strong></p>{}", findings(answer));
    };
    let row = |near: &Value| {
        vec![
            word(near, "change").to_string(),
            time(&near["seconds"]),
            near["slower"].as_f64().map_or(String::new(), units::change),
            bytes(&near["headroom_bytes"]),
        ]
    };
    let near: Vec<_> = list(answer, "alternatives").iter().map(row).collect();
    let lost = answer["rejected"].as_object().map_or(Vec::new(), |map| {
        let mut rows: Vec<(u64, &String)> = map.iter().filter_map(|(rule, n)| Some((n.as_u64()?, rule))).collect();
        rows.sort_by(|a, b| b.cmp(a));
        rows.into_iter().map(|(number, rule)| vec![rule.clone(), units::exact(number)]).collect()
    });
    format!("<p><strong>run</strong> <code>{}</code></p>", code(flags))
        + &step(&answer["best"]["step"])
        + &drawn(Picture::Frontier, answer)
        + &folded("One change away", &table(&["change", "a step", "slower by", "left"], &[1, 2, 3], near))
        + &folded("Why the others lost", &table(&["rule or line", "layouts"], &[1], lost))
        + &findings(answer)
}

fn shape(value: &Value) -> String {
    let dims: Vec<String> = value.as_array().map_or(&[][..], Vec::as_slice).iter().map(Value::to_string).collect();
    format!("[{}]", dims.join(", "))
}

/// Who owns what.
pub fn splits(answer: &Value) -> String {
    if answer["tensors"].as_array().is_none() {
        return findings(answer);
    }
    let rule = |row: &Value| {
        let params = row["params"].as_u64().map_or(String::new(), count);
        ["name", "quality", "why", "cannot_fix"]
            .map(|key| word(row, key).to_string())
            .into_iter()
            .chain([params])
            .collect()
    };
    let tensor = |row: &Value| {
        vec![
            word(row, "path").to_string(),
            shape(&row["logical"]),
            shape(&row["per_rank"]),
            word(row, "split").to_string(),
            word(row, "rule").to_string(),
        ]
    };
    let rules: Vec<_> = list(answer, "split_quality").iter().map(rule).collect();
    let tensors: Vec<_> = list(answer, "tensors").iter().map(tensor).collect();
    let fixes: String = list(answer, "no_axis_can_fix")
        .iter()
        .filter_map(Value::as_str)
        .map(|t| format!("<li>{}</li>", text(t)))
        .collect();
    let held = answer["rank_params"].as_u64().map_or(String::new(), count);
    format!("<p><strong>{}</strong>: rank {} holds {held} parameters</p>", text(word(answer, "recipe")), answer["rank"])
        + &table(&["rule", "quality", "why", "cannot fix", "parameters"], &[4], rules)
        + &folded(
            &format!("{} tensors", tensors.len()),
            &table(&["tensor", "whole", "on this rank", "split", "rule"], &[], tensors),
        )
        + &folded("What no axis can fix", &format!("<ul>{fixes}</ul>"))
        + &findings(answer)
}

/// Legal or not.
pub fn check(answer: &Value) -> String {
    let verdict = match answer["legal"].as_bool() {
        Some(true) => "<strong>legal</strong>",
        _ => "<strong class=\"sw-bad\">not legal</strong>",
    };
    format!("<p>{verdict}: {}</p>{}", text(word(answer, "recipe")), findings(answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_names_hold_stays_text() {
        let hostile = "</td><script>alert(1)</script>\" onload=x";
        let answer = json!({
            "recipe": hostile, "legal": false, "findings": [
                { "rule": hostile, "severity": hostile, "message": hostile, "hint": hostile }],
            "tensors": [{ "path": hostile, "split": hostile, "rule": hostile }], "split_quality": [{ "name": hostile }],
            "no_axis_can_fix": [hostile], "best": { "flags": hostile, "step": { "seconds": 1.0, "bound": hostile } },
        });
        for question in ["fit", "plan", "splits", "check", "params", "schedule", "mesh"] {
            let html = of(question, &answer);
            assert!(html.starts_with("<div") && !html.contains("<script"), "{question}: {html}");
            assert!(!html.contains("\" onload"), "{question}");
        }
        assert_eq!(of("glossary", &answer), "");
        assert_eq!(code("a \\\n\t<b> $'\\012' \u{1b}"), "a \\\n\t&lt;b&gt; $&#39;\\012&#39; \\u{1b}");
    }
}
