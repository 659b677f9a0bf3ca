//! What ran, as its launch directory says. Nothing in it is believed that its `SHA256SUMS` does not hold.

use crate::canonical::sha256;
use crate::probe;
use crate::record::{Argument, Identity, Prediction};
use case::Case;
use diag::{Blame, Finding, quote};
use launch::header::Header;
use launch::lanes;
use launch::probe::Planned;
use launch::record::{MemoryVerdict, overlay, version};
use recipe::Recipe;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

/// The most bytes of one file of a launch directory.
const MOST: u64 = 64 << 20;

/// What is said of a run before it runs: a receipt without its evidence.
#[derive(Clone, Debug)]
pub struct About {
    /// Who it is.
    pub identity: Identity,
    /// The job, to be read back.
    pub case: Option<Value>,
    /// Arguments in order.
    pub arguments: Vec<Argument>,
    /// What was asked of the runtime besides.
    pub overlay: Value,
    /// Versions it was written for.
    pub versions: BTreeMap<String, String>,
    /// What was promised.
    pub prediction: Option<Prediction>,
}

/// A launch directory, verified.
#[derive(Clone, Debug)]
pub struct Launched {
    /// What it says.
    pub about: About,
    /// Where its nodes write their logs.
    pub logs: PathBuf,
    /// Where its checkpoints are.
    pub checkpoints: PathBuf,
    /// Who is to be probed; none of a launch that is no probe.
    pub probe: Option<Planned>,
}

impl About {
    /// A job that was not launched from a directory of ours; `prediction` is what it is priced at now.
    pub fn of_case(case: &Case, by: &str, prediction: Option<Prediction>) -> About {
        let policy = launch::Policy::default();
        let version = case.cluster.is_some().then(|| {
            let job = launch::Job::new(case, &policy, launch::Frontend::MegatronLm);
            version(&job).map(str::to_string)
        });
        let mut versions = BTreeMap::from([("shardwright".to_string(), by.to_string())]);
        versions.extend(version.flatten().map(|engine| ("engine".to_string(), engine)));
        About {
            identity: Identity {
                mode: case.layout.mode.map(|mode| mode.name().to_string()),
                lane: Some(Header::of(case).lane.to_string()),
                engine: Some(case.engine().name().to_string()),
                seams: case.seams.iter().map(|seam| seam.name.to_string()).collect(),
                topology: case.cluster.as_ref().map(|cluster| lanes::topology(cluster, &case.layout)),
                ..Identity::of_recipe(&case.source)
            },
            case: Some(case.to_json()),
            arguments: Vec::new(),
            overlay: overlay(case, &[]),
            versions,
            prediction,
        }
    }
}

impl Launched {
    /// Reads a launch directory; every file that is not as it was written is refused by name.
    pub fn read(folder: &Path) -> Result<Launched, Vec<Finding>> {
        let files = verified(folder)?;
        let text = |name: &str| {
            files
                .get(name)
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
                .ok_or_else(|| vec![no_launch(folder, &format!("`{name}` is not among the files of its SHA256SUMS"))])
        };
        let json = |name: &str| {
            serde_json::from_str::<Value>(text(name)?)
                .map_err(|error| vec![no_launch(folder, &format!("`{name}` is no JSON: {error}"))])
        };
        let (record, plan, arguments) = (json("launch.json")?, json("plan.json")?, json("arguments.json")?);
        if record["schema"] != "shardwright/launch/1" {
            return Err(vec![no_launch(folder, "its launch.json is not `shardwright/launch/1`")]);
        }
        let recipe = Recipe::parse(text("recipe.toml")?)?;
        let folder_of = |key: &str| {
            record["identity"]["folders"][key]
                .as_str()
                .map(PathBuf::from)
                .ok_or_else(|| vec![no_launch(folder, &format!("its launch.json names no folder for {key}"))])
        };
        let probe = files.contains_key("probe.json").then(|| text("probe.json")).transpose()?;
        let probe = probe.map(|text| probe::read(text, "probe.json")).transpose().map_err(|finding| vec![finding])?;
        Ok(Launched {
            probe,
            logs: folder_of("logs")?,
            checkpoints: folder_of("checkpoints")?,
            about: about(&record, &plan, &arguments, &recipe)
                .map_err(|error| vec![no_launch(folder, &format!("its launch.json does not read: {error}"))])?,
        })
    }
}

