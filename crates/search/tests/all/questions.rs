//! Random questions over the built-in recipes, each asked twice: the second time with more to choose from. What is
//! fastest among more is never slower.

use case::{Asked, Options};
use hardware::{Cluster, Device};
use layout::{Engine, LayoutRequest, Recompute, Schedule, ZeroStage};
use recipe::Recipe;
use search::{
    Answer, Choice, Effort, Left, Offered, Offload, OffloadChoice, Question, Reach, Replays, Scope, answer, lay_out,
    pricers, search,
};
use units::Bytes;
use work::Limit;

const DEVICES: &[&str] = &["H100", "H200", "B200", "A100", "GB200", "H20", "RTX-4090"];
const COUNTS: &[u64] = &[2, 4, 8, 16, 24, 32, 64];
const ENGINES: &[Option<Engine>] = &[
    Some(Engine::Megatron),
    Some(Engine::Megatron),
    Some(Engine::Megatron),
    None,
    Some(Engine::Fsdp2),
    Some(Engine::Torchtitan),
    Some(Engine::Deepspeed),
];

/// Numbers that follow from a seed (splitmix64: Steele, Lea and Flood, OOPSLA 2014).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

/// What is asked, as far as it varies.
#[derive(Clone)]
pub struct Terms {
    recipe: Recipe,
    cluster: Cluster,
    pinned: LayoutRequest,
    headroom: u64,
    overload: f64,
    offload: OffloadChoice,
    offered: Offered,
}

/// Two questions, of which the second has all that the first may choose from, and more.
pub struct Pair {
    /// The second question as it would be typed, and what the first lacks of it.
    pub what: String,
    less: Terms,
    more: Terms,
}

/// What came of both.
pub enum Outcome {
    /// No layout of the first fits, or none is searched.
    NoAnswer,
    /// The fastest of the first and of the second, in seconds a sequence, with what is not proved of the second.
    Compared { less: f64, more: f64, unproved: f64 },
}

impl Outcome {
    /// Whether the second is at least as fast, as far as its answer says that it is proved.
    pub fn holds(&self) -> bool {
        match *self {
            Outcome::NoAnswer => true,
            Outcome::Compared { less, more, unproved } => more <= less * (1.0 + unproved) * (1.0 + 1e-9),
        }
    }
}

/// A question with one thing freed, at random.
pub fn pair(random: &mut Random, recipes: &[&str]) -> Pair {
    let name = random.of(recipes);
    let (device, count, engine) = (random.of(DEVICES), random.of(COUNTS), random.of(ENGINES));
    let gbs = count * random.of(&[1, 2, 4, 8, 16, 6]);
    let sequence = random.of(&[1024u64, 2048, 4096, 8192]);
    let on = format!("{count}x{device}");
    let pinned =
        LayoutRequest { engine, global_batch: Some(gbs), sequence: Some(sequence), ..LayoutRequest::default() };
    let more = Terms {
        recipe: recipe::builtin::find(name).unwrap_or_else(|e| panic!("{name}: {e:?}")),
        cluster: Cluster::parse(&on).unwrap_or_else(|e| panic!("{on}: {e:?}")),
        pinned,
        headroom: random.of(&[0u64, 1, 2, 4, 6, 8, 12]),
        overload: 1.0,
        offload: OffloadChoice::Free,
        offered: Offered::Searched,
    };
    let mut less = more.clone();
    let freed = narrow(random, &mut less, count);
    let engine = engine.map_or("any", Engine::name);
    let what = format!("{name} --on {on} --engine {engine} --gbs {gbs} --seq {sequence} --headroom {}", more.headroom);
    Pair { what: format!("{what}, against {freed}"), less, more }
}

