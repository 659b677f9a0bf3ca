//! A case as flags and as JSON, and both read back. Flags say everything that the case has and a
//! default might not give again; JSON carries the recipe itself, so that it needs no file.

use crate::asked::{self, Asked, EngineChoice, LayoutArgs, OptimizerChoice, PrecisionChoice, StateArgs};
use crate::build::Terms;
use crate::documents::Documents;
use crate::options::Options;
use crate::{Case, words};
use diag::{Blame, Finding};
use hardware::{Cluster, ClusterText, Device};
use layout::{Engine, Layout};
use recipe::{Feature, Mixer, Recipe};
use serde_json::{Map, Value, json};

/// The schema of a case as JSON.
const SCHEMA: &str = "shardwright/case/1";

impl LayoutArgs {
    /// Flags that settle to exactly this layout.
    pub fn pinned(layout: &Layout, has_experts: bool) -> LayoutArgs {
        LayoutArgs {
            world: Some(layout.world),
            tp: Some(layout.tp.get()),
            sp: layout.sp,
            no_sp: !layout.sp && layout.tp.splits(),
            cp: Some(layout.cp.get()),
            pp: Some(layout.pp.get()),
            vpp: Some(layout.vpp.get()),
            ep: Some(layout.ep.get()),
            etp: has_experts.then_some(layout.etp.get()),
            dp: Some(layout.dp.get()),
            zero: Some(layout.zero),
            mbs: Some(layout.micro_batch),
            gbs: None,
            microbatches: Some(layout.microbatches),
            seq: Some(layout.sequence),
            schedule: Some(layout.schedule),
            recompute: Some(layout.recompute.clone()),
            mode: layout.mode,
            boundaries: layout.boundaries.clone(),
            balance: (layout.boundaries.is_none()).then_some(layout.balance),
            engine: Some(layout.engine.map_or(EngineChoice::Any, EngineChoice::One)),
            vocab_multiple: Some(layout.vocab_multiple),
        }
    }
}

impl Asked {
    /// The same question with every degree of a layout typed, and a share of AdamW's state on the
    /// host.
    pub fn pinned_to(&self, layout: &Layout, has_experts: bool, offload: f64) -> Asked {
        let mut asked = Asked { layout: LayoutArgs::pinned(layout, has_experts), ..self.clone() };
        asked.state.offload_optimizer = Some(offload).filter(|share| *share > 0.0);
        asked
    }
}

impl Case {
    /// What was asked for, with everything that was derived typed.
    pub fn pinned(&self) -> Asked {
        let layout = LayoutArgs::pinned(&self.layout, self.recipe.uses(Mixer::Moe));
        Asked { layout, state: self.pinned_state(), ..self.asked.clone() }
    }

    fn pinned_state(&self) -> StateArgs {
        let options = &self.options;
        let precision = match (options.scaling, self.asked.state.precision) {
            (Some(scaling), _) => Some(PrecisionChoice::Scaled(scaling)),
            (None, typed) => typed,
        };
        let Options { offload, offload_params, on_nvme, .. } = *options;
        let base = Options { offload, offload_params, on_nvme, ..Options::of(self.layout.engine, &self.source) };
        let base = precision.map_or(base, |precision| base.in_precision(precision));
        let engine_args: Vec<String> = words::between(self.layout.engine, &base, options)
            .iter()
            .map(|word| quoted(word))
            .chain(self.passed.iter().flat_map(|words| passed(words)))
            .collect();
        StateArgs {
            precision,
            optimizer: self.asked.state.optimizer,
            gradients: Some(options.state.gradients).filter(|dtype| *dtype != self.source.precision.gradients),
            ce_fusion: false,
            fp8_param_gather: options.fp8_param_gather,
            offload_optimizer: Some(options.offload).filter(|share| *share > 0.0),
            offload_params: options.offload_params,
            offload_nvme: self.asked.state.offload_nvme.clone(),
            offload_activations: options.offload_activations,
            documents: options.documents,
            engine_args: if engine_args.is_empty() { Vec::new() } else { vec![engine_args.join(" ")] },
        }
    }

    /// The job as words of a command line: recipe, flags, and the cluster where there is one.
    pub fn words(&self) -> Vec<String> {
        let mut out = vec![self.asked.recipe.recipe.clone()];
        for (flag, features) in [("--with", &self.asked.recipe.with), ("--without", &self.asked.recipe.without)] {
            if !features.is_empty() {
                out.extend([flag.to_string(), names(features).join(",")]);
            }
        }
        out.extend(self.layout.words(self.recipe.uses(Mixer::Moe)));
        out.extend(self.pinned_state().words());
        match &self.asked.on {
            Some(on) => out.extend(["--on".to_string(), on.clone()]),
            None => out.extend(["--world".to_string(), self.layout.world.to_string()]),
        }
        out
    }

