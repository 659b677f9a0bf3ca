//! Parameters of mixers that Megatron does not build, or builds apart from its hybrid stack.

use super::config::Config;
use super::gated_delta::Widths;
use super::params::{Norm, NormLinear, Origin, Param, Params};
use super::{m2rnn as rnn, mamba3 as three};
use recipe::Role;
use recipe::kinds::m2rnn::M2rnn;
use recipe::kinds::mamba3::Mamba3;
use std::rc::Rc;

/// `crates/launch/assets/megatron/mamba3.py`.
pub(super) struct Mamba3Params {
    pub dt_bias: Rc<Param>,
    pub d: Rc<Param>,
    pub b_bias: Rc<Param>,
    pub c_bias: Rc<Param>,
    pub in_proj: Rc<Param>,
    pub angle_proj: Rc<Param>,
    /// Of B and of C.
    pub norms: [Rc<Param>; 2],
    pub out_proj: Rc<Param>,
    pub norm: Norm,
    pub widths: three::Widths,
}

/// `launch/assets/megatron/m2rnn.py`.
pub(super) struct M2rnnParams {
    pub a_log: Rc<Param>,
    pub dt_bias: Rc<Param>,
    pub state_weight: Rc<Param>,
    pub d: Rc<Param>,
    pub in_proj: NormLinear,
    pub conv: Rc<Param>,
    pub conv_bias: Option<Rc<Param>>,
    pub gate_norm: Rc<Param>,
    pub out_proj: Rc<Param>,
    pub mixer: M2rnn,
}

/// `ssm/gated_delta_net/common.py`.
pub(super) struct GatedDeltaParams {
    pub in_proj: NormLinear,
    pub conv: Rc<Param>,
    pub dt_bias: Rc<Param>,
    pub a_log: Rc<Param>,
    pub out_norm: Rc<Param>,
    pub out_proj: Rc<Param>,
    pub widths: Widths,
}

pub(super) fn mamba3(c: &Config, mixer: &Mamba3, params: &mut Params) -> Mamba3Params {
    let (heads, widths) = (mixer.heads / c.tp, three::Widths::of(c, mixer));
    let [dt_bias, d] = [(); 2].map(|()| params.vector(heads, Origin::Fp32));
    let [b_bias, c_bias] = [(); 2].map(|()| params.bank(heads * mixer.state, Origin::Fp32));
    let in_proj = params.matrix(Role::Matrix, widths.packed(), c.hidden);
    let angle_proj = params.whole_plain_matrix(mixer.angles, c.hidden);
    let norms = [(); 2].map(|()| params.whole_vector(mixer.state));
    let out_proj = params.matrix(Role::Matrix, c.hidden, widths.inner);
    let norm = params.block_norm(c.hidden);
    Mamba3Params { dt_bias, d, b_bias, c_bias, in_proj, angle_proj, norms, out_proj, norm, widths }
}

pub(super) fn m2rnn(c: &Config, params: &mut Params) -> M2rnnParams {
    let mixer = c.recurrent();
    let inner = mixer.heads * mixer.value_dim;
    // The module's own come before those of its projections.
    let conv = params.bank(rnn::channels(mixer) * mixer.conv, Origin::Device);
    let conv_bias = mixer.conv_bias.then(|| params.vector(rnn::channels(mixer), Origin::Device));
    let a_log = params.vector(mixer.heads, Origin::Device);
    let dt_bias = params.vector(mixer.heads, Origin::Device);
    let state_weight = params.bank(inner * mixer.value_dim, Origin::Device);
    let d = params.vector(inner, Origin::Device);
    let gate_norm = params.vector(inner, Origin::Device);
    let norm = params.block_norm(c.hidden);
    let weight = params.matrix(Role::Matrix, rnn::width(mixer), c.hidden);
    let in_proj = NormLinear { norm, weight, bias: None };
    let out_proj = params.matrix(Role::Matrix, c.hidden, inner);
    let mixer = mixer.clone();
    M2rnnParams { a_log, dt_bias, state_weight, d, in_proj, conv, conv_bias, gate_norm, out_proj, mixer }
}

pub(super) fn gated_delta(c: &Config, params: &mut Params) -> GatedDeltaParams {
    let mixer = c.gated_delta();
    let widths = Widths::of(mixer, c.tp);
    let dt_bias = params.vector(widths.value_heads, Origin::Device);
    let a_log = params.vector(widths.value_heads, Origin::Device);
    let norm = params.block_norm(c.hidden);
    let weight = params.matrix(Role::Matrix, widths.packed(), c.hidden);
    let in_proj = NormLinear { norm, weight, bias: None };
    let conv = params.bank(widths.channels() * mixer.conv, Origin::Device);
    let out_norm = params.whole_vector(mixer.value_dim);
    let out_proj = params.matrix(Role::Matrix, c.hidden, widths.values);
    GatedDeltaParams { in_proj, conv, dt_bias, a_log, out_norm, out_proj, widths }
}
