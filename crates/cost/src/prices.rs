//! Prices: everything about a step that depends only on degrees inside a layer, batch, sequence,
//! recompute, kernels and machine. Pipelines, partitions and replicas are then sums over counts.

use crate::Unpriced;
use crate::comm::{Carrier, Groups};
use crate::held::Held;
use crate::layer::{LayerPrice, price};
use crate::ops::{self, Shape};
use crate::part::Times;
use crate::roofline::Meter;
use crate::simulate::ChunkTimes;
use crate::traffic::Fabric;
use case::options::Options;
use hardware::{Cluster, Way};
use layout::ownership::Row;
use layout::{Layout, OwnershipTable, Recompute};
use recipe::{Layer, Place, Recipe};
use units::Degree;

/// What a chunk or a stage holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts<'a> {
    /// Layers of each kind, in the order of [`Prices::kinds`].
    pub layers: &'a [u64],
    /// Whether tokens enter here.
    pub is_first: bool,
    /// Whether the loss is taken here.
    pub is_last: bool,
}

/// Prices of a recipe under the degrees, batch, sequence and recompute of a layout.
#[derive(Clone, Debug)]
pub struct Prices {
    pub(crate) recipe: Recipe,
    pub(crate) options: Options,
    pub(crate) cluster: Cluster,
    /// Bytes a second to the host's memory, where somebody states it.
    pub(crate) host_link: Option<f64>,
    pub(crate) meter: Meter,
    pub(crate) fabric: Fabric,
    pub(crate) groups: Groups,
    pub(crate) kinds: Vec<Layer>,
    pub(crate) kind_of_layer: Vec<usize>,
    pub(crate) layers: Vec<LayerPrice>,
    /// Passes of each kind and of the edges, ready to be summed.
    passes: Vec<[f64; 3]>,
    front_passes: [f64; 3],
    back_passes: [f64; 3],
    pub(crate) front: LayerPrice,
    /// Head, loss and prediction suffix.
    pub(crate) back: LayerPrice,
    pub(crate) held: Vec<Held>,
    pub(crate) front_held: Held,
    pub(crate) back_held: Held,
    /// The copy of the token table that a tied head needs away from the first stage.
    pub(crate) tied_held: Held,
}

impl Prices {
    /// Prices a recipe. `layout` gives the degrees inside a layer, microbatch, sequence and
    /// recompute; its stages and replicas are not looked at.
    pub fn new(recipe: &Recipe, layout: &Layout, cluster: &Cluster, options: &Options) -> Result<Prices, Unpriced> {
        let meter = Meter::new(&cluster.device, options)?;
        let fabric = Fabric::new(cluster, &meter.profile().collectives)?;
        // Only what goes to the host needs a way there.
        let host_link = match cluster.device.link(Way::Host) {
            Ok(link) => Some(link.bytes_per_second),
            Err(finding) if options.offload > 0.0 => return Err(finding.into()),
            Err(_) => None,
        };
        let (kinds, kind_of_layer) = kinds_of(recipe);
        let (short, flat) = one_of_each(recipe, layout, &kinds);
        let table = OwnershipTable::new(&short, &flat).map_err(|findings| {
            findings.into_iter().next().map_or_else(|| Unpriced::new("this layout", "no table"), Unpriced::from)
        })?;
        let shape = Shape::new(recipe, layout, options);
        let groups = Groups::of(layout, &fabric);
        let carrier = Carrier { fabric: &fabric, groups, shape };
        let rows_at = |place: Place| table.rows.iter().filter(|row| row.tensor.place == place).collect::<Vec<&Row>>();
        let layer_price = |layer: &Layer, place: Place| {
            let ops = ops::layer(shape, layer, &rows_at(place));
            price(&meter, shape, &ops, carrier.layer(layer), &layout.recompute)
        };
        let layers: Vec<LayerPrice> =
            kinds.iter().enumerate().map(|(i, kind)| layer_price(kind, Place::Layer(i))).collect();
        let (front_waits, back_waits) = carrier.edges();
        let front = price(&meter, shape, &ops::embedding(shape), front_waits, &Recompute::None);
        let mut back = price(&meter, shape, &ops::head(shape), back_waits, &Recompute::None);
        if let Some(mtp) = recipe.features.mtp() {
            back.add(layer_price(&mtp.layer, Place::Mtp(0)).times(mtp.depth as f64));
            let head = price(&meter, shape, &ops::head(shape), back_waits, &Recompute::None);
            back.add(head.times(mtp.depth as f64));
        }
        let held = kinds.iter().enumerate().map(|(i, _)| sum(&table, layout, |p| p == Place::Layer(i))).collect();
        let tied = if recipe.tied { sum(&table, layout, |p| p == Place::Embedding) } else { Held::default() };
        Ok(Prices {
            passes: layers.iter().map(LayerPrice::passes).collect(),
            front_passes: front.passes(),
            back_passes: back.passes(),
            held,
            front_held: sum(&table, layout, |p| matches!(p, Place::Embedding | Place::Side(_))),
            back_held: sum(&table, layout, |p| matches!(p, Place::FinalNorm | Place::Head | Place::Mtp(_))),
            tied_held: tied,
            recipe: recipe.clone(),
            options: *options,
            cluster: cluster.clone(),
            host_link,
            meter,
            groups,
            fabric,
            kinds,
            kind_of_layer,
            layers,
            front,
            back,
        })
    }

