//! What a row computes in, however it spells it: `bf16`, `FP8-MX`, `mxfp8`, `fp8_cs`, `BF16 + FP8 hybrid
//! tensorwise`. A word that is not understood is a refusal that names it.

use super::words::tokens;
use case::options::{Format, Scaling};
use recipe::Dtype;
use serde_json::Value;

/// Formats of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Precision {
    /// Weights and activations.
    pub base: Dtype,
    /// Products.
    pub format: Format,
    /// Where scales come from, where the row says it.
    pub scaling: Option<Scaling>,
}

/// Words around the format that change nothing of it.
const PASSED: [&str; 31] = [
    "mixed",
    "precision",
    "params",
    "param",
    "parameters",
    "weights",
    "gradient",
    "gradients",
    "grad",
    "accumulation",
    "master",
    "hybrid",
    "dynamic",
    "static",
    "scaling",
    "scaled",
    "scale",
    "fine",
    "grained",
    "alternate",
    "quantization",
    "granularity",
    "with",
    "and",
    "training",
    "gemm",
    "compute",
    "e4m3",
    "e5m2",
    "recipe",
    "float8nocompile",
];

impl Precision {
    pub fn of(row: &Value) -> Result<Precision, String> {
        let text = row["precision"].as_str().ok_or("the row lacks `precision`")?;
        let (mut base, mut low, mut scaling) = (None, None, None);
        let words = spelled(text);
        for (at, word) in words.iter().enumerate() {
            // `fp32 params`, `fp32 gradient accumulation`: what is kept beside the base.
            let is_aside = at > 0
                && words.get(at + 1).is_some_and(|next| {
                    ["params", "gradient", "gradients", "grad", "master", "accumulation", "weights"]
                        .contains(&next.as_str())
                });
            match word.as_str() {
                "fp32" | "float32" | "f32" | "tf32" if is_aside => {}
                "bf16" | "bfloat16" => base = base.or(Some(Dtype::Bf16)),
                "fp16" | "float16" | "half" | "f16" => base = base.or(Some(Dtype::Fp16)),
                "fp32" | "float32" | "f32" | "tf32" => base = base.or(Some(Dtype::Fp32)),
                "fp8" | "float8" | "f8" => low = low.or(Some(Format::Fp8)),
                "mxfp8" => (low, scaling) = (Some(Format::Mxfp8), Some(Scaling::Mxfp8)),
                "nvfp4" | "fp4" => (low, scaling) = (Some(Format::Nvfp4), Some(Scaling::Nvfp4)),
                "cs" | "tensorwise" | "current" | "pertensor" => scaling = Some(Scaling::Tensorwise),
                "ds" | "delayed" => scaling = Some(Scaling::Delayed),
                // Sub-channel scales: one for a block of 128.
                "sc" | "blockwise" | "block" | "subchannel" => scaling = Some(Scaling::Blockwise),
                "rowwise" | "axiswise" => scaling = Some(Scaling::Rowwise),
                word if PASSED.contains(&word) => {}
                word => return Err(format!("`{word}` of precision `{text}` is not understood")),
            }
        }
        // Scales without a format, as `tensorwise`, name nothing.
        let format = match (low, base) {
            (Some(format), _) => format,
            (None, Some(_)) => Format::Bf16,
            (None, None) => return Err(format!("precision `{text}` names no format")),
        };
        // Products in 8 or 4 bits keep bf16 weights, gradients and activations around them unless told otherwise.
        let base = base.unwrap_or(Dtype::Bf16);
        let scaling = scaling.filter(|_| low.is_some());
        Ok(Precision { base, format, scaling })
    }
}

/// Tokens of a precision, with what is written in two parts put together: `FP8-MX`, `mx fp8`, `fp8_cs`.
fn spelled(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for token in tokens(text) {
        let last = words.last().map(String::as_str);
        match (last, token.as_str()) {
            (Some("fp8"), "mx") | (Some("mx"), "fp8") => {
                words.pop();
                words.push("mxfp8".to_string());
            }
            (Some("nv"), "fp4") => {
                words.pop();
                words.push("nvfp4".to_string());
            }
            (Some("per"), "tensor") => {
                words.pop();
                words.push("pertensor".to_string());
            }
            (_, "fp8mx") => words.push("mxfp8".to_string()),
            (_, "fp8cs") => words.extend(["fp8".to_string(), "cs".to_string()]),
            (_, "fp8ds") => words.extend(["fp8".to_string(), "ds".to_string()]),
            (_, "fp8sc") => words.extend(["fp8".to_string(), "sc".to_string()]),
            _ => words.push(token),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_format_has_many_spellings() {
        let read = |text: &str| Precision::of(&json!({ "precision": text }));
        let format = |text: &str| read(text).map(|p| (p.base, p.format, p.scaling));
        for text in ["bf16", "BF16", "bfloat16", "BF16 mixed (fp32 params)", "BF16 (fp32 gradient accumulation)"] {
            assert_eq!(format(text), Ok((Dtype::Bf16, Format::Bf16, None)), "{text}");
        }
        for text in ["fp8_mx", "FP8-MX", "mxfp8", "MXFP8", "fp8mx", "MX FP8"] {
            assert_eq!(format(text), Ok((Dtype::Bf16, Format::Mxfp8, Some(Scaling::Mxfp8))), "{text}");
        }
        for (text, scaling) in [
            ("fp8_cs", Scaling::Tensorwise),
            ("FP8-CS", Scaling::Tensorwise),
            ("BF16 + FP8 hybrid tensorwise", Scaling::Tensorwise),
            ("fp8_ds", Scaling::Delayed),
            ("fp8_sc", Scaling::Blockwise),
            ("FP8 rowwise", Scaling::Rowwise),
        ] {
            assert_eq!(format(text), Ok((Dtype::Bf16, Format::Fp8, Some(scaling))), "{text}");
        }
        assert_eq!(format("nvfp4"), Ok((Dtype::Bf16, Format::Nvfp4, Some(Scaling::Nvfp4))));
        assert_eq!(format("fp16"), Ok((Dtype::Fp16, Format::Bf16, None)));
        assert_eq!(format("FP32 + FP8 e4m3 tensorwise").unwrap().0, Dtype::Fp32);
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, word) in
            [("int8", "`int8`"), ("bf16 bogus", "`bogus`"), ("mixed", "names no format"), ("mxfp4", "`mxfp4`")]
        {
            let why = Precision::of(&json!({ "precision": text })).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
