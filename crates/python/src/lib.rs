//! `shardwright._native`: the command line's words in, its answer out. What the answers mean is said in Python
//! (`python/shardwright`).

mod call;

/// The module.
#[pyo3::pymodule]
mod _native {
    use super::call;
    use pyo3::exceptions::PyValueError;
    use pyo3::prelude::*;
    use std::collections::BTreeMap;
    use std::ffi::OsString;

    /// Answers the words of a command line, without the program's name: (exit, JSON or None, text, messages).
    /// Other threads run meanwhile; ctrl-C ends the wait. `texts` are recipes by the name that the words call them, and
    /// `progress` is told how far a search is: done, of.
    #[pyfunction]
    #[pyo3(signature = (words, texts=None, progress=None))]
    fn answer(
        py: Python<'_>,
        words: Vec<OsString>,
        texts: Option<BTreeMap<String, String>>,
        progress: Option<Bound<'_, PyAny>>,
    ) -> PyResult<(u8, Option<String>, String, String)> {
        call::answer(py, words, texts.unwrap_or_default(), progress.as_ref())
    }

    /// Answers a command line, without the program's name, on standard output and error; gives the exit code.
    #[pyfunction]
    fn main(py: Python<'_>, words: Vec<OsString>) -> u8 {
        py.detach(|| shardwright::main(call::named(words)))
    }

    /// A question's answer as HTML with its picture; empty where nothing is drawn of it.
    #[pyfunction]
    fn html(question: &str, json: &str) -> PyResult<String> {
        let answer = serde_json::from_str(json).map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(shardwright::html(question, &answer))
    }

    /// The version of the program.
    #[pyfunction]
    fn version() -> &'static str {
        env!("CARGO_PKG_VERSION")
    }
}
