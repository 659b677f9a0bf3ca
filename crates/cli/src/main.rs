//! The `shardwright` command.

fn main() -> std::process::ExitCode {
    shardwright::main(std::env::args_os()).into()
}
