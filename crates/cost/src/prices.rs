//! Prices: everything about a step that depends only on degrees inside a layer, batch, sequence,
//! recompute, kernels and machine. Pipelines, partitions and replicas are then sums over counts.
//!
//! They are made in three steps, each shared by all that follow from it: a [`Setting`] (a recipe on a
//! cluster), a [`Split`] of it (degrees, batch and sequence), and [`Prices`] under a recompute policy.

use crate::Unpriced;
use crate::comm::{Carrier, Groups, LayerWaits};
use crate::data::Placed;
use crate::drives::DriveRates;
use crate::held::Held;
use crate::layer::{LayerPrice, Once};
use crate::ops::{self, Op, Shape};
use crate::part::Times;
use crate::roofline::{Meter, Numbers};
use crate::simulate::ChunkTimes;
use crate::slowest::slowest_of;
use crate::traffic::Fabric;
use case::options::Options;
use case::{Case, KindId, LayerKinds, PerKind, Ways};
use hardware::{Cluster, Way};
use layout::ownership::Row;
use layout::{Engine, Layout, OwnershipTable, Recompute, activations};
use recipe::{Layer, Mixer, Place, Recipe};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use units::Degree;

/// What a chunk or a stage holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts<'a> {
    /// Layers of each kind.
    pub layers: &'a PerKind<u64>,
    /// Whether tokens enter here.
    pub is_first: bool,
    /// Whether the loss is taken here.
    pub is_last: bool,
}

/// What a table of parts depends on: tp, cp, ep, etp, the multiple a vocabulary is padded to, engine.
type TableKey = ([u64; 5], Option<Engine>);

/// A recipe on a cluster, under an engine's options: what the prices of all its layouts share.
#[derive(Debug)]
pub struct Setting {
    pub(crate) recipe: Recipe,
    pub(crate) kinds: LayerKinds,
    pub(crate) options: Options,
    pub(crate) cluster: Cluster,
    /// Bytes a second to the host's memory, where somebody states it.
    pub(crate) host_link: Option<f64>,
    /// What of a node's drives a rank has, where state lies there.
    pub(crate) drives: Option<DriveRates>,
    pub(crate) meter: Meter,
    pub(crate) fabric: Fabric,
    /// Time of kernels on the slowest of all devices, against that on one.
    pub(crate) slowest: f64,
    /// Whether every other rank is stood in for.
    alone: bool,
    /// A frozen model beside this one.
    teacher: Option<Arc<Setting>>,
    /// The recipe with one layer of each kind, in their order: its table has every shape there is.
    short: Recipe,
    /// One block of every mixer there is.
    blocks: Vec<(Mixer, Recipe)>,
    tables: Mutex<HashMap<TableKey, Arc<OwnershipTable>>>,
}

impl Setting {
    /// Reads the device's curves and the cluster's links. `kinds` are those of the recipe's layers.
    pub fn new(
        recipe: &Recipe,
        kinds: &LayerKinds,
        cluster: &Cluster,
        options: &Options,
    ) -> Result<Arc<Setting>, Unpriced> {
        let meter = Meter::new(&cluster.device, options)?;
        Setting::with(recipe, kinds, cluster, options, meter, false)
    }

    /// One rank by itself: every other one is stood in for, collectives return at once with copies of its own
    /// data or nothing, and the numbers are what that leaves.
    pub(crate) fn alone(case: &Case, numbers: Numbers) -> Result<Arc<Setting>, Unpriced> {
        let meter = Meter::new(&case.on().device, &case.options)?.beside_its_host(&case.options, numbers);
        Setting::with(&case.recipe, &case.kinds, case.on(), &case.options, meter, true)
    }

