//! The page as one file: its styles, scripts and icon inside, answers beside them, and a policy that lets nothing
//! else run and nothing be loaded. Readers without scripts see a still page instead.

use crate::{Undrawn, html, still};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What a file holds besides the page: `case` as the page's address has it, `job` as it is typed, and `answers` by
/// question.
pub struct Embedded<'a> {
    /// Keys of the case.
    pub case: &'a Value,
    /// The case as a person types it.
    pub job: &'a str,
    /// Answers by question; pictures by `draw/NAME`.
    pub answers: &'a Value,
    /// Answers that the still page is made of.
    pub still: &'a Value,
}

/// The still page alone, where there is no other.
pub fn plain(embedded: &Embedded) -> String {
    let style = format!("{}body{{margin:0;background:var(--sw-paper,#fff)}}", html::style());
    let policy = policy(&[&style], &[]);
    let title = title(embedded);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n{policy}\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>{style}</style>\n</head>\n\
         <body>\n<main class=\"sw-html\">{}</main>\n</body>\n</html>\n",
        still::page(embedded.still, embedded.job)
    )
}

/// The page with everything inside it. `files` are those it consists of, by name, `index.html` among them.
pub fn embed(files: &[(&str, &[u8])], embedded: &Embedded) -> Result<String, Undrawn> {
    let files: BTreeMap<&str, &[u8]> = files.iter().copied().collect();
    let read = |name: &str| {
        let bytes = files.get(name).ok_or_else(|| Undrawn(format!("the page has no file `{name}`")))?;
        std::str::from_utf8(bytes).map_err(|_| Undrawn(format!("`{name}` of the page is no text")))
    };
    let mut page = read("index.html")?.to_string();
    let (mut styles, mut roots) = (Vec::new(), Vec::new());
    for tag in tags(&page, "link") {
        let name = attribute(&tag, "href").unwrap_or_default();
        let inside = match attribute(&tag, "rel") {
            Some("stylesheet") => {
                let style = read(name)?.to_string();
                styles.push(style.clone());
                format!("<style>{style}</style>")
            }
            _ => {
                let kind = attribute(&tag, "type").unwrap_or("image/svg+xml");
                let rel = attribute(&tag, "rel").unwrap_or("icon");
                format!("<link rel=\"{rel}\" href=\"data:{kind};base64,{}\">", base64(read(name)?.as_bytes()))
            }
        };
        page = page.replace(&tag, &inside);
    }
    for tag in tags(&page, "script") {
        roots.push(attribute(&tag, "src").unwrap_or_default().to_string());
        page = page.replace(&format!("{tag}</script>"), "");
    }
    let mut bundle = Bundle { read: &read, done: Vec::new(), open: Vec::new(), out: String::new() };
    for root in &roots {
        bundle.add(root)?;
    }
    let script = bundle.out;
    if script.contains("</script") || script.contains("<!--") {
        return Err(Undrawn("a script of the page holds what would end it".to_string()));
    }
    let still_style = format!("body>:not(noscript){{display:none}}{}", html::style());
    let still = format!(
        "<noscript><style>{still_style}</style><main class=\"sw-html\">{}</main></noscript>",
        still::page(embedded.still, embedded.job)
    );
    let page = match (page.find("<noscript>"), page.find("</noscript>")) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{still}{}", &page[..from], &page[to + "</noscript>".len()..])
        }
        _ => page.replace("</body>", &format!("{still}\n</body>")),
    };
    let data = serde_json::json!({ "case": embedded.case, "job": embedded.job, "answers": embedded.answers });
    let tail = format!(
        "<script type=\"application/json\" id=\"answers\">{}</script>\n<script type=\"module\">{script}</script>\n</body>",
        harmless(&data.to_string())
    );
    styles.push(still_style);
    let policy = policy(&styles.iter().map(String::as_str).collect::<Vec<_>>(), &[&script]);
    let page = replace_last(&page, "</body>", &tail);
    let page = replace_between(&page, "<title>", "</title>", &title(embedded));
    Ok(page.replacen("<meta charset=\"utf-8\">", &format!("<meta charset=\"utf-8\">\n{policy}"), 1))
}

