//! Models by the name they have on the Hugging Face hub, as they lie in its local cache. Nothing is
//! downloaded.

use std::path::{Path, PathBuf};

/// Whether a word can be a model's name: `org/name`, each of the hub's letters.
pub fn is_name(text: &str) -> bool {
    let is_word = |word: &str| {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !word.is_empty() && !word.starts_with('.') && word.len() <= 96 && word.chars().all(is_letter)
    };
    !text.ends_with(".toml")
        && !text.ends_with(".json")
        && text.split_once('/').is_some_and(|(org, name)| is_word(org) && is_word(name))
}

/// The cache's folder, as huggingface_hub finds it (`constants.py`: HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME).
pub fn folder() -> PathBuf {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(cache) = set("HF_HUB_CACHE") {
        return cache;
    }
    let home = || set("HOME").unwrap_or_default();
    let hf_home = || set("XDG_CACHE_HOME").unwrap_or_else(|| home().join(".cache")).join("huggingface");
    set("HF_HOME").unwrap_or_else(hf_home).join("hub")
}

/// Where this model lies in a cache's folder.
pub fn repository(cache: &Path, name: &str) -> PathBuf {
    cache.join(format!("models--{}", name.replace('/', "--")))
}

/// The model's config.json: of the revision `main` stands for, or of the only one there is.
pub fn config(repository: &Path) -> Option<PathBuf> {
    let of =
        |revision: &str| Some(repository.join("snapshots").join(revision).join("config.json")).filter(|p| p.is_file());
    let main = std::fs::read_to_string(repository.join("refs/main")).ok();
    if let Some(found) =
        main.as_deref().map(str::trim).filter(|r| !r.is_empty() && !r.contains(['/', '\\'])).and_then(of)
    {
        return Some(found);
    }
    let kept = std::fs::read_dir(repository.join("snapshots")).ok()?.flatten();
    let mut found: Vec<PathBuf> = kept.filter_map(|entry| of(&entry.file_name().to_string_lossy())).collect();
    if found.len() == 1 { found.pop() } else { None }
}

#[cfg(test)]
mod tests {
    use super::is_name;

    #[test]
    fn a_name_is_told_from_a_path() {
        assert!(is_name("meta-llama/Llama-3.1-8B"));
        for path in
            ["llama", "./mine", "../x", "a/b/c", "/abs", "models/mine.toml", "models/config.json", "org/", "a b/c"]
        {
            assert!(!is_name(path), "{path}");
        }
    }
}