    fn with(
        recipe: &Recipe,
        kinds: &LayerKinds,
        cluster: &Cluster,
        options: &Options,
        meter: Meter,
        alone: bool,
    ) -> Result<Arc<Setting>, Unpriced> {
        let fabric = Fabric::new(cluster, &meter.profile().collectives)?;
        if options.offload_activations > 0.0 {
            return Err(Unpriced::new(
                "activations on the host",
                "how much of their way compute hides is not measured",
            ));
        }
        let drives = match options.on_nvme {
            true => Some(DriveRates::of(cluster)?),
            false => None,
        };
        // Only what goes to the host needs a way there.
        let host_link = match cluster.device.link(Way::Host) {
            Ok(link) => Some(link.bytes_per_second),
            Err(finding) if goes_there(options) => return Err(finding.into()),
            Err(_) => None,
        };
        let teacher = match options.ways.teacher() {
            Some(teacher) => {
                let options = Options { ways: Ways::PLAIN, ..*options };
                Some(Setting::with(&teacher, &LayerKinds::of(&teacher), cluster, &options, meter.clone(), alone)?)
            }
            None => None,
        };
        let mut short = recipe.clone();
        short.layers = kinds.one_of_each(recipe);
        let mut blocks: Vec<(Mixer, Recipe)> = Vec::new();
        let suffix = recipe.features.mtp().map(|mtp| &mtp.layer);
        for mixer in short.layers.iter().chain(suffix).flat_map(Layer::mixers) {
            if blocks.iter().all(|(known, _)| *known != mixer) {
                blocks.push((mixer, activations::block(recipe, mixer)));
            }
        }
        Ok(Arc::new(Setting {
            recipe: recipe.clone(),
            kinds: kinds.clone(),
            options: *options,
            cluster: cluster.clone(),
            host_link,
            drives,
            meter,
            fabric,
            slowest: if alone { 1.0 } else { slowest_of(cluster.devices()) },
            alone,
            teacher,
            short,
            blocks,
            tables: Mutex::default(),
        }))
    }

    /// Operations and collectives of every kind of layer. `layout` gives the degrees inside a layer,
    /// microbatch and sequence; its stages, replicas and recompute are not looked at.
    pub fn split(self: &Arc<Setting>, layout: &Layout) -> Result<Split, Unpriced> {
        let table = self.table(layout)?;
        let shape = Shape::new(&self.recipe, layout, &self.options);
        let groups = Groups::of(layout, &self.fabric);
        let carrier = Carrier { fabric: &self.fabric, groups, shape, blocks: &self.blocks };
        carrier.reaches(&self.short.layers)?;
        let rows_at = |place: Place| table.rows.iter().filter(|row| row.tensor.place == place).collect::<Vec<&Row>>();
        let priced = |mut ops: Vec<Op>, mut waits: LayerWaits| {
            if self.alone {
                ops.push(ops::stood_in(waits.gathered));
                waits = waits.stood_in();
            }
            Once::new(&self.meter, shape, &ops, waits)
        };
        let once =
            |layer: &Layer, place: Place| priced(ops::layer(shape, layer, &rows_at(place)), carrier.layer(layer));
        let place = |kind: KindId| Place::Layer(kind.index());
        let (front_waits, back_waits) = carrier.edges();
        let tied = if self.recipe.tied {
            sum(&table, layout, &self.meter, |p| p == Place::Embedding)
        } else {
            Held::default()
        };
        let taught = self.teacher.as_ref().map(|teacher| teacher.answered(layout)).transpose()?;
        let mut front = priced(ops::embedding(shape), front_waits).under(&Recompute::None);
        if let Some((price, _)) = &taught {
            front.add(*price);
        }
        let front_held = sum(&table, layout, &self.meter, |p| matches!(p, Place::Embedding | Place::Side(_)));
        let blocks = self.recipe.shared.as_ref().map_or(0.0, |shared| shared.blocks as f64);
        let of_blocks = table.rows.iter().filter(|row| row.tensor.path.starts_with("shared."));
        let shared = of_blocks.map(|row| row.tensor.elements() as f64).sum::<f64>() / blocks.max(1.0);
        Ok(Split {
            setting: self.clone(),
            groups,
            taught: taught.map(|(_, held)| held),
            front,
            head: priced(ops::head(shape), back_waits).under(&Recompute::None),
            suffix: self.recipe.features.mtp().map(|mtp| (once(&mtp.layer, Place::Mtp(0)), mtp.depth as f64)),
            layers: PerKind::by_kind(&self.kinds, |kind| once(&self.short.layers[kind.index()], place(kind))),
            held: PerKind::by_kind(&self.kinds, |kind| {
                let uses = self.short.layers[kind.index()].mixers().filter(|m| *m == Mixer::Shared).count();
                let mut held = sum(&table, layout, &self.meter, |p| p == place(kind));
                held.again = shared * uses as f64;
                held
            }),
            front_held: Held { again: -shared * blocks, ..front_held },
            back_held: sum(&table, layout, &self.meter, |p| {
                matches!(p, Place::FinalNorm | Place::Head | Place::Mtp(_))
            }),
            tied_held: tied,
        })
    }

