//! A module's undefined symbols are the interpreter's; macOS has to be told so.

fn main() {
    pyo3_build_config::add_extension_module_link_args();
}
