//! Text that somebody else wrote, by type.

use crate::quote;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A name or value from a file or a command line. It has no `Display`: who writes it says for whom, and gets
/// it as that reader takes it. serde writes it as it is, since every serializer has escapes of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Untrusted(String);

impl Untrusted {
    /// The text as it came, for comparing, looking up and hashing; never to be written anywhere.
    pub fn raw(&self) -> &str {
        &self.0
    }

    /// On one line of a terminal, and in findings.
    pub fn terminal(&self) -> String {
        quote::terminal(&self.0)
    }

    /// As a word that a person copies into a shell.
    pub fn typed(&self) -> String {
        quote::typed(&self.0)
    }

    /// As a word of a script.
    pub fn shell(&self) -> String {
        quote::shell(&self.0)
    }

    /// As text of XML.
    pub fn xml(&self) -> String {
        quote::xml(&self.0)
    }

    /// As a scalar of YAML.
    pub fn yaml(&self) -> String {
        quote::yaml(&self.0)
    }

    /// As a string of TOML.
    pub fn toml(&self) -> String {
        quote::toml(&self.0)
    }

    /// As a literal of Python.
    pub fn python(&self) -> String {
        quote::python(&self.0)
    }
}

impl From<&str> for Untrusted {
    fn from(text: &str) -> Untrusted {
        Untrusted(text.to_string())
    }
}

impl From<String> for Untrusted {
    fn from(text: String) -> Untrusted {
        Untrusted(text)
    }
}

impl From<&Path> for Untrusted {
    fn from(path: &Path) -> Untrusted {
        Untrusted(path.to_string_lossy().into_owned())
    }
}

impl PartialEq<str> for Untrusted {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Untrusted {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}