    /// One microbatch through all layers in forward, logits at the end, and what is held for it.
    fn answered(self: &Arc<Setting>, layout: &Layout) -> Result<(LayerPrice, Held), Unpriced> {
        let split = self.split(layout)?;
        let shape = Shape::new(&self.recipe, layout, &self.options);
        let logits = Once::new(&self.meter, shape, &ops::logits(shape), LayerWaits::default());
        let counts = self.kinds.count(0..self.kinds.depth());
        let mut price = split.front.forward_alone();
        price.add(logits.under(&Recompute::None).forward_alone());
        let mut held = split.front_held;
        held += split.back_held;
        for ((once, of_kind), &count) in split.layers.iter().zip(split.held.iter()).zip(counts.iter()) {
            price.add(once.under(&Recompute::None).forward_alone().times(count as f64));
            held += of_kind.times(count as f64);
        }
        Ok((price, held))
    }

    /// Parts of one layer of each kind, on one stage.
    fn table(&self, layout: &Layout) -> Result<Arc<OwnershipTable>, Unpriced> {
        let [tp, cp, ep, etp] = [layout.tp, layout.cp, layout.ep, layout.etp].map(|degree| degree.get());
        let key = ([tp, cp, ep, etp, layout.vocab_multiple], layout.engine);
        if let Some(known) = self.tables.lock().unwrap_or_else(|e| e.into_inner()).get(&key) {
            return Ok(known.clone());
        }
        let flat = Layout { pp: Degree::ONE, vpp: Degree::ONE, boundaries: None, ..layout.clone() };
        let table = OwnershipTable::new(&self.short, &flat).map_err(|findings| {
            findings.into_iter().next().map_or_else(|| Unpriced::new("this layout", "no table"), Unpriced::from)
        })?;
        let table = Arc::new(table);
        self.tables.lock().unwrap_or_else(|e| e.into_inner()).insert(key, table.clone());
        Ok(table)
    }
}

/// A setting under the degrees inside a layer, microbatch and sequence of a layout, whatever is
/// computed again.
#[derive(Clone, Debug)]
pub struct Split {
    setting: Arc<Setting>,
    groups: Groups,
    layers: PerKind<Once>,
    /// What a teacher holds.
    taught: Option<Held>,
    front: LayerPrice,
    head: LayerPrice,
    /// A layer of the prediction suffix, and how many there are.
    suffix: Option<(Once, f64)>,
    held: PerKind<Held>,
    front_held: Held,
    back_held: Held,
    tied_held: Held,
}

impl Split {
    /// Prices under a recompute policy, with a share of optimizer state on the host.
    pub fn prices(&self, recompute: &Recompute, offload: f64) -> Prices {
        let layers = self.layers.map(|once| once.under(recompute));
        let mut back = self.head;
        if let Some((once, depth)) = &self.suffix {
            back.add(once.under(recompute).times(*depth));
            back.add(self.head.times(*depth));
        }
        let uses_port = layers.iter().chain([&self.front, &back]).any(|price| price.port != [0.0; 2]);
        Prices {
            setting: self.setting.clone(),
            uses_port,
            offload,
            groups: self.groups,
            passes: layers.map(|layer| layer.passes(self.setting.slowest)),
            front_passes: self.front.passes(self.setting.slowest),
            back_passes: back.passes(self.setting.slowest),
            layers,
            taught: self.taught,
            front: self.front,
            back,
            held: self.held.clone(),
            front_held: self.front_held,
            back_held: self.back_held,
            tied_held: self.tied_held,
        }
    }
}

/// Prices of a recipe under the degrees, batch, sequence and recompute of a layout.
#[derive(Clone, Debug)]
pub struct Prices {
    pub(crate) setting: Arc<Setting>,
    /// Whether anything inside a layer goes over the network.
    uses_port: bool,
    /// Share of AdamW's state on the host.
    pub(crate) offload: f64,
    pub(crate) groups: Groups,
    pub(crate) layers: PerKind<LayerPrice>,
    /// Passes of each kind and of the edges, ready to be summed.
    passes: PerKind<[f64; 5]>,
    front_passes: [f64; 5],
    back_passes: [f64; 5],
    /// What a teacher holds.
    pub(crate) taught: Option<Held>,
    pub(crate) front: LayerPrice,
    /// Head, loss and prediction suffix.
    pub(crate) back: LayerPrice,
    held: PerKind<Held>,
    front_held: Held,
    back_held: Held,
    /// The copy of the token table that a tied head needs away from the first stage.
    pub(crate) tied_held: Held,
}

/// What a chunk or stage takes for one microbatch, and what it holds.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Seconds, with the gathers of ZeRO-3 that show.
    pub times: ChunkTimes,
    pub(crate) held: Held,
    /// Seconds in which its port is busy without what moves over replicas, in forward and in backward.
    pub(crate) port: [f64; 2],
}