    /// The job as JSON.
    pub fn to_json(&self) -> Value {
        let engine = self.layout.engine;
        let options: Map<String, Value> = words::of(engine)
            .words
            .iter()
            .map(|word| (word.name.to_string(), (word.get)(&self.options).into()))
            .collect();
        let is_file = self
            .asked
            .on
            .as_deref()
            .and_then(|on| ClusterText::parse(on).ok())
            .is_some_and(|typed| hardware::is_path(typed.device));
        let mut job = json!({
            "schema": SCHEMA,
            "recipe": {
                "typed": self.asked.recipe.recipe, "with": names(&self.asked.recipe.with),
                "without": names(&self.asked.recipe.without),
                "optimizer": self.asked.state.optimizer.map(OptimizerChoice::name), "toml": self.source.to_toml(),
            },
            "cluster": self.cluster.as_ref().map(|cluster| json!({
                "typed": self.asked.on, "device": is_file.then(|| json!(cluster.device)),
            })),
            "layout": whole_layout_json(&self.layout),
            "options": options,
            "state": {
                "precision": self.pinned_state().precision.map(PrecisionChoice::name),
                "gradients": self.options.state.gradients.name(),
                "fp8_param_gather": self.options.fp8_param_gather,
                "offload_optimizer": self.options.offload,
                "offload_params": self.options.offload_params,
                "offload_nvme": self.asked.state.offload_nvme,
                "offload_activations": self.options.offload_activations,
            },
            "passed": self.passed,
            "defaults": self.defaults,
            "seams": self.seams,
        });
        if let Some(documents) = self.options.documents {
            job["state"]["documents"] = documents.to_string().into();
        }
        job
    }

    /// Reads a job back from its JSON.
    pub fn from_json(value: &Value, terms: Terms) -> Result<Case, Vec<Finding>> {
        if value["schema"] != SCHEMA {
            return Err(vec![wrong("schema", format!("this is no case: its schema is not `{SCHEMA}`"))]);
        }
        let text = |value: &Value, key: &str| {
            value.as_str().map(str::to_string).ok_or_else(|| vec![wrong(key, format!("`{key}` is missing"))])
        };
        let recipe = Recipe::parse(&text(&value["recipe"]["toml"], "recipe.toml")?)?;
        let mut asked = Asked { layout: layout_args(&value["layout"])?, ..Asked::default() };
        asked.recipe.recipe = text(&value["recipe"]["typed"], "recipe.typed")?;
        let cluster = match &value["cluster"] {
            Value::Null => None,
            cluster => {
                let on = text(&cluster["typed"], "cluster.typed")?;
                let typed = ClusterText::parse(&on).map_err(|finding| vec![finding])?;
                let device = match &cluster["device"] {
                    Value::Null => Device::find(typed.device).map_err(|finding| vec![finding])?,
                    given => serde_json::from_value(given.clone())
                        .map_err(|error| vec![wrong("cluster.device", format!("no device: {error}"))])?,
                };
                let found: Cluster = typed.on(device).map_err(|finding| vec![finding])?;
                asked.on = Some(on.clone());
                Some(found)
            }
        };
        asked.state = state_args(value, asked.layout.engine.and_then(EngineChoice::engine), &recipe)?;
        // Features and optimizers are switched in the recipe's text already; they are kept as typed.
        let mut switches = vec!["recipe".to_string()];
        for key in ["with", "without"] {
            for name in value["recipe"][key].as_array().into_iter().flatten().filter_map(Value::as_str) {
                switches.extend([format!("--{key}"), name.to_string()]);
            }
        }
        if let Some(name) = value["recipe"]["optimizer"].as_str() {
            switches.extend(["--optimizer".to_string(), name.to_string()]);
        }
        let typed = Asked::parse(&switches).map_err(|why| vec![wrong("recipe", why)])?;
        (asked.recipe.with, asked.recipe.without) = (typed.recipe.with, typed.recipe.without);
        asked.state.optimizer = typed.state.optimizer;
        Case::build(asked, recipe, cluster, terms)
    }
}

