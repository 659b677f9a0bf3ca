//! Small models of every kind of block, drawn with sizes anywhere up to their limits, and layouts for them.

use case::{Case, Terms};
use hardware::Cluster;
use layout::{Engine, LayoutRequest, Recompute, Schedule, ZeroStage};
use recipe::{Recipe, limits};

/// A model: its pattern, and its tables with their keys in order.
struct Model {
    pattern: &'static str,
    tables: &'static [(&'static str, &'static [(&'static str, &'static str)])],
}

const ROOT: &[(&str, &str)] = &[("depth", "4"), ("hidden", "1024"), ("vocab", "32000"), ("sequence", "512")];
const ATTENTION: &[(&str, &str)] = &[("heads", "16"), ("kv_heads", "4"), ("head_dim", "64")];
const MLP: &[(&str, &str)] = &[("ffn", "4096")];
const EXPERTS: &[(&str, &str)] = &[("experts", "16"), ("top_k", "2"), ("ffn", "512")];

const MODELS: &[Model] = &[
    Model { pattern: "AF", tables: &[("", ROOT), ("attention", ATTENTION), ("mlp", MLP)] },
    Model {
        pattern: "AE",
        tables: &[
            ("", ROOT),
            ("attention", ATTENTION),
            ("moe", &[("experts", "16"), ("top_k", "2"), ("ffn", "512"), ("capacity_factor", "1.5")]),
            ("moe.shared", &[("ffn", "512")]),
        ],
    },
    Model {
        pattern: "AE",
        tables: &[
            ("", ROOT),
            ("attention", ATTENTION),
            ("moe", &[("experts", "16"), ("top_k", "2"), ("ffn", "512"), ("latent", "256")]),
        ],
    },
    Model {
        pattern: "AE",
        tables: &[("", ROOT), ("attention", ATTENTION), ("moe", EXPERTS), ("moe.shared", &[("ffn", "512")])],
    },
    Model {
        pattern: "AF",
        tables: &[("", ROOT), ("attention", &[("heads", "16"), ("kv_heads", "16"), ("head_dim", "64")]), ("mlp", MLP)],
    },
    Model {
        pattern: "AE",
        tables: &[
            ("", ROOT),
            ("attention", ATTENTION),
            ("moe", EXPERTS),
            (
                "features.mla",
                &[("enabled", "true"), ("kv_rank", "128"), ("qk_dim", "64"), ("rope_dim", "64"), ("v_dim", "64")],
            ),
        ],
    },
    Model {
        pattern: "M",
        tables: &[
            ("", ROOT),
            ("mamba", &[("kind", "\"mamba1\""), ("inner", "2048"), ("state", "16"), ("dt_rank", "64")]),
        ],
    },
    Model {
        pattern: "MF",
        tables: &[
            ("", ROOT),
            (
                "mamba",
                &[
                    ("kind", "\"mamba2\""),
                    ("heads", "32"),
                    ("head_dim", "64"),
                    ("state", "128"),
                    ("groups", "8"),
                    ("chunk", "128"),
                ],
            ),
            ("mlp", MLP),
        ],
    },
    Model {
        pattern: "ME",
        tables: &[
            ("", ROOT),
            (
                "mamba",
                &[
                    ("kind", "\"mamba3\""),
                    ("heads", "32"),
                    ("head_dim", "64"),
                    ("state", "64"),
                    ("groups", "8"),
                    ("angles", "16"),
                    ("chunk", "64"),
                ],
            ),
            ("moe", EXPERTS),
        ],
    },
    Model {
        pattern: "ARF",
        tables: &[
            ("", ROOT),
            ("attention", ATTENTION),
            (
                "recurrent",
                &[
                    ("kind", "\"m2rnn\""),
                    ("heads", "16"),
                    ("key_dim", "64"),
                    ("value_dim", "16"),
                    ("depth_carry", "256"),
                ],
            ),
            ("mlp", MLP),
        ],
    },
    Model {
        pattern: "GF",
        tables: &[
            ("", ROOT),
            ("gated_delta", &[("key_heads", "16"), ("value_heads", "32"), ("key_dim", "64"), ("value_dim", "64")]),
            ("mlp", MLP),
        ],
    },
    Model {
        pattern: "AE",
        tables: &[
            ("", ROOT),
            ("attention", ATTENTION),
            ("moe", EXPERTS),
            (
                "features.mla",
                &[
                    ("enabled", "true"),
                    ("q_rank", "256"),
                    ("kv_rank", "128"),
                    ("qk_dim", "64"),
                    ("rope_dim", "64"),
                    ("v_dim", "64"),
                ],
            ),
            ("features.dsa", &[("enabled", "true"), ("heads", "8"), ("head_dim", "64"), ("top_k", "256")]),
            ("features.mtp", &[("enabled", "true"), ("depth", "1"), ("pattern", "\"(AE)\"")]),
        ],
    },
    Model {
        pattern: "AF",
        tables: &[
            ("", ROOT),
            ("attention", ATTENTION),
            ("mlp", MLP),
            ("features.ngram_hash", &[("enabled", "true"), ("rows", "800000"), ("dim", "16"), ("tables", "16")]),
        ],
    },
    Model {
        pattern: "AF",
        tables: &[
            ("", ROOT),
            ("attention", ATTENTION),
            ("mlp", MLP),
            ("adapters", &[("enabled", "true"), ("rank", "16"), ("targets", "[\"attention.qkv\", \"mlp.fc1\"]")]),
        ],
    },
];

