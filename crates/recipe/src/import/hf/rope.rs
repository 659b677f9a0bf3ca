//! Rotary positions of a config: `rope_theta`, `partial_rotary_factor`, and the scaling that stands in
//! `rope_parameters` or, in older configs, in `rope_scaling`.

use super::config::Config;
use crate::rope::{Rope, Scaling, Yarn};
use serde_json::{Map, Value};

/// What a model type turns unless its config says otherwise.
pub struct Usual {
    pub theta: f64,
    pub fraction: f64,
    pub scaling: Option<Scaling>,
}

/// The rotation; whatever of it a recipe cannot say is recorded as not carried.
pub fn rope(config: &mut Config, usual: Usual) -> Rope {
    let mut rope = Rope { theta: usual.theta, fraction: usual.fraction, scaling: usual.scaling };
    if let Some(theta) = config.positive("rope_theta") {
        rope.theta = theta;
    }
    if let Some(fraction) = config.positive("partial_rotary_factor") {
        rope.fraction = fraction;
    }
    for object in ["rope_parameters", "rope_scaling"] {
        let Some(Value::Object(map)) = config.raw(object) else { continue };
        let map = by_kind(config, object, map);
        rope.scaling = None;
        let mut inner = Inner { object, map, asked: Vec::new() };
        if let Some(theta) = inner.number("rope_theta") {
            rope.theta = theta;
        }
        if let Some(fraction) = inner.number("partial_rotary_factor") {
            rope.fraction = fraction;
        }
        match inner.scaling(config) {
            Ok(scaling) => rope.scaling = scaling,
            Err(()) => {
                config.not_carried(object);
                continue;
            }
        }
        for (key, value) in map {
            if !inner.asked.contains(&key.as_str()) && !value.is_null() {
                config.not_carried_inside(object, key, value);
            }
        }
    }
    rope
}

/// The figures of layers that see everything, where an object has some for each kind of layer. Another kind's
/// are not carried where they differ.
fn by_kind<'a>(config: &mut Config, object: &str, map: &'a Map<String, Value>) -> &'a Map<String, Value> {
    let Some(Value::Object(full)) = map.get("full_attention") else { return map };
    for (kind, figures) in map.iter().filter(|(kind, _)| *kind != "full_attention") {
        if figures.as_object() != Some(full) && !figures.is_null() {
            config.not_carried_inside(object, kind, figures);
        }
    }
    full
}

/// An object of rotary figures: it remembers which keys were asked for.
struct Inner<'a> {
    object: &'static str,
    map: &'a Map<String, Value>,
    asked: Vec<&'static str>,
}

impl Inner<'_> {
    fn number(&mut self, key: &'static str) -> Option<f64> {
        self.asked.push(key);
        self.map.get(key)?.as_f64().filter(|x| x.is_finite() && *x >= 0.0)
    }

    /// The scaling, or an error where no recipe says its kind or a figure is missing.
    fn scaling(&mut self, config: &mut Config) -> Result<Option<Scaling>, ()> {
        // A scaling may repeat the longest sequence.
        self.asked.extend(["rope_type", "type", "max_position_embeddings"]);
        let kind = self.map.get("rope_type").or_else(|| self.map.get("type")).and_then(Value::as_str);
        match kind.unwrap_or("default") {
            "default" => Ok(None),
            "linear" => self.positive(config, "factor").map(|factor| Some(Scaling::Linear { factor })),
            "llama3" => {
                let (factor, low) = (self.positive(config, "factor")?, self.positive(config, "low_freq_factor")?);
                let (high, original) = (self.positive(config, "high_freq_factor")?, self.original(config)?);
                (low < high).then_some(Some(Scaling::Llama3 { factor, low, high, original })).ok_or(())
            }
            "yarn" => {
                let usual = Yarn::usual(self.positive(config, "factor")?, self.original(config)?);
                self.asked.push("truncate");
                Ok(Some(Scaling::Yarn(Yarn {
                    beta_fast: self.number("beta_fast").filter(|x| *x > 0.0).unwrap_or(usual.beta_fast),
                    beta_slow: self.number("beta_slow").filter(|x| *x > 0.0).unwrap_or(usual.beta_slow),
                    mscale: self.number("mscale"),
                    mscale_all_dim: self.number("mscale_all_dim"),
                    attention_factor: self.number("attention_factor").filter(|x| *x > 0.0),
                    rounds: self.map.get("truncate").and_then(Value::as_bool).unwrap_or(true),
                    ..usual
                })))
            }
            _ => Err(()),
        }
    }

    fn positive(&mut self, config: &mut Config, key: &'static str) -> Result<f64, ()> {
        let number = self.number(key).filter(|x| *x > 0.0);
        if number.is_none() {
            config.refuse(self.object, format!("`{}.{key}` must be a positive number", self.object));
        }
        number.ok_or(())
    }

    /// The length a model was first trained on: its own key, or the config's longest sequence as
    /// transformers takes it.
    fn original(&mut self, config: &mut Config) -> Result<u64, ()> {
        let key = "original_max_position_embeddings";
        self.asked.push(key);
        let own = self.map.get(key).and_then(Value::as_u64);
        let most = crate::limits::SEQUENCE;
        own.or_else(|| config.longest()).filter(|n| (1..=most).contains(n)).ok_or(())
    }
}