impl Asked {
    /// As typed: the recipe, the cluster, then the flags.
    pub fn words(&self) -> Vec<String> {
        let mut out = vec![self.recipe.recipe.clone()];
        out.extend(self.on.iter().flat_map(|on| ["--on".to_string(), on.clone()]));
        for (flag, features) in [("--with", &self.recipe.with), ("--without", &self.recipe.without)] {
            if !features.is_empty() {
                out.extend([flag.to_string(), names(features).join(",")]);
            }
        }
        out.extend(self.layout.words());
        out.extend(self.state.words());
        out
    }
}

impl LayoutArgs {
    /// As typed.
    pub fn words(&self) -> Vec<String> {
        let mut out = Vec::new();
        let mut say = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                out.extend([format!("--{flag}"), value]);
            }
        };
        let engine = |choice: EngineChoice| choice.engine().map_or("any".to_string(), |engine| engine.to_string());
        say("engine", self.engine.map(engine));
        say("mode", self.mode.map(|mode| mode.to_string()));
        for (flag, value) in [
            ("world", self.world),
            ("tp", self.tp),
            ("cp", self.cp),
            ("pp", self.pp),
            ("vpp", self.vpp),
            ("ep", self.ep),
            ("etp", self.etp),
            ("dp", self.dp),
            ("mbs", self.mbs),
            ("gbs", self.gbs),
            ("microbatches", self.microbatches),
            ("seq", self.seq),
            ("vocab-multiple", self.vocab_multiple),
        ] {
            say(flag, value.map(|value| value.to_string()));
        }
        say("zero", self.zero.map(|zero| zero.name().to_string()));
        say("schedule", self.schedule.map(|schedule| schedule.to_string()));
        say("recompute", self.recompute.as_ref().map(|policy| policy.to_string()));
        say("balance", self.balance.map(|balance| balance.name().to_string()));
        let cuts = |cuts: &Vec<u64>| cuts.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        say("boundaries", self.boundaries.as_ref().map(cuts));
        out.extend(self.sp.then(|| "--sp".to_string()));
        out.extend(self.no_sp.then(|| "--no-sp".to_string()));
        out
    }
}

impl StateArgs {
    /// As typed.
    pub fn words(&self) -> Vec<String> {
        let mut out = Vec::new();
        let mut say = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                out.extend([format!("--{flag}"), value]);
            }
        };
        say("precision", self.precision.map(|choice| choice.name().to_string()));
        say("optimizer", self.optimizer.map(|choice| choice.name().to_string()));
        say("gradients", self.gradients.map(|dtype| dtype.to_string()));
        say("offload-optimizer", self.offload_optimizer.filter(|share| *share > 0.0).map(|share| share.to_string()));
        say("offload-activations", Some(self.offload_activations).filter(|s| *s > 0.0).map(|share| share.to_string()));
        say("offload-nvme", self.offload_nvme.clone());
        say("documents", self.documents.map(|documents| documents.to_string()));
        for words in &self.engine_args {
            say("engine-args", Some(words.clone()));
        }
        for (flag, is_on) in [
            ("--ce-fusion", self.ce_fusion),
            ("--fp8-param-gather", self.fp8_param_gather),
            ("--offload-params", self.offload_params),
        ] {
            if is_on {
                out.push(flag.to_string());
            }
        }
        out
    }
}

/// Every settled value of a layout, those that only a case needs to be read back included.
pub(crate) fn whole_layout_json(layout: &Layout) -> Value {
    let mut value = layout_json(layout);
    value["balance"] = json!(layout.balance.name());
    value["vocab_multiple"] = json!(layout.vocab_multiple);
    value
}

/// The degrees and policies of a layout, as every answer gives them.
pub fn layout_json(layout: &Layout) -> Value {
    json!({
        "world": layout.world, "tp": layout.tp.get(), "sp": layout.sp, "cp": layout.cp.get(), "pp": layout.pp.get(),
        "vpp": layout.vpp.get(), "ep": layout.ep.get(), "etp": layout.etp.get(), "dp": layout.dp.get(),
        "edp": layout.edp.get(), "zero": layout.zero.name(), "mbs": layout.micro_batch,
        "microbatches": layout.microbatches, "gbs": layout.global_batch, "seq": layout.sequence,
        "schedule": layout.schedule.name(), "recompute": layout.recompute.to_string(),
        "mode": layout.mode.map(|mode| mode.name()), "engine": layout.engine.map(|engine| engine.name()),
        "boundaries": layout.boundaries,
    })
}

fn wrong(key: &str, message: String) -> Finding {
    Finding::error("case/json", Blame::Usage, key, message)
}

