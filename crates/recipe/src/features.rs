//! The feature bundle: what may be switched on without changing which model it is. Each feature
//! has a placement, and a recipe lists its values even while it is off.

use crate::adapters::Adapters;
use crate::kinds::depths::Depths;
use crate::kinds::dsa::Dsa;
use crate::kinds::engram::Engram;
use crate::kinds::mhc::Mhc;
use crate::kinds::mla::Mla;
use crate::kinds::mtp::Mtp;
use crate::kinds::side::SideEmbedding;
use crate::write::Toml;
use reading::Section;
use units::named;

named! {
    /// A feature by name.
    pub enum Feature {
        /// Latent attention instead of grouped-query, on every A block.
        Mla = "mla",
        /// Routed experts on E blocks; without it E blocks become others, and a note says which.
        Moe = "moe",
        /// The same, to be switched off in favour of MLPs.
        MoeAsMlp = "moe=mlp",
        /// The same, to be switched off in favour of attention.
        MoeAsAttention = "moe=attention",
        /// Sparse attention on selected A blocks.
        Dsa = "dsa",
        /// Prediction heads on the objective's suffix.
        Mtp = "mtp",
        /// Several residual streams, mixed around every block.
        Mhc = "mhc",
        /// Layers that take some tokens only: mixture of depths.
        Mod = "mod",
        /// Tables of n-grams before named layers.
        Engram = "engram",
        /// N-gram hash tables beside the token embedding.
        NgramHash = "ngram_hash",
        /// Structure tables beside the token embedding.
        Structure = "structure",
        /// Trained factors beside frozen weights.
        Adapters = "adapters",
    }
}

impl Feature {
    /// Where in the model it acts, in words.
    pub fn placement(self) -> &'static str {
        match self {
            Feature::Mla => "every attention (A) block",
            Feature::Moe | Feature::MoeAsMlp | Feature::MoeAsAttention => "every expert (E) block",
            Feature::Dsa => "the attention layers the recipe names",
            Feature::Mtp => "the objective's suffix, on the last stage",
            Feature::Engram => "before the layers the recipe names, with the tokens",
            Feature::Mod => "the layers the recipe names",
            Feature::Mhc => "around every block, from the embedding to the last layer's end",
            Feature::Adapters => "beside the weights `[adapters]` names; all others are frozen",
            Feature::NgramHash | Feature::Structure => "beside the token embedding, on its owner stage",
        }
    }
}

/// A feature's values, which a recipe keeps while the feature is off.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch<T> {
    /// What the recipe says, unless `--with` or `--without` says otherwise.
    pub on: bool,
    /// In force only while it is on.
    pub value: T,
}

impl<T> Switch<T> {
    /// The value, when it is on.
    pub fn active(&self) -> Option<&T> {
        self.on.then_some(&self.value)
    }
}

/// All features of a recipe.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Features {
    /// Latent attention as an alternative to the recipe's own kind.
    pub mla: Option<Switch<Mla>>,
    /// Sparse attention.
    pub dsa: Option<Switch<Dsa>>,
    /// Prediction heads.
    pub mtp: Option<Switch<Mtp>>,
    /// Hyper-connections.
    pub mhc: Option<Switch<Mhc>>,
    /// Mixture of depths. Its layers are marked in the recipe while it is on.
    pub depths: Option<Switch<Depths>>,
    /// Engram branches. Their layers are marked in the recipe while they are on.
    pub engram: Option<Switch<Engram>>,
    /// N-gram hash tables.
    pub ngram_hash: Option<Switch<SideEmbedding>>,
    /// Structure tables.
    pub structure: Option<Switch<SideEmbedding>>,
    /// Low-rank adapters; a table of their own in a recipe.
    pub adapters: Option<Switch<Adapters>>,
}

impl Features {
    /// Reads `[features]` and `[adapters]`.
    pub(crate) fn read(section: Option<Section>, adapters: Option<Section>) -> Features {
        let adapters = switch(adapters, Adapters::read);
        let Some(mut section) = section else { return Features { adapters, ..Features::default() } };
        let features = Features {
            mla: switch(section.section("mla"), |mut s| {
                let mla = Mla::read(&mut s);
                s.finish();
                mla
            }),
            dsa: switch(section.section("dsa"), Dsa::read),
            mtp: switch(section.section("mtp"), Mtp::read),
            mhc: switch(section.section("mhc"), Mhc::read),
            depths: switch(section.section("mod"), Depths::read),
            engram: switch(section.section("engram"), Engram::read),
            ngram_hash: switch(section.section("ngram_hash"), SideEmbedding::read),
            structure: switch(section.section("structure"), SideEmbedding::read),
            adapters,
        };
        section.finish();
        features
    }