/// The largest value of a key; depth is left to what bounds the length of a walk.
fn limit(table: &str, key: &str) -> Option<u64> {
    Some(match (table, key) {
        ("", "depth") => 12,
        ("features.mtp", "depth") => 4,
        ("features.dsa", "top_k") | (_, "sequence" | "depth_carry") => limits::SEQUENCE,
        (_, "vocab" | "rows") => limits::VOCAB,
        (_, "heads" | "kv_heads" | "groups" | "key_heads" | "value_heads" | "tables") => limits::HEADS,
        (_, "experts" | "top_k") => limits::EXPERTS,
        (_, "chunk") => 1 << 16,
        (_, "angles") => 32,
        (_, "kind" | "enabled" | "pattern" | "targets" | "capacity_factor") => return None,
        _ => limits::WIDTH,
    })
}

/// SplitMix64.
pub struct Draws(u64);

impl Draws {
    pub fn new(seed: u64) -> Draws {
        Draws(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    pub fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % count
    }

    pub fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// One of these every `often` times, else what there was.
    fn seldom<T: Copy>(&mut self, often: u64, list: &[T]) -> Option<T> {
        (self.below(often) == 0).then(|| self.of(list))
    }

    /// A size: the limit, half of it, or any power of two below.
    fn size(&mut self, most: u64) -> u64 {
        match self.below(4) {
            0 => most,
            1 => (most / 2).max(1),
            _ => 1 << self.below(u64::from(most.ilog2()) + 1),
        }
    }
}

/// A recipe's text with `changes` of its sizes anywhere up to their limits.
pub fn text(draws: &mut Draws, changes: u64) -> String {
    let model = &MODELS[draws.below(MODELS.len() as u64) as usize];
    let keys = || model.tables.iter().flat_map(|(table, keys)| keys.iter().map(move |(key, _)| (*table, *key)));
    let sized: Vec<_> = keys().filter(|(table, key)| limit(table, key).is_some()).collect();
    let mut changed = Vec::new();
    for _ in 0..changes {
        let (table, key) = draws.of(&sized);
        let value = draws.size(limit(table, key).unwrap_or(1));
        changed.push((table, key, value));
        // What must divide or stay below another goes along with it.
        let along = match (table, key) {
            ("attention", "heads") => Some("kv_heads"),
            ("attention", "kv_heads") | ("mamba", "groups") => Some("heads"),
            ("gated_delta", "key_heads") => Some("value_heads"),
            ("gated_delta", "value_heads") => Some("key_heads"),
            ("moe", "top_k") => Some("experts"),
            _ => None,
        };
        changed.extend(along.map(|key| (table, key, value)));
    }
    let factor = draws.of(&["1.5", "8", "0.001", "1"]);
    // A layer of one block, or of all of them.
    let (open, close) = draws.of(&[("", ""), ("(", ")")]);
    let mut out = format!("name = \"sized\"\npattern = \"{open}{}{close}\"\n", model.pattern);
    if model.pattern.contains(['M', 'R']) {
        out += "modes = [\"author_dp\"]\n";
    }
    for (table, keys) in model.tables {
        if !table.is_empty() {
            out += &format!("[{table}]\n");
        }
        for (key, usual) in *keys {
            let value = changed.iter().rev().find(|(t, k, _)| t == table && k == key);
            let usual = if *key == "capacity_factor" { factor } else { usual };
            out += &format!("{key} = {}\n", value.map_or(usual.to_string(), |(_, _, value)| value.to_string()));
        }
    }
    if draws.below(3) == 0 {
        out += "[optimizer]\nmatrix = \"muon\"\nexpert = \"muon\"\n";
    }
    out
}

pub const ENGINES: [Engine; 6] =
    [Engine::Megatron, Engine::Fsdp2, Engine::Torchtitan, Engine::Deepspeed, Engine::Nanotron, Engine::Shardwright];

/// A layout of eight ranks, with a batch and a sequence anywhere up to their limits every so many times.
pub fn request(draws: &mut Draws, recipe: &Recipe, engine: Engine, extremes: u64) -> LayoutRequest {
    let has_experts = recipe.moe.is_some();
    let pp = draws.seldom(3, &[2, 4]);
    LayoutRequest {
        world: Some(8),
        tp: draws.seldom(3, &[2]),
        cp: draws.seldom(6, &[2]),
        pp,
        ep: draws.seldom(2, &[2]).filter(|_| has_experts),
        etp: draws.seldom(2, &[1]).filter(|_| has_experts),
        zero: draws.seldom(4, &[ZeroStage::Zero, ZeroStage::One, ZeroStage::Two, ZeroStage::Three]),
        micro_batch: draws.seldom(extremes, &[2, 16, 1 << 20, 1 << 24]),
        microbatches: draws.seldom(3, &[4, 8, 12]).filter(|_| pp.is_some()),
        sequence: draws.seldom(extremes, &[1 << 13, 1 << 17, 1 << 20, 1 << 32]),
        schedule: draws.seldom(4, &[Schedule::GPipe, Schedule::ZbH1]).filter(|_| pp.is_some()),
        recompute: draws.seldom(4, &[()]).map(|()| Recompute::Full),
        vocab_multiple: draws.seldom(3 * extremes, &[1 << 10, 1 << 20]),
        engine: Some(engine),
        ..LayoutRequest::default()
    }
}

/// The job, where it is legal.
pub fn case(recipe: &Recipe, request: &LayoutRequest) -> Option<Case> {
    let cluster = Cluster::parse("8xH200").expect("a cluster");
    Case::laid_out(recipe.clone(), request, Some(cluster), Terms::RUN).ok()
}