fn title(embedded: &Embedded) -> String {
    let fit = &embedded.still["fit"];
    let on = html::word(&fit["case"]["cluster"], "typed");
    html::text(&format!("{} on {on}: {}", html::word(fit, "recipe"), html::word(fit, "verdict").replace('-', " ")))
}

/// JSON that ends no script element, whatever its strings hold.
fn harmless(json: &str) -> String {
    json.replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// The policy: these styles and scripts by their hash, pictures from the file itself, nothing else.
fn policy(styles: &[&str], scripts: &[&str]) -> String {
    let hashes = |texts: &[&str]| {
        let all: Vec<String> =
            texts.iter().map(|text| format!("'sha256-{}'", base64(&Sha256::digest(text.as_bytes())))).collect();
        if all.is_empty() { "'none'".to_string() } else { all.join(" ") }
    };
    format!(
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; script-src {}; \
         img-src data:; base-uri 'none'; form-action 'none'\">",
        hashes(styles),
        hashes(scripts)
    )
}

/// Start tags of an element, as they stand, that name a file.
fn tags(page: &str, element: &str) -> Vec<String> {
    let opening = format!("<{element} ");
    let starts = page.match_indices(&opening).map(|(at, _)| at);
    let tag = |at: usize| page[at..].find('>').map(|end| page[at..=at + end].to_string());
    starts.filter_map(tag).filter(|tag| tag.contains("href=") || tag.contains("src=")).collect()
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, value) = tag.split_once(&format!(" {name}=\""))?;
    value.split_once('"').map(|(value, _)| value)
}

fn replace_last(text: &str, what: &str, with: &str) -> String {
    match text.rsplit_once(what) {
        Some((before, behind)) => format!("{before}{with}{behind}"),
        None => format!("{text}{with}"),
    }
}

fn replace_between(text: &str, from: &str, to: &str, with: &str) -> String {
    let found = text.split_once(from).and_then(|(before, inside)| Some((before, inside.split_once(to)?.1)));
    found.map_or(text.to_string(), |(before, behind)| format!("{before}{from}{with}{to}{behind}"))
}

/// Modules made one script: each a function that gives its exports, those it imports before it.
struct Bundle<'a> {
    read: &'a dyn Fn(&str) -> Result<&'a str, Undrawn>,
    done: Vec<String>,
    open: Vec<String>,
    out: String,
}

impl Bundle<'_> {
    fn add(&mut self, name: &str) -> Result<(), Undrawn> {
        if self.done.iter().any(|done| done == name) {
            return Ok(());
        }
        if self.open.iter().any(|open| open == name) {
            return Err(Undrawn(format!("`{name}` of the page imports itself, by way of others")));
        }
        self.open.push(name.to_string());
        let (mut body, mut exports) = (String::new(), Vec::new());
        for line in (self.read)(name)?.lines() {
            if let Some((names, from)) = import(line) {
                self.add(&from)?;
                let _ = writeln!(body, "const {names} = {};", variable(&from));
            } else if let Some(rest) = line.strip_prefix("export ") {
                let name = exported(rest).ok_or_else(|| {
                    Undrawn(format!("`{line}` of `{name}` exports what cannot be put into one script"))
                })?;
                exports.push(name.to_string());
                let _ = writeln!(body, "{rest}");
            } else if line.starts_with("import ") {
                return Err(Undrawn(format!("`{line}` of `{name}` cannot be put into one script")));
            } else {
                let _ = writeln!(body, "{line}");
            }
        }
        self.open.pop();
        self.done.push(name.to_string());
        let _ = writeln!(
            self.out,
            "const {} = (() => {{\n{body}return {{ {} }};\n}})();",
            variable(name),
            exports.join(", ")
        );
        Ok(())
    }
}

/// The names and the file of `import { a, b } from "./file.js";`.
fn import(line: &str) -> Option<(String, String)> {
    let (names, from) = line.strip_prefix("import ")?.split_once(" from \"./")?;
    let file = from.strip_suffix("\";")?;
    (names.starts_with('{') && names.ends_with('}') && !names.contains(" as "))
        .then(|| (names.to_string(), file.to_string()))
}

