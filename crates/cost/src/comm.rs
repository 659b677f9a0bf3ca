//! Collectives inside a layer: volumes from the layout, times from the fabric.

use crate::Unpriced;
use crate::ops::Shape;
use crate::traffic::{Collective, Fabric, Moved, Spread, Tokens};
use case::options::Dispatch;
use layout::Layout;
use layout::activations::{Collective as Named, Exchange, Over, of_block, of_edges};
use recipe::{Layer, Mixer, Recipe};

/// Bytes of an element that travels: activations and their gradients go in bf16.
const WIDTH: f64 = 2.0;

/// Seconds of collectives by the axis they lie on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Waits {
    pub tp: f64,
    pub cp: f64,
    /// Of `cp`, what travels around the ring under attention.
    pub ring: f64,
    pub ep: f64,
}

impl Waits {
    /// The same, scaled.
    pub fn times(self, by: f64) -> Waits {
        Waits { tp: self.tp * by, cp: self.cp * by, ring: self.ring * by, ep: self.ep * by }
    }
}

/// Collectives of one layer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerWaits {
    pub forward: Waits,
    pub backward: Waits,
    /// Gathers repeated in backward, because sharded inputs were saved.
    pub again: f64,
    /// Collectives started in forward and in backward.
    pub calls: (f64, f64),
    /// Bytes a rank sends over tp, cp and ep, in forward and in backward.
    pub moved: [[f64; 3]; 2],
    /// Seconds in which this rank's port of the network is busy with them, in forward and in backward.
    pub port: [f64; 2],
    /// Bytes of tensors that come out of gathers, in forward and in backward, and the parts they are made of.
    pub gathered: [(f64, f64); 2],
}

impl LayerWaits {
    /// The same where nobody else is there and every collective returns at once.
    pub fn stood_in(self) -> LayerWaits {
        LayerWaits { forward: Waits::default(), backward: Waits::default(), again: 0.0, port: [0.0; 2], ..self }
    }
}

/// The groups of a layout on a fabric.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Groups {
    pub tp: Spread,
    pub cp: Spread,
    pub ep: Spread,
    pub etp: Spread,
}

impl Groups {
    /// Strides of Megatron's order `tp-cp-ep-dp-pp` (`layout::mesh`): stages outermost.
    pub fn of(layout: &Layout, fabric: &Fabric) -> Groups {
        let (tp, etp) = (layout.tp.get(), layout.etp.get());
        Groups {
            tp: fabric.spread(tp, 1),
            cp: fabric.spread(layout.cp.get(), tp),
            ep: fabric.spread(layout.ep.get(), etp),
            etp: fabric.spread(etp, 1),
        }
    }

    /// The group of a collective inside a layer or at an edge, which no stage, replica or everybody is.
    fn on(&self, axis: Over) -> Spread {
        match axis {
            Over::Cp => self.cp,
            Over::Ep => self.ep,
            Over::Etp => self.etp,
            Over::Tp | Over::Sp => self.tp,
            Over::Pp | Over::Dp | Over::Edp | Over::World => unreachable!("`{axis}` moves nothing inside a layer"),
        }
    }
}

/// Prices exchanges.
pub(crate) struct Carrier<'a> {
    pub fabric: &'a Fabric,
    pub groups: Groups,
    pub shape: Shape<'a>,
    /// One block of every mixer there is.
    pub blocks: &'a [(Mixer, Recipe)],
}

