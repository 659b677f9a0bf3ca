//! The page's files: compiled in, or read from a folder by whoever edits them.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::path::Path;

/// Every file by its name in the address.
pub const ASSETS: &[(&str, &[u8])] = &[
    ("app.js", include_bytes!("../assets/app.js")),
    ("ask.js", include_bytes!("../assets/ask.js")),
    ("budget.js", include_bytes!("../assets/budget.js")),
    ("choose.js", include_bytes!("../assets/choose.js")),
    ("controls.js", include_bytes!("../assets/controls.js")),
    ("dom.js", include_bytes!("../assets/dom.js")),
    ("findings.js", include_bytes!("../assets/findings.js")),
    ("icon.svg", include_bytes!("../assets/icon.svg")),
    ("index.html", include_bytes!("../assets/index.html")),
    ("launch.js", include_bytes!("../assets/launch.js")),
    ("memory.js", include_bytes!("../assets/memory.js")),
    ("model.js", include_bytes!("../assets/model.js")),
    ("ownership.js", include_bytes!("../assets/ownership.js")),
    ("picture.js", include_bytes!("../assets/picture.js")),
    ("receipts.js", include_bytes!("../assets/receipts.js")),
    ("source.js", include_bytes!("../assets/source.js")),
    ("state.js", include_bytes!("../assets/state.js")),
    ("style.css", include_bytes!("../assets/style.css")),
    ("theme.js", include_bytes!("../assets/theme.js")),
    ("time.js", include_bytes!("../assets/time.js")),
    ("units.js", include_bytes!("../assets/units.js")),
    ("verdict.js", include_bytes!("../assets/verdict.js")),
    ("zip.js", include_bytes!("../assets/zip.js")),
];

/// A file of the page.
pub fn asset(path: &str, folder: Option<&Path>) -> Response {
    let name = if path.is_empty() { "index.html" } else { path };
    let embedded = ASSETS.iter().find(|(known, _)| *known == name).map(|(_, bytes)| bytes.to_vec());
    let bytes = match folder {
        Some(folder) if is_plain(name) => std::fs::read(folder.join(name)).ok(),
        _ => embedded,
    };
    let Some(bytes) = bytes else { return (StatusCode::NOT_FOUND, "there is no such file\n").into_response() };
    ([(header::CONTENT_TYPE, kind(name)), (header::CACHE_CONTROL, "no-cache")], bytes).into_response()
}

/// Names of files, and of folders before them; none leads out of where it starts.
fn is_plain(name: &str) -> bool {
    let is_word = |word: &str| {
        !word.starts_with('.')
            && !word.is_empty()
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    name.split('/').all(is_word)
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "json" => "application/json",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::{ASSETS, is_plain};
    use std::path::Path;

    fn names(folder: &Path, before: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let name = format!("{before}{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => names(&entry.path(), &format!("{name}/"), found),
                false => found.push(name),
            }
        }
    }

    #[test]
    fn every_file_of_the_page_is_compiled_in() {
        let mut found = Vec::new();
        names(&Path::new(env!("CARGO_MANIFEST_DIR")).join("assets"), "", &mut found);
        let listed: Vec<&str> = ASSETS.iter().map(|(name, _)| *name).collect();
        for name in &found {
            assert!(listed.contains(&name.as_str()) && is_plain(name), "{name} stands in assets and not in ASSETS");
        }
        assert_eq!(found.len(), listed.len());
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for name in ["..", "../x", "a/../../x", "/etc/passwd", "a//b", ".git/config", "a\\b", "%2e%2e/x", ""] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
