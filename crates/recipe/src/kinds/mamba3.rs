//! Mamba-3: no convolution; B and C are normalised, biased per head and rotated by
//! data-dependent angles; the step is trapezoidal; optionally several inputs and outputs a head.
//!
//! Parameter list: state-spaces/mamba, `mamba_ssm/modules/mamba3.py`. An angle turns two columns of the
//! state, so that there are at most half as many as columns; the reference has a half or a quarter
//! (`rope_fraction in [0.5, 1.0]`, `num_rope_angles = split_tensor_size // 2`, `num_rope_angles > 0`). The angle projection stands
//! apart from `in_proj` here because it cannot be split like it: one set of angles turns every
//! head, so a rank that held a slice of them would turn its heads differently.
//!
//! What it computes, in every program of ours, is what mamba_ssm 2.3.2.post1 publishes for one input a
//! head: decays are -softplus(A) and -1e-4 at most; an angle is the running sum of tanh(angle)·π·dt and
//! turns two neighbouring columns (2i, 2i + 1) of B and C, which are normed by group and biased by head;
//! a token's input enters with weight sigmoid(trap)·dt, and at the next token with that one's
//! (1 - sigmoid(trap))·dt; the output is gated with SiLU(z). `tools/engines/check_mamba3.py` holds the
//! FSDP2 program and the Megatron mixer to it, and the runtime's tests hold the runtime.

use super::mamba2::read_heads;
use super::{Bias, Emitter};
use crate::tensor::{Dim, Role, Surface, Unit};
use crate::write::Toml;
use diag::{Blame, Finding};
use reading::Section;

/// The widths of a Mamba-3 mixer.
#[derive(Clone, Debug, PartialEq)]
pub struct Mamba3 {
    /// Heads.
    pub heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// State of one element of a head.
    pub state: u64,
    /// Groups of heads that share B and C.
    pub groups: u64,
    /// Inputs and outputs a head has; one is the ordinary case.
    pub mimo_rank: u64,
    /// Angles that rotate the state.
    pub angles: u64,
    /// Tokens a chunk of the scan covers.
    pub chunk: u64,
    /// Whether the implementation hands its state across a cut in time.
    pub state_carry: bool,
}