/// The name that a declaration declares.
fn exported(declaration: &str) -> Option<&str> {
    let kinds = ["async function ", "function ", "const ", "let ", "class "];
    let rest = kinds.iter().find_map(|kind| declaration.strip_prefix(kind))?.trim_start_matches('*');
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '$')?;
    Some(&rest[..end])
}

fn variable(file: &str) -> String {
    let word: String = file.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("module_{word}")
}

/// RFC 4648, with padding.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(three.get(at).copied().unwrap_or(0)));
        let word = a << 16 | b << 8 | c;
        for at in 0..4 {
            let letter = LETTERS[(word >> (18 - 6 * at) & 63) as usize];
            out.push(if at <= three.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FILES: &[(&str, &[u8])] = &[
        (
            "index.html",
            b"<!doctype html><html><head><meta charset=\"utf-8\"><title>x</title>\n<link rel=\"icon\" href=\"i.svg\" type=\"image/svg+xml\">\
              <link rel=\"stylesheet\" href=\"s.css\"><script type=\"module\" src=\"app.js\"></script></head>\
              <body><p>hello</p><noscript><p>none</p></noscript></body></html>",
        ),
        ("i.svg", b"<svg/>"),
        ("s.css", b"p{color:red}"),
        ("app.js", b"import { one, two } from \"./b.js\";\nconsole.log(one(), two);\n"),
        ("b.js", b"const hidden = 1;\nexport function one() {\n  return hidden;\n}\nexport const two = 2;\n"),
    ];

    fn embedded(name: &str) -> (Value, Value) {
        let fit = json!({ "recipe": name, "verdict": "fits", "case": { "cluster": { "typed": "8xH200" } } });
        (json!({ "recipe": name, "on": "8xH200" }), json!({ "fit": fit }))
    }

    #[test]
    fn everything_stands_in_one_file_and_nothing_is_loaded() {
        let (case, answers) = embedded("mine");
        let page = embed(FILES, &Embedded { case: &case, job: "mine --on 8xH200", answers: &answers, still: &answers })
            .unwrap();
        for gone in ["src=", "s.css", "app.js\"", "<p>none</p>", "import {", "export "] {
            assert!(!page.contains(gone), "{gone}: {page}");
        }
        assert!(page.contains("const module_b_js = (() => {") && page.contains("const { one, two } = module_b_js;"));
        assert!(page.find("module_b_js").unwrap() < page.find("module_app_js").unwrap());
        assert!(page.contains("<title>mine on 8xH200: fits</title>") && page.contains("return { one, two };"));
        let script = page.split_once("<script type=\"module\">").unwrap().1.split_once("</script>").unwrap().0;
        assert!(page.contains(&format!("script-src 'sha256-{}'", base64(&Sha256::digest(script.as_bytes())))));
    }

    #[test]
    fn a_hostile_name_stays_text_in_every_part() {
        let name = "</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>";
        let (case, answers) = embedded(name);
        let embedded = Embedded { case: &case, job: name, answers: &answers, still: &answers };
        for page in [embed(FILES, &embedded).unwrap(), plain(&embedded)] {
            assert!(!page.contains("<script>alert") && !page.contains("<img"), "{page}");
            assert_eq!(page.matches("</script>").count(), page.matches("<script ").count());
        }
    }

    #[test]
    fn what_cannot_be_one_script_is_refused() {
        let (case, answers) = embedded("mine");
        let embedded = Embedded { case: &case, job: "", answers: &answers, still: &answers };
        for js in [
            "import x from \"./b.js\";\n",
            "import { one as uno } from \"./b.js\";\n",
            "import { a } from \"./missing.js\";\n",
            "import { a } from \"./app.js\";\n",
            "export { one };\n",
            "const a = \"</script>\";\n",
        ] {
            let mut files = FILES.to_vec();
            files[3].1 = js.as_bytes();
            assert!(embed(&files, &embedded).is_err(), "{js}");
        }
    }

    #[test]
    fn base64_as_in_the_rfc() {
        assert_eq!(
            ["", "f", "fo", "foo", "foob"].map(|t| base64(t.as_bytes())),
            ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg=="]
        );
    }
}