    /// Moves another share of optimizer state to the host, to which there must be a link; nothing
    /// else depends on it.
    pub fn set_offload(&mut self, share: f64) {
        debug_assert!(share == 0.0 || self.host_link.is_some());
        self.options.offload = share;
    }

    /// Kinds of layers, in the order stages count them: distinct layers of the recipe.
    pub fn kinds(&self) -> &[Layer] {
        &self.kinds
    }

    /// Seconds by part of one layer of each kind, all passes of one microbatch together.
    pub fn of_layers(&self) -> Vec<Times> {
        self.layers.iter().map(LayerPrice::all).collect()
    }

    /// Seconds of a chunk or stage for one microbatch.
    pub fn stage(&self, counts: Counts) -> ChunkTimes {
        let mut sum = [0.0; 3];
        let mut add = |passes: &[f64; 3], count: f64| {
            for (total, seconds) in sum.iter_mut().zip(passes) {
                *total += seconds * count;
            }
        };
        for (passes, &count) in self.passes.iter().zip(counts.layers) {
            add(passes, count as f64);
        }
        if counts.is_first {
            add(&self.front_passes, 1.0);
        }
        if counts.is_last {
            add(&self.back_passes, 1.0);
        }
        ChunkTimes { forward: sum[0], backward_input: sum[1], backward_weight: sum[2] }
    }

    /// What a stage holds.
    pub(crate) fn held(&self, counts: Counts) -> Held {
        let mut held = Held::default();
        for (kind, &count) in self.held.iter().zip(counts.layers) {
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

/// Distinct layers in the order they first stand, and the kind of every layer.
fn kinds_of(recipe: &Recipe) -> (Vec<Layer>, Vec<usize>) {
    let mut kinds: Vec<Layer> = Vec::new();
    let kind_of_layer = recipe.layers.iter().map(|layer| {
        kinds.iter().position(|kind| kind == layer).unwrap_or_else(|| {
            kinds.push(layer.clone());
            kinds.len() - 1
        })
    });
    let kind_of_layer = kind_of_layer.collect();
    (kinds, kind_of_layer)
}

/// The recipe with one layer of each kind, on one stage: its table has every shape there is.
fn one_of_each(recipe: &Recipe, layout: &Layout, kinds: &[Layer]) -> (Recipe, Layout) {
    let mut short = recipe.clone();
    short.layers = kinds.to_vec();
    let flat = Layout { pp: Degree::ONE, vpp: Degree::ONE, boundaries: None, ..layout.clone() };
    (short, flat)
}

fn sum(table: &OwnershipTable, layout: &Layout, is_there: impl Fn(Place) -> bool) -> Held {
    let mut held = Held { units: 1.0, ..Held::default() };
    for row in table.rows.iter().filter(|row| is_there(row.tensor.place)) {
        held += Held::of(row, layout);
    }
    held
}