impl Mamba3 {
    /// Width between the projections.
    pub fn inner(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Reads the keys of `[mamba]` for this kind. A quarter of the state is rotated unless said.
    pub(crate) fn read(mut section: Section) -> Option<Mamba3> {
        let base = read_heads(&mut section);
        let mimo_rank = section.count_or("mimo_rank", 64, 1);
        let usual = base.map_or(1, |(_, _, state, _)| usual_angles(state));
        let angles = section.count_or("angles", crate::limits::WIDTH, usual);
        let chunk = section.count_or("chunk", 1 << 16, 64);
        let state_carry = section.flag_or("state_carry", false);
        if let (Some((_, _, state, _)), Some(angles)) = (base, angles) {
            too_many_angles(state, angles).into_iter().for_each(|finding| section.report("angles", finding));
        }
        section.finish();
        let (heads, head_dim, state, groups) = base?;
        let (mimo_rank, angles, chunk) = (mimo_rank?, angles?, chunk?);
        Some(Mamba3 { heads, head_dim, state, groups, mimo_rank, angles, chunk, state_carry })
    }

    /// Writes them back.
    pub(crate) fn write(&self, toml: &mut Toml) {
        toml.int("heads", self.heads);
        toml.int("head_dim", self.head_dim);
        toml.int("state", self.state);
        toml.int("groups", self.groups);
        toml.int_unless("mimo_rank", self.mimo_rank, 1);
        toml.int_unless("angles", self.angles, usual_angles(self.state));
        toml.int_unless("chunk", self.chunk, 64);
        toml.flag_unless("state_carry", self.state_carry, false);
    }

    /// Its tensors.
    pub(crate) fn tensors(&self, hidden: u64, out: &mut Emitter) {
        let group = self.state * self.mimo_rank;
        let into = Dim::packed(&[
            ("z", Unit::MambaHead, self.heads, self.head_dim),
            ("x", Unit::MambaHead, self.heads, self.head_dim),
            ("B", Unit::MambaGroup, self.groups, group),
            ("C", Unit::MambaGroup, self.groups, group),
            ("dt", Unit::MambaHead, self.heads, 1),
            ("A", Unit::MambaHead, self.heads, 1),
            ("trap", Unit::MambaHead, self.heads, 1),
        ]);
        let heads = || Dim::of(Unit::MambaHead, self.heads, 1);
        out.linear("in_proj", Surface::MixerIn, Role::Matrix, into, Dim::whole(hidden), Bias::No);
        let angles = Dim::whole(self.angles);
        out.linear("angle_proj", Surface::MixerHelper, Role::Matrix, angles, Dim::whole(hidden), Bias::No);
        out.add("dt_bias", Surface::MixerScalar, Role::Scalar, vec![heads()]);
        for name in ["B_bias", "C_bias"] {
            let per_head = vec![heads(), Dim::whole(self.mimo_rank), Dim::whole(self.state)];
            out.add(name, Surface::MixerScalar, Role::Scalar, per_head);
        }
        out.head_norm("B_norm", self.state);
        out.head_norm("C_norm", self.state);
        if self.mimo_rank > 1 {
            for name in ["mimo_x", "mimo_z", "mimo_o"] {
                let per_head = vec![heads(), Dim::whole(self.mimo_rank), Dim::whole(self.head_dim)];
                out.add(name, Surface::MixerScalar, Role::Scalar, per_head);
            }
        }
        out.add("D", Surface::MixerScalar, Role::Scalar, vec![heads()]);
        let inner = Dim::of(Unit::MambaHead, self.heads, self.head_dim);
        out.linear("out_proj", Surface::MixerOut, Role::Matrix, Dim::whole(hidden), inner, Bias::No);
    }
}

fn too_many_angles(state: u64, angles: u64) -> Option<Finding> {
    let most = state / 2;
    if angles <= most {
        return None;
    }
    let message = format!("{angles} angles turn {} columns of a state of {state}", angles.saturating_mul(2));
    let finding = Finding::error("mamba/angles", Blame::Recipe, "mamba.angles", message);
    Some(finding.hint(match most {
        0 => "a state that is turned has 2 columns at least".to_string(),
        1 => "angles may be 1".to_string(),
        _ => format!("angles may be 1 to {most}"),
    }))
}

/// Half the state is rotated (the reference's `rope_fraction` of 0.5), in pairs.
fn usual_angles(state: u64) -> u64 {
    (state / 4).max(1)
}

#[cfg(test)]
mod tests {
    use crate::Recipe;

    fn with(state: u64, angles: &str) -> Result<Recipe, Vec<diag::Finding>> {
        Recipe::parse(&format!(
            "name = \"m\"\npattern = \"M\"\nhidden = 64\nvocab = 64\nsequence = 64\n\n[mamba]\nkind = \"mamba3\"\n\
             heads = 4\nhead_dim = 16\nstate = {state}\n{angles}\n"
        ))
    }

    /// Two columns an angle: a state of 64 has room for 32, and one of a single column for none.
    #[test]
    fn angles_turn_pairs_of_the_state() {
        assert!(with(64, "angles = 32").is_ok());
        let refused = with(64, "angles = 33").unwrap_err();
        assert_eq!(refused[0].rule, "mamba/angles");
        assert_eq!(refused[0].message, "33 angles turn 66 columns of a state of 64");
        assert_eq!(refused[0].hint.as_deref(), Some("angles may be 1 to 32"));
        assert!(refused[0].span.is_some());
        assert!(with(2, "").is_ok());
        assert_eq!(with(1, "").unwrap_err()[0].rule, "mamba/angles");
        let mut recipe = with(64, "angles = 32").unwrap();
        if let Some(crate::kinds::mamba::Mamba::Three(m)) = &mut recipe.mamba {
            m.angles = 33;
        }
        assert_eq!(recipe.validated().unwrap_err()[0].rule, "mamba/angles", "whoever changes one is asked again");
    }
}