impl Prices {
    /// Prices one layout of a recipe; for many of them make a [`Setting`] once.
    pub fn new(recipe: &Recipe, layout: &Layout, cluster: &Cluster, options: &Options) -> Result<Prices, Unpriced> {
        let setting = Setting::new(recipe, &LayerKinds::of(recipe), cluster, options)?;
        Ok(setting.split(layout)?.prices(&layout.recompute, options.offload))
    }

    /// Moves another share of optimizer state to the host, to which there must be a link; nothing
    /// else depends on it.
    pub fn set_offload(&mut self, share: f64) {
        debug_assert!(share == 0.0 || self.setting.host_link.is_some());
        self.offload = share;
    }

    /// Kinds of layers, by which stages are counted.
    pub fn kinds(&self) -> &LayerKinds {
        &self.setting.kinds
    }

    /// Seconds by part of one layer of each kind, all passes of one microbatch together.
    pub fn of_layers(&self) -> PerKind<Times> {
        self.layers.map(LayerPrice::all)
    }

    /// Seconds of a chunk or stage for one microbatch.
    pub fn stage(&self, counts: Counts) -> ChunkTimes {
        let [forward, input, weight, late_forward, late_backward] = self.passes_of(counts);
        ChunkTimes { forward: forward + late_forward, backward_input: input + late_backward, backward_weight: weight }
    }

    /// What of a chunk's times the device waits for the host, which runs ahead from layer to layer.
    pub(crate) fn late(&self, counts: Counts) -> f64 {
        let [.., forward, backward] = self.passes_of(counts);
        forward + backward
    }

    /// What the host takes to start both passes of a chunk.
    pub(crate) fn host(&self, counts: Counts) -> f64 {
        let [.., forward, backward] = self.summed(counts);
        forward + backward
    }

    /// Passes of a chunk or stage, then what the device waits for the host in forward and in backward.
    fn passes_of(&self, counts: Counts) -> [f64; 5] {
        let [forward, input, weight, host_forward, host_backward] = self.summed(counts);
        let late = [host_forward - forward, host_backward - input - weight].map(|late: f64| late.max(0.0));
        [forward, input, weight, late[0], late[1]]
    }

    /// Passes of a chunk or stage, then the host's seconds in forward and in backward.
    fn summed(&self, counts: Counts) -> [f64; 5] {
        let mut sum = [0.0; 5];
        let mut add = |passes: &[f64; 5], count: f64| {
            for (total, seconds) in sum.iter_mut().zip(passes) {
                *total += seconds * count;
            }
        };
        for (passes, &count) in self.passes.iter().zip(counts.layers.iter()) {
            add(passes, count as f64);
        }
        if counts.is_first {
            add(&self.front_passes, 1.0);
        }
        if counts.is_last {
            add(&self.back_passes, 1.0);
        }
        sum
    }

    /// Seconds in which a rank's port of the network is busy inside the layers of a chunk or stage, in forward and in backward.
    pub(crate) fn port(&self, counts: Counts) -> [f64; 2] {
        let mut busy = [0.0; 2];
        if !self.uses_port {
            return busy;
        }
        let mut add = |price: &LayerPrice, count: f64| (0..2).for_each(|pass| busy[pass] += count * price.port[pass]);
        for (price, &count) in self.layers.iter().zip(counts.layers.iter()) {
            add(price, count as f64);
        }
        add(&self.front, f64::from(u8::from(counts.is_first)));
        add(&self.back, f64::from(u8::from(counts.is_last)));
        busy
    }

    /// What of a layout decides how state moves.
    pub fn placed(&self, layout: &Layout) -> Placed {
        Placed::new(self, layout)
    }

    /// What a stage holds.
    pub(crate) fn held(&self, counts: Counts) -> Held {
        let mut held = Held::default();
        for (kind, &count) in self.held.iter().zip(counts.layers.iter()) {
            held += kind.times(count as f64);
        }
        if counts.is_first {
            held += self.front_held;
        }
        if counts.is_last {
            held += self.back_held;
            if !counts.is_first {
                held += self.tied_held;
            }
        }
        held
    }
}

/// Whether any of the state needs a way to the host.
fn goes_there(options: &Options) -> bool {
    options.offload > 0.0 || options.offload_params || options.ways.elements.paged_bytes() > 0
}

fn sum(table: &OwnershipTable, layout: &Layout, meter: &Meter, is_there: impl Fn(Place) -> bool) -> Held {
    let mut held = Held { units: 1.0, ..Held::default() };
    for row in table.rows.iter().filter(|row| is_there(row.tensor.place)) {
        held += Held::of(row, layout, meter);
    }
    held
}