/// Takes something away; in words.
fn narrow(random: &mut Random, less: &mut Terms, count: u64) -> String {
    let pinned = &mut less.pinned;
    match random.below(14) {
        0 | 1 => {
            let added = random.of(&[1u64, 2, 3, 5, 9]);
            less.headroom += added;
            format!("{added} GiB more of headroom")
        }
        2 => {
            let part = random.of(&[2u64, 5, 10]);
            shrink(&mut less.cluster.device, part);
            format!("a device of {part}% less memory")
        }
        axis @ 3..=7 => {
            let flag = ["tp", "pp", "ep", "cp", "mbs"][axis - 3];
            let value = match flag {
                "mbs" => random.of(&[1, 2, 4]),
                // What a script of one's own splits is searched where it is typed alone.
                _ if pinned.engine == Some(Engine::Deepspeed) => 1,
                _ => random.of(&[1, 2, 4, 8].map(|degree: u64| degree.min(count))),
            };
            // A tensor degree that is no mode's is another run of the model.
            let modes = less.recipe.modes.iter().map(|mode| mode.tensor_parallel());
            let of_mode = modes.filter(|_| flag == "tp").min_by_key(|degree| degree.abs_diff(value));
            let value = of_mode.unwrap_or(value);
            *pinned = pinned.with_size(flag, value).unwrap_or_else(|| panic!("{flag} is no size"));
            format!("--{flag} {value}")
        }
        8 => {
            let stages: &[ZeroStage] = match pinned.engine {
                // Beyond the optimizer's state it is another wrapper, which is searched where it is typed alone.
                None | Some(Engine::Megatron) => &[ZeroStage::Zero, ZeroStage::One],
                _ => &[ZeroStage::Two, ZeroStage::Three],
            };
            pinned.zero = Some(random.of(stages));
            format!("--zero {:?}", pinned.zero)
        }
        9 => {
            pinned.recompute = Some(random.of(&[Recompute::None, Recompute::Full]));
            format!("--recompute {:?}", pinned.recompute)
        }
        10 => {
            pinned.schedule = Some(random.of(&[Schedule::OneF1b, Schedule::Interleaved]));
            format!("--schedule {:?}", pinned.schedule)
        }
        11 => {
            less.overload = random.of(&[1.25, 1.5, 2.0]);
            format!("an overload of {}", less.overload)
        }
        12 => {
            less.offload = OffloadChoice::Pinned(random.of(&[0.0, 1.0]));
            format!("--offload-optimizer {:?}", less.offload)
        }
        _ => {
            less.offered = Offered::Off;
            "options of the engine left off".to_string()
        }
    }
}

fn shrink(device: &mut Device, part: u64) {
    device.memory_bytes -= device.memory_bytes * part / 100;
    if let Some(reserve) = &mut device.reserve {
        reserve.visible_bytes -= reserve.visible_bytes * part / 100;
    }
}

/// Asks both questions, each within the limit.
pub fn ask(pair: &Pair, limit: &Limit) -> Outcome {
    let Ok((less, _)) = fastest(&pair.less, limit) else { return Outcome::NoAnswer };
    let (more, unproved) = fastest(&pair.more, limit).unwrap_or_else(|unproved| (f64::INFINITY, unproved));
    Outcome::Compared { less, more, unproved }
}

/// Seconds a sequence of the fastest layout over all modes, with how much faster something can be that was not looked at;
/// where none fits, whether everything was looked at (0) or not.
fn fastest(terms: &Terms, limit: &Limit) -> Result<(f64, f64), f64> {
    let asked = Asked::default();
    // What is pinned to the host is an option of the job, as where it is typed.
    let share = terms.offload.share(Offload::Device);
    let options = Options { offload: share, ..Options::of(terms.pinned.engine, &terms.recipe) };
    let question = Question {
        asked: &asked,
        recipe: &terms.recipe,
        cluster: &terms.cluster,
        pinned: &terms.pinned,
        options,
        offered: terms.offered,
        headroom: Bytes(terms.headroom << 30),
        overload: terms.overload,
        offload: terms.offload,
        reach: Reach::Anywhere,
        limit,
    };
    let space = lay_out(question, Effort::Bounded).map_err(|_| 0.0)?;
    let pricers = pricers(&space);
    let mut left = Left::of(&space);
    let scope = Scope::all(1);
    let mut found = search(&space, &pricers, (scope, Effort::Bounded), &mut left, &|_, _| true);
    let Answer { modes, .. } = answer(&space, &pricers, &mut found, &mut left, Replays::Best);
    let each = modes.iter().filter_map(|mode| {
        let seconds = mode.fastest.as_deref().map(Choice::per_sequence)?;
        Some((seconds, mode.unproved))
    });
    // A mode that was cut short may hold what is faster than another's proved best.
    let (seconds, least) = each.fold((f64::INFINITY, f64::INFINITY), |(seconds, least), (one, unproved)| {
        (seconds.min(one), least.min(one / (1.0 + unproved)))
    });
    // What was left out of a space, or not looked at, is not proved.
    let open = if space.trimmed.is_empty() { seconds / least - 1.0 } else { f64::INFINITY };
    let unseen = if found.tally.unseen == 0 && space.trimmed.is_empty() { 0.0 } else { f64::INFINITY };
    seconds.is_finite().then_some((seconds, open)).ok_or(unseen)
}