impl Carrier<'_> {
    /// Collectives of a layer.
    pub fn layer(&self, layer: &Layer) -> LayerWaits {
        let mut waits = LayerWaits::default();
        for mixer in layer.mixers() {
            for exchange in self.of_mixer(mixer) {
                self.add(&exchange, Some(mixer), &mut waits);
            }
        }
        waits
    }

    fn of_mixer(&self, mixer: Mixer) -> Vec<Exchange> {
        let block = self.blocks.iter().find(|(of, _)| *of == mixer);
        block.map_or_else(Vec::new, |(_, block)| of_block(block, self.shape.layout))
    }

    /// Refuses layers whose exchanges have no way over the network.
    pub fn reaches(&self, layers: &[Layer]) -> Result<(), Unpriced> {
        if !self.fabric.has_gaps() {
            return Ok(());
        }
        let (recipe, layout) = (self.shape.recipe, self.shape.layout);
        let inside = layers.iter().flat_map(Layer::mixers).flat_map(|mixer| self.of_mixer(mixer));
        for exchange in inside.chain(of_edges(recipe, layout)) {
            for named in [exchange.forward, exchange.backward] {
                if let Some(collective) = self.collective(&exchange, named) {
                    self.fabric.reaches(exchange.axis.name(), collective, self.groups.on(exchange.axis))?;
                }
            }
        }
        Ok(())
    }

    /// The collective that a name stands for; none where nothing moves, or where kernels of tokens keep to their rail.
    fn collective(&self, exchange: &Exchange, named: Named) -> Option<Collective> {
        match named {
            Named::AllGather | Named::AllGatherCounts => Some(Collective::AllGather),
            Named::ReduceScatter => Some(Collective::ReduceScatter),
            Named::AllReduce => Some(Collective::AllReduce),
            Named::AllToAll if exchange.axis == Over::Ep => dispatched(self.shape.options.kernels.dispatch),
            Named::AllToAll => Some(Collective::AllToAll),
            Named::Ring => Some(Collective::Send),
            _ => None,
        }
    }

    /// Collectives of the edges: `(embedding, head)`.
    pub fn edges(&self) -> (LayerWaits, LayerWaits) {
        let (mut front, mut back) = (LayerWaits::default(), LayerWaits::default());
        for (index, exchange) in of_edges(self.shape.recipe, self.shape.layout).iter().enumerate() {
            self.add(exchange, None, if index == 0 { &mut front } else { &mut back });
        }
        (front, back)
    }

    fn add(&self, exchange: &Exchange, mixer: Option<Mixer>, waits: &mut LayerWaits) {
        let forward = self.moved(exchange, exchange.forward);
        let backward = self.moved(exchange, exchange.backward);
        let axis = match exchange.axis {
            Over::Cp => 1,
            Over::Ep => 2,
            // An expert's matrices wait with the other matrices.
            Over::Tp | Over::Sp | Over::Etp => 0,
            Over::Pp | Over::Dp | Over::Edp | Over::World => return,
        };
        let into = |waits: &mut Waits, seconds: f64| match axis {
            1 => {
                waits.cp += seconds;
                waits.ring += if mixer == Some(Mixer::Attention) { seconds } else { 0.0 };
            }
            2 => waits.ep += seconds,
            _ => waits.tp += seconds,
        };
        into(&mut waits.forward, forward.seconds);
        into(&mut waits.backward, backward.seconds);
        waits.moved[0][axis] += forward.bytes;
        waits.moved[1][axis] += backward.bytes;
        waits.port[0] += forward.port;
        waits.port[1] += backward.port;
        let members = self.groups.on(exchange.axis).members as f64;
        let gather = |named: Named, into: &mut (f64, f64)| {
            if members > 1.0 && named == Named::AllGather {
                *into = (into.0 + whole(exchange, members), into.1 + members);
            }
        };
        gather(exchange.forward, &mut waits.gathered[0]);
        gather(exchange.backward, &mut waits.gathered[1]);
        let call = |moved: Moved| f64::from(u8::from(moved.seconds > 0.0));
        waits.calls.0 += call(forward);
        waits.calls.1 += call(backward);
        // Megatron saves the sharded input and gathers it again for the gradient of the weight
        // (`megatron/core/tensor_parallel/layers.py`, LinearWithGradAccumulationAndAsyncCommunication).
        if exchange.axis == Over::Sp && exchange.forward == Named::AllGather {
            waits.again += forward.seconds;
            gather(Named::AllGather, &mut waits.gathered[1]);
            waits.port[1] += forward.port;
            waits.moved[1][axis] += forward.bytes;
        }
    }

    /// One direction of an exchange.
    fn moved(&self, exchange: &Exchange, named: Named) -> Moved {
        let spread = self.groups.on(exchange.axis);
        let members = spread.members as f64;
        let bytes = exchange.elements as f64 * WIDTH;
        let whole = whole(exchange, members);
        match named {
            Named::AllGather => self.fabric.time(Collective::AllGather, whole, spread),
            Named::ReduceScatter => self.fabric.time(Collective::ReduceScatter, whole, spread),
            Named::AllReduce => self.fabric.time(Collective::AllReduce, whole, spread),
            // Kernels made for tokens exchange counts themselves, which their base holds.
            Named::AllGatherCounts if self.has_own_dispatch() => Moved::NOTHING,
            Named::AllGatherCounts => {
                self.fabric.time(Collective::AllGather, exchange.elements as f64 * 4.0 * members, spread)
            }
            Named::AllToAll if exchange.axis == Over::Ep => self.dispatch(bytes, spread),
            Named::AllToAll => self.fabric.time(Collective::AllToAll, bytes, spread),
            Named::Ring => {
                let steps = (members - 1.0).max(1.0);
                let each = self.fabric.time(Collective::Send, bytes / steps, spread);
                Moved { seconds: steps * each.seconds, bytes, port: steps * each.port, algorithm: each.algorithm }
            }
            // What only this project's own engine moves has no price, and what is free has none either.
            Named::AllGatherPositions | Named::HandOn | Named::HandBack | Named::Send | Named::SendGradient => {
                Moved::NOTHING
            }
            Named::None | Named::Identity | Named::Slice => Moved::NOTHING,
        }
    }

    fn has_own_dispatch(&self) -> bool {
        matches!(self.shape.options.kernels.dispatch, Dispatch::DeepEp | Dispatch::HybridEp)
    }

    /// Routed tokens to the owners of their experts, or back.
    fn dispatch(&self, bytes: f64, spread: Spread) -> Moved {
        let Some(moe) = &self.shape.recipe.moe else { return Moved::NOTHING };
        let (chosen, bytes) = (moe.top_k as f64, bytes * self.shape.options.overload);
        match self.shape.options.kernels.dispatch {
            Dispatch::AllToAll => self.fabric.time(Collective::AllToAll, bytes, spread),
            Dispatch::AllGather => {
                self.fabric.time(Collective::AllGather, bytes / chosen * spread.members as f64, spread)
            }
            // Both ways in bf16: Megatron-Core hands neither of them 8-bit tokens (`moe/fused_a2a.py`).
            Dispatch::DeepEp | Dispatch::HybridEp if spread.members > 1 => {
                let width = moe.latent.unwrap_or(self.shape.recipe.hidden) as f64 * WIDTH;
                let count = bytes / chosen / width;
                let groups = (moe.router.groups.max(1) as f64, moe.router.group_top_k.max(1) as f64);
                let tokens = Tokens { count, bytes: width, experts: moe.experts as f64, chosen, groups };
                self.fabric.tokens(tokens, spread)
            }
            Dispatch::DeepEp | Dispatch::HybridEp => Moved::NOTHING,
        }
    }
}

/// Bytes of an exchange's whole tensor. Its elements are what enters in forward, so that a gather's are a part, and
/// its transpose reduces the whole.
fn whole(exchange: &Exchange, members: f64) -> f64 {
    let bytes = exchange.elements as f64 * WIDTH;
    if exchange.forward == Named::AllGather { bytes * members } else { bytes }
}

/// How tokens get to their experts; none by kernels that send to their own index of other nodes.
pub(crate) fn dispatched(dispatch: Dispatch) -> Option<Collective> {
    match dispatch {
        Dispatch::AllToAll => Some(Collective::AllToAll),
        Dispatch::AllGather => Some(Collective::AllGather),
        Dispatch::DeepEp | Dispatch::HybridEp => None,
    }
}
