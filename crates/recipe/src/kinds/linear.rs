//! `L`: a mixer that hands a state along time and is none of the others: which, and what they have in common.
//! Channels and heads go to tensor ranks whole (`layout`, `linear/heads-over-tp`); none of them is cut in time, and
//! lightning attention not at all (`linear/whole`).

use super::Emitter;
use super::kda::Kda;
use super::lightning::Lightning;
use super::mlstm::Mlstm;
use super::rg_lru::RgLru;
use super::rwkv7::Rwkv7;
use super::short_conv::ShortConv;
use crate::write::Toml;
use reading::Section;
use units::named;

named! {
    /// The kinds there are.
    pub enum LinearKind {
        /// A gated convolution over a few tokens.
        ShortConv = "short_conv",
        /// Linear attention with a fixed decay a head.
        Lightning = "lightning",
        /// A gated linear recurrence over channels.
        RgLru = "rg_lru",
        /// The matrix memory of xLSTM.
        Mlstm = "mlstm",
        /// A delta rule whose decay is a channel's own.
        Kda = "kda",
        /// A delta rule with learned rates, over inputs mixed with the token before.
        Rwkv7 = "rwkv7",
    }
}

/// The linear mixer of a model.
#[derive(Clone, Debug, PartialEq)]
pub enum Linear {
    /// LFM2's.
    ShortConv(ShortConv),
    /// MiniMax's.
    Lightning(Lightning),
    /// RecurrentGemma's.
    RgLru(RgLru),
    /// xLSTM's.
    Mlstm(Mlstm),
    /// Kimi Linear's.
    Kda(Kda),
    /// RWKV-7's.
    Rwkv7(Rwkv7),
}

impl Linear {
    /// Reads `[linear]`.
    pub(crate) fn read(mut section: Section) -> Option<Linear> {
        match section.required_text("kind") {
            Some(_) => match section.choice("kind", LinearKind::ALL, LinearKind::ShortConv) {
                LinearKind::ShortConv => ShortConv::read(section).map(Linear::ShortConv),
                LinearKind::Lightning => Lightning::read(section).map(Linear::Lightning),
                LinearKind::RgLru => RgLru::read(section).map(Linear::RgLru),
                LinearKind::Mlstm => Mlstm::read(section).map(Linear::Mlstm),
                LinearKind::Kda => Kda::read(section).map(Linear::Kda),
                LinearKind::Rwkv7 => Rwkv7::read(section).map(Linear::Rwkv7),
            },
            None => {
                section.finish();
                None
            }
        }
    }

    /// Writes `[linear]`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.table("linear");
        toml.text("kind", self.kind().name());
        match self {
            Linear::ShortConv(mixer) => mixer.write(toml),
            Linear::Lightning(mixer) => mixer.write(toml),
            Linear::RgLru(mixer) => mixer.write(toml),
            Linear::Mlstm(mixer) => mixer.write(toml),
            Linear::Kda(mixer) => mixer.write(toml),
            Linear::Rwkv7(mixer) => mixer.write(toml),
        }
    }

    /// Which one it is.
    pub fn kind(&self) -> LinearKind {
        match self {
            Linear::ShortConv(_) => LinearKind::ShortConv,
            Linear::Lightning(_) => LinearKind::Lightning,
            Linear::RgLru(_) => LinearKind::RgLru,
            Linear::Mlstm(_) => LinearKind::Mlstm,
            Linear::Kda(_) => LinearKind::Kda,
            Linear::Rwkv7(_) => LinearKind::Rwkv7,
        }
    }

    /// What goes to tensor ranks whole, and how many there are.
    pub fn units(&self, hidden: u64) -> (&'static str, u64) {
        match self {
            Linear::ShortConv(_) => ("channels", hidden),
            Linear::Lightning(m) => ("heads", m.heads),
            Linear::RgLru(m) => ("heads", m.heads),
            Linear::Mlstm(m) => ("heads", m.heads),
            Linear::Kda(m) => ("heads", m.heads),
            Linear::Rwkv7(m) => ("heads", m.heads),
        }
    }

    /// Its tensors, behind the block's norm.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        match self {
            Linear::ShortConv(mixer) => mixer.tensors(hidden, out),
            Linear::Lightning(mixer) => mixer.tensors(hidden, out),
            Linear::RgLru(mixer) => mixer.tensors(hidden, out),
            Linear::Mlstm(mixer) => mixer.tensors(hidden, out),
            Linear::Kda(mixer) => mixer.tensors(hidden, out),
            Linear::Rwkv7(mixer) => mixer.tensors(hidden, out),
        }
    }

    /// State elements one sequence carries through one block, and the convolution's tail.
    pub fn state_elements(&self, hidden: u64) -> (u64, u64) {
        match self {
            Linear::ShortConv(m) => (0, hidden * (m.conv - 1)),
            Linear::Lightning(m) => ((m.heads * m.head_dim).saturating_mul(m.head_dim), 0),
            Linear::RgLru(m) => (m.width, m.width * (m.conv - 1)),
            Linear::Kda(m) => (m.inner().saturating_mul(m.head_dim), 3 * m.inner() * (m.conv - 1)),
            // The last token's input is what the next is mixed with.
            Linear::Rwkv7(m) => (m.values().saturating_mul(m.head_dim), hidden),
            Linear::Mlstm(m) => ((m.qk_dim / m.heads).saturating_mul(m.v_dim) + m.qk_dim + m.heads, 0),
        }
    }
}