fn about(record: &Value, plan: &Value, arguments: &Value, recipe: &Recipe) -> Result<About, serde_json::Error> {
    let word = |value: &Value| value.as_str().map(str::to_string);
    let names = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().filter_map(|seam| word(&seam["name"])).collect()
    };
    let argument = |argument: &Value| {
        let values: Vec<String> = argument["values"].as_array().into_iter().flatten().filter_map(&word).collect();
        Some(Argument { flag: word(&argument["flag"])?, values })
    };
    let versions = record["versions"].as_object().into_iter().flatten();
    let versions: BTreeMap<String, String> =
        versions.filter_map(|(name, version)| Some((name.clone(), word(version)?))).collect();
    let memory: MemoryVerdict = serde_json::from_value(record["memory"].clone())?;
    let devices = plan["layout"]["world"].as_u64().unwrap_or(0);
    let by = versions.get("shardwright").cloned().unwrap_or_default();
    Ok(About {
        identity: Identity {
            mode: word(&record["mode"]),
            lane: word(&record["lane"]),
            engine: word(&record["engine"]),
            seams: names(&record["seams"]),
            topology: word(&record["topology"]),
            launch_id: word(&record["identity"]["launch_id"]),
            ..Identity::of_recipe(recipe)
        },
        case: Some(record["case"].clone()),
        arguments: arguments.as_array().into_iter().flatten().filter_map(argument).collect(),
        overlay: match (&record["overlay"], &record["pins"]) {
            (overlay, Value::Null) => overlay.clone(),
            (overlay, pins) => {
                let mut overlay = overlay.clone();
                overlay["pins"] = json!(pins);
                overlay
            }
        },
        prediction: Some(Prediction::of_record(&by, &memory, &record["step"], devices)),
        versions,
    })
}

fn no_launch(folder: &Path, why: &str) -> Finding {
    let message = format!("`{}` is no launch directory: {why}", quote::shown(folder));
    Finding::error("receipt/launch", Blame::Usage, folder.display().to_string(), message).hint(
        "give the directory that `shardwright launch --out DIR` wrote, or --log FILE with --recipe R and its layout",
    )
}

/// Every file that `SHA256SUMS` lists, by name, each as it was written.
fn verified(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>, Vec<Finding>> {
    let sums = read(&folder.join("SHA256SUMS"))
        .map_err(|error| vec![no_launch(folder, &format!("its SHA256SUMS cannot be read: {error}"))])?;
    let sums = String::from_utf8_lossy(&sums).into_owned();
    let (mut files, mut findings) = (BTreeMap::new(), Vec::new());
    for line in sums.lines() {
        let named = line.split_once("  ").filter(|(_, name)| is_inside(name));
        let Some((hash, name)) = named else {
            findings
                .push(no_launch(folder, &format!("`{}` in its SHA256SUMS names no file of it", quote::terminal(line))));
            continue;
        };
        let refuse = |what: &str| {
            let message = format!("`{}` of `{}` {what}", quote::terminal(name), quote::shown(folder));
            let hint =
                "what ran is no longer known: launch again from the plan, or put back the file as it was written";
            Finding::error("receipt/changed", Blame::Environment, name, message).hint(hint)
        };
        match read(&folder.join(name)) {
            Err(error) => findings.push(refuse(&format!("cannot be read: {error}"))),
            Ok(bytes) if sha256(&bytes) != hash => findings.push(refuse("was changed after it was written")),
            Ok(bytes) => drop(files.insert(name.to_string(), bytes)),
        }
    }
    if findings.is_empty() { Ok(files) } else { Err(findings) }
}

/// Whether a name leads to a file below the folder it is of.
fn is_inside(name: &str) -> bool {
    !name.is_empty() && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        return Err(std::io::Error::other(format!("more than {} MiB", MOST >> 20)));
    }
    Ok(bytes)
}