/// Flags of a layout's JSON. Degrees of data parallelism beside dp, and the global batch, follow.
fn layout_args(value: &Value) -> Result<LayoutArgs, Vec<Finding>> {
    let mut words = Vec::new();
    for key in ["world", "tp", "cp", "pp", "vpp", "ep", "etp", "dp", "mbs", "microbatches", "seq"] {
        if let Some(number) = value[key].as_u64() {
            words.extend([format!("--{key}"), number.to_string()]);
        }
    }
    for key in ["zero", "schedule", "recompute", "mode"] {
        if let Some(word) = value[key].as_str() {
            words.extend([format!("--{key}"), word.to_string()]);
        }
    }
    let cuts = value["boundaries"].as_array();
    match (cuts, value["balance"].as_str()) {
        (Some(cuts), _) => {
            let cuts: Vec<String> = cuts.iter().map(Value::to_string).collect();
            words.extend(["--boundaries".to_string(), cuts.join(",")]);
        }
        (None, Some(balance)) => words.extend(["--balance".to_string(), balance.to_string()]),
        (None, None) => {}
    }
    words.extend(["--engine".to_string(), value["engine"].as_str().unwrap_or("any").to_string()]);
    if let Some(multiple) = value["vocab_multiple"].as_u64() {
        words.extend(["--vocab-multiple".to_string(), multiple.to_string()]);
    }
    words.push(if value["sp"].as_bool() == Some(true) { "--sp" } else { "--no-sp" }.to_string());
    words.insert(0, "recipe".to_string());
    Asked::parse(&words).map(|asked| asked.layout).map_err(|why| vec![wrong("layout", why)])
}

/// Flags of what an engine is told besides: what its defaults would not give again.
fn state_args(value: &Value, engine: Option<Engine>, recipe: &Recipe) -> Result<StateArgs, Vec<Finding>> {
    let state = &value["state"];
    let mut typed = vec!["recipe".to_string()];
    if let Some(precision) = state["precision"].as_str() {
        typed.extend(["--precision".to_string(), precision.to_string()]);
    }
    let precision = Asked::parse(&typed).map_err(|why| vec![wrong("state", why)])?.state.precision;
    let base = Options::of(engine, recipe);
    let base = precision.map_or(base, |precision| base.in_precision(precision));
    let vocabulary = words::of(engine).words;
    let mut engine_args = Vec::new();
    for (name, said) in value["options"].as_object().into_iter().flatten() {
        let said = said.as_str().ok_or_else(|| vec![wrong("options", format!("`{name}` is no text"))])?;
        match vocabulary.iter().find(|word| word.name == name) {
            Some(word) if (word.get)(&base) == said => {}
            _ => engine_args.push(quoted(&format!("{name}={said}"))),
        }
    }
    for one in value["passed"].as_array().into_iter().flatten().filter_map(Value::as_array) {
        let words: Vec<String> = one.iter().filter_map(Value::as_str).map(str::to_string).collect();
        engine_args.extend(passed(&words));
    }
    let dtype = state["gradients"].as_str().map(asked::dtype).transpose();
    let gradients = dtype.map_err(|why| vec![wrong("state.gradients", why)])?;
    let documents = state["documents"].as_str().map(Documents::parse).transpose();
    Ok(StateArgs {
        precision,
        optimizer: None,
        gradients: gradients.filter(|dtype| *dtype != recipe.precision.gradients),
        ce_fusion: false,
        fp8_param_gather: state["fp8_param_gather"].as_bool().unwrap_or(false),
        offload_optimizer: state["offload_optimizer"].as_f64().filter(|share| *share > 0.0),
        offload_params: state["offload_params"].as_bool().unwrap_or(false),
        offload_nvme: state["offload_nvme"].as_str().map(str::to_string),
        offload_activations: state["offload_activations"].as_f64().unwrap_or(0.0),
        documents: documents.map_err(|why| vec![wrong("state.documents", why)])?,
        engine_args,
    })
}

fn names(features: &[Feature]) -> Vec<&'static str> {
    features.iter().map(|feature| feature.name()).collect()
}

/// A word passed on, as it is typed: a value that looks like a word is attached.
fn passed(words: &[String]) -> Vec<String> {
    match words {
        [name, value] if value.starts_with("--") => vec![quoted(&format!("{name}={value}"))],
        words => words.iter().map(|word| quoted(word)).collect(),
    }
}

/// A word among `--engine-args`, which are split as a shell would split them.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-+=./:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
