//! Figures that may be no numbers: JSON has no word for those, so they are written as text.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Number(f64),
    Word(String),
}

fn written(value: f64) -> Written {
    match value {
        v if v.is_finite() => Written::Number(v),
        v if v.is_nan() => Written::Word("nan".to_string()),
        v => Written::Word(if v > 0.0 { "inf" } else { "-inf" }.to_string()),
    }
}

fn read<E: Error>(written: Written) -> Result<f64, E> {
    match written {
        Written::Number(value) => Ok(value),
        Written::Word(word) => match word.as_str() {
            "nan" => Ok(f64::NAN),
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            _ => Err(E::custom(format!("`{word}` is no figure"))),
        },
    }
}

pub fn serialize<S: Serializer>(value: &f64, to: S) -> Result<S::Ok, S::Error> {
    written(*value).serialize(to)
}

pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    read(Written::deserialize(from)?)
}

/// The same of a figure that may be missing.
pub mod optional {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Written, read, written};

    pub fn serialize<S: Serializer>(value: &Option<f64>, to: S) -> Result<S::Ok, S::Error> {
        value.map(written).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
        Option::<Written>::deserialize(from)?.map(read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Step, TensorKind, TensorStat};

    #[test]
    fn what_is_no_number_reads_back() {
        let step = Step { number: 1, loss: Some(f64::NAN), grad_norm: Some(f64::INFINITY), ..Step::default() };
        let text = serde_json::to_string(&step).unwrap();
        assert!(text.contains(r#""loss":"nan","grad_norm":"inf""#), "{text}");
        let back: Step = serde_json::from_str(&text).unwrap();
        assert!(back.loss.unwrap().is_nan() && back.grad_norm == Some(f64::INFINITY));
        let stat = TensorStat {
            step: 1,
            path: "layers.0".to_string(),
            kind: TensorKind::Activation,
            norm: f64::NEG_INFINITY,
            nonfinite: 1,
            source: 0,
            line: 1,
        };
        let back: TensorStat = serde_json::from_str(&serde_json::to_string(&stat).unwrap()).unwrap();
        assert_eq!(back, stat);
        assert!(serde_json::from_str::<Step>(r#"{"number":1,"loss":"much","source":0,"line":1}"#).is_err());
    }
}
