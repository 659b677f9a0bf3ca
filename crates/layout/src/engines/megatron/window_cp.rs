//! Windows and context parallelism: Megatron's default exchange is a ring (`cp_comm_type` p2p), which is what is priced
//! and emitted, and Transformer Engine's ring has no windows (`context_parallel.py`).

use crate::legality::{Case, Check, Reads, Rule};
use crate::request::Engine;
use diag::{Blame, Finding};

pub const RULE: Rule = Rule {
    id: "megatron/window-cp",
    blame: Blame::Engine,
    reads: Reads::CP,
    quotes: &[(
        Engine::Megatron,
        "Context parallelism does not support sliding window attention with cp_comm_type='p2p'!",
    )],
    check: Check::One(check),
    #[cfg(test)]
    examples: tests::EXAMPLES,
};

fn check(case: &Case) -> Option<Finding> {
    let attention = case.attention()?;
    let window = attention.window.as_ref().filter(|window| window.tokens < case.layout.sequence)?;
    let what = if window.chunked { "chunked" } else { "sliding-window" };
    let message = format!("{what} attention does not go around a ring of cp={}", case.layout.cp);
    case.layout.cp.splits().then(|| RULE.error("attention.window", message).hint("cp may be 1"))
}

#[cfg(test)]
mod tests {
    use super::RULE;
    use crate::legality::example::{Example, found, silent};
    use recipe::kinds::attention::Window;

    pub const EXAMPLES: &[Example] = &[
        found("llama3-8b", "engine=megatron cp=2", "sliding-window attention does not go around a ring of cp=2")
            .with(|r| r.attention.as_mut().unwrap().window = Some(Window::sliding(1024, Vec::new()))),
        silent("llama3-8b", "engine=megatron tp=2")
            .with(|r| r.attention.as_mut().unwrap().window = Some(Window::sliding(1024, Vec::new()))),
        silent("llama3-8b", "engine=megatron cp=2"),
    ];

    #[test]
    fn examples_hold() {
        RULE.hold();
    }
}