    /// Writes `[features.*]` and `[adapters]`.
    pub(crate) fn write(&self, toml: &mut Toml) {
        write_switch(toml, "features.mla", &self.mla, Mla::write);
        write_switch(toml, "features.dsa", &self.dsa, Dsa::write);
        write_switch(toml, "features.mtp", &self.mtp, Mtp::write);
        write_switch(toml, "features.mhc", &self.mhc, Mhc::write);
        write_switch(toml, "features.mod", &self.depths, Depths::write);
        write_switch(toml, "features.engram", &self.engram, Engram::write);
        write_switch(toml, "features.ngram_hash", &self.ngram_hash, SideEmbedding::write);
        write_switch(toml, "features.structure", &self.structure, SideEmbedding::write);
        write_switch(toml, "adapters", &self.adapters, Adapters::write);
    }

    /// The prediction suffix, if it is on.
    pub fn mtp(&self) -> Option<&Mtp> {
        self.mtp.as_ref().and_then(Switch::active)
    }

    /// The sparse indexer, if it is on.
    pub fn dsa(&self) -> Option<&Dsa> {
        self.dsa.as_ref().and_then(Switch::active)
    }

    /// Hyper-connections, if they are on.
    pub fn mhc(&self) -> Option<&Mhc> {
        self.mhc.as_ref().and_then(Switch::active)
    }

    /// The mixture of depths, if it is on.
    pub fn depths(&self) -> Option<&Depths> {
        self.depths.as_ref().and_then(Switch::active)
    }

    /// Engram branches, if they are on.
    pub fn engram(&self) -> Option<&Engram> {
        self.engram.as_ref().and_then(Switch::active)
    }

    /// The side embeddings that are on, by name.
    pub fn sides(&self) -> impl Iterator<Item = (&'static str, &SideEmbedding)> {
        let named = [("ngram_hash", &self.ngram_hash), ("structure", &self.structure)];
        named.into_iter().filter_map(|(name, side)| Some((name, side.as_ref()?.active()?)))
    }

    /// Features the recipe has values for, and whether each is on.
    pub fn listed(&self) -> Vec<(Feature, bool)> {
        let state = [
            (Feature::Mla, self.mla.as_ref().map(|s| s.on)),
            (Feature::Dsa, self.dsa.as_ref().map(|s| s.on)),
            (Feature::Mtp, self.mtp.as_ref().map(|s| s.on)),
            (Feature::Mhc, self.mhc.as_ref().map(|s| s.on)),
            (Feature::Mod, self.depths.as_ref().map(|s| s.on)),
            (Feature::Engram, self.engram.as_ref().map(|s| s.on)),
            (Feature::NgramHash, self.ngram_hash.as_ref().map(|s| s.on)),
            (Feature::Structure, self.structure.as_ref().map(|s| s.on)),
            (Feature::Adapters, self.adapters.as_ref().map(|s| s.on)),
        ];
        state.into_iter().filter_map(|(feature, on)| Some((feature, on?))).collect()
    }

    /// Turns a feature on or off; false when the recipe has no values for it.
    pub fn set(&mut self, feature: Feature, on: bool) -> bool {
        fn flip<T>(switch: &mut Option<Switch<T>>, on: bool) -> bool {
            switch.as_mut().map(|s| s.on = on).is_some()
        }
        match feature {
            Feature::Mla => flip(&mut self.mla, on),
            Feature::Dsa => flip(&mut self.dsa, on),
            Feature::Mtp => flip(&mut self.mtp, on),
            Feature::Mhc => flip(&mut self.mhc, on),
            Feature::Mod => flip(&mut self.depths, on),
            Feature::Engram => flip(&mut self.engram, on),
            Feature::NgramHash => flip(&mut self.ngram_hash, on),
            Feature::Structure => flip(&mut self.structure, on),
            Feature::Adapters => flip(&mut self.adapters, on),
            Feature::Moe | Feature::MoeAsMlp | Feature::MoeAsAttention => false,
        }
    }
}

fn switch<'a, T>(section: Option<Section<'a>>, read: impl FnOnce(Section<'a>) -> Option<T>) -> Option<Switch<T>> {
    let mut section = section?;
    let on = section.flag_or("enabled", true);
    Some(Switch { on, value: read(section)? })
}

fn write_switch<T>(toml: &mut Toml, name: &str, switch: &Option<Switch<T>>, write: impl Fn(&T, &mut Toml)) {
    if let Some(switch) = switch {
        toml.table(name);
        toml.flag_unless("enabled", switch.on, true);
        write(&switch.value, toml);
    }
}
