"""The reference hybrid in JAX: parameters are a dict by path, the forward pass a function of it.

The same blocks as the torch reference, without any sharding in it: every expert sees every token and
its share decides, so that no shape depends on data; scans are `lax.scan`.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

GATED = {"swiglu": jax.nn.silu, "geglu": jax.nn.gelu}
PLAIN = {"relu2": lambda x: jnp.square(jax.nn.relu(x)), "gelu": jax.nn.gelu, "silu": jax.nn.silu}

# The slowest decay of Mamba-3.
A_FLOOR = 1e-4


def activate(name, x, factor=1.0):
    if name in GATED:
        gate, up = jnp.split(x, 2, -1)
        return GATED[name](gate * factor) * up
    return PLAIN[name](x)


def rms(m, x):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + m["norm_eps"])


def norm(m, p, path, x):
    bias = p.get(f"{path}.bias")
    if bias is None:
        return rms(m, x) * p[f"{path}.weight"]
    centred = x - x.mean(-1, keepdims=True)
    return rms(m, centred) * p[f"{path}.weight"] + bias


def project(p, path, x):
    return x @ p[f"{path}.weight"].T


def turn(x, angle, amplitude=1.0):
    n = angle.shape[-1]
    a, b, rest = x[..., :n], x[..., n : 2 * n], x[..., 2 * n :]
    cos, sin = jnp.cos(angle) * amplitude, jnp.sin(angle) * amplitude
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos, rest], -1)


def turn_neighbours(x, angle):
    """Turns neighbouring columns (2i, 2i + 1) of the first 2·angles."""
    n, cos, sin = 2 * angle.shape[-1], jnp.cos(angle), jnp.sin(angle)
    a, b = x[..., 0:n:2], x[..., 1:n:2]
    pairs = jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(*x.shape[:-1], n)
    return jnp.concatenate([pairs, x[..., n:]], -1)


def rotate(x, rope):
    rates = jnp.array(rope["rates"])
    return turn(x, jnp.arange(x.shape[1])[:, None, None] * rates, rope["amplitude"])


def attention(m, p, at, x):
    a, by = m["attention"], m["multipliers"]
    heads, kv, width = a["heads"], a["kv_heads"], a["head_dim"]
    packed = project(p, f"{at}.qkv", norm(m, p, f"{at}.norm", x) * by["attention_in"]).reshape(*x.shape[:2], heads + 2 * kv, width)
    q, k, v = packed[:, :, :heads], packed[:, :, heads : heads + kv], packed[:, :, heads + kv :]
    k = k * by["key"]
    if m["rope"] is not None:
        q, k = rotate(q, m["rope"]), rotate(k, m["rope"])
    k, v = jnp.repeat(k, heads // kv, 2), jnp.repeat(v, heads // kv, 2)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (by["attention"] or width**-0.5)
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), -1)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*x.shape[:2], heads * width)
    return project(p, f"{at}.out", out) * by["attention_out"]


def mlp(m, p, at, x):
    gate, out = m["multipliers"]["mlp"]
    hidden = activate(m["mlp"]["activation"], project(p, f"{at}.fc1", norm(m, p, f"{at}.norm", x)), gate)
    return project(p, f"{at}.fc2", hidden) * out


def moe(m, p, at, x, routed):
    """Routed and shared experts. `routed` is given this block's losses and its counts of choices."""
    e, options = m["moe"], m["moe"]["router"]
    x = norm(m, p, f"{at}.norm", x)
    logits = project(p, f"{at}.router", x)
    scores = jax.nn.sigmoid(logits) if options["score"] == "sigmoid" else jax.nn.softmax(logits, -1)
    chosen = choose(e, jax.lax.stop_gradient(scores) + routed.bias(at))
    top = jnp.take_along_axis(scores, chosen, -1)
    top = (top / top.sum(-1, keepdims=True) if options["normalize"] else top) * options["scaling"]
    picks = jax.nn.one_hot(chosen, e["experts"])
    routed.add(at, picks.sum((0, 1, 2)), balance(e, scores) + smallness(e, logits))
    share = (picks * top[..., None]).sum(-2)
    inner = activate(e["activation"], jnp.einsum("bsh,efh->bsef", x, p[f"{at}.experts.fc1.weight"]))
    out = jnp.einsum("bsef,ehf,bse->bsh", inner, p[f"{at}.experts.fc2.weight"], share)
    if e["shared"]:
        out += project(p, f"{at}.shared.fc2", activate(e["shared"]["activation"], project(p, f"{at}.shared.fc1", x)))
    return out


def choose(e, scores):
    """The best experts, of the best groups where experts stand in some."""
    options = e["router"]
    if options["groups"] > 1:
        grouped = scores.reshape(*scores.shape[:-1], options["groups"], -1)
        best = jax.lax.top_k(grouped, {"max": 1, "top2": 2}[options["group_score"]])[0].sum(-1)
        allowed = jax.nn.one_hot(jax.lax.top_k(best, options["group_top_k"])[1], options["groups"]).sum(-2)
        scores = jnp.where(allowed[..., None] > 0, grouped, -jnp.inf).reshape(scores.shape)
    return jax.lax.top_k(scores, e["top_k"])[1]


def balance(e, scores):
    """The torch reference's balancing loss (`moe.py`); choices are those by score alone. This program has one batch
    over all devices: counts are of the whole step where they are not of each sequence."""
    options = e["router"]
    if options["aux_loss"] is None:
        return 0.0
    by_score = jax.lax.top_k(jax.lax.stop_gradient(scores), e["top_k"])[1]
    counts = jax.nn.one_hot(by_score, e["experts"]).sum(-2)
    shares = scores / scores.sum(-1, keepdims=True) if options["score"] == "sigmoid" else scores
    over = (0, 1) if options["aux_loss_over"] == "batch" else (1,)
    products = (counts.mean(over) * shares.mean(over)).sum(-1)
    return options["aux_loss"] * e["experts"] / e["top_k"] * products.mean()


def smallness(e, logits):
    """The z loss."""
    coefficient = e["router"]["z_loss"]
    return 0.0 if coefficient is None else coefficient * jnp.square(jax.nn.logsumexp(logits, -1)).mean()


class Routed:
    """What expert blocks leave beside their output in one forward pass."""

    def __init__(self, biases):
        self.biases, self.counts, self.loss = biases, {}, 0.0

    def bias(self, at):
        return self.biases.get(at, 0.0)

    def add(self, at, counts, loss):
        self.counts[at], self.loss = counts, self.loss + loss


def zero_biases(m):
    """A balancing bias for every expert block, where the recipe has them: state, not a parameter."""
    if not m["moe"] or m["moe"]["router"]["bias_rate"] is None:
        return {}
    blocks = [f"layers.{i}.{name}" for i, names in enumerate(m["layers"]) for name in names if kind_of(name) == "moe"]
    return {at: jnp.zeros(m["moe"]["experts"]) for at in blocks}


def moved_biases(m, biases, counts):
    """The biases a step towards even counts."""
    rate = m["moe"]["router"]["bias_rate"] if biases else 0.0
    return {at: bias + rate * jnp.sign(counts[at].mean() - counts[at]) for at, bias in biases.items()}


def conv(p, at, x):
    """Causal and depthwise: a sum of shifted inputs."""
    weight, bias = p[f"{at}.weight"], p.get(f"{at}.bias")
    taps = weight.shape[-1]
    padded = jnp.pad(x, ((0, 0), (taps - 1, 0), (0, 0)))
    out = sum(padded[:, t : t + x.shape[1]] * weight[:, 0, t] for t in range(taps))
    return jax.nn.silu(out if bias is None else out + bias)


def scan(decay, u, b, c):
    def step(state, now):
        decay, u, b, c = now
        state = decay[..., None, None] * state + u[..., :, None] * b[..., None, :]
        return state, (state * c[..., None, :]).sum(-1)

    start = jnp.zeros((u.shape[0], *u.shape[2:], b.shape[-1]), u.dtype)
    _, out = jax.lax.scan(step, start, tuple(jnp.moveaxis(t, 1, 0) for t in (decay, u, b, c)))
    return jnp.moveaxis(out, 0, 1)


def cuts(sizes):
    return list(np.cumsum(sizes)[:-1])


def mamba(m, p, at, x):
    return (mamba3 if m["mamba"]["kind"] == "mamba3" else mamba2)(m, p, at, x)


def mamba2(m, p, at, x):
    s = m["mamba"]
    heads, width, inner, bc = s["heads"], s["head_dim"], s["heads"] * s["head_dim"], s["groups"] * s["state"]
    by = m["multipliers"]
    packed = project(p, f"{at}.in_proj", norm(m, p, f"{at}.norm", x) * by["ssm_in"])
    packed = packed * jnp.repeat(jnp.array(by["ssm"]), jnp.array([inner, inner, bc, bc, heads]), total_repeat_length=packed.shape[-1])
    z, xbc, dt = jnp.split(packed, cuts([inner, inner + 2 * bc, heads]), -1)
    u, b, c = jnp.split(conv(p, f"{at}.conv", xbc), cuts([inner, bc, bc]), -1)
    u = u.reshape(*x.shape[:2], heads, width)
    b, c = (jnp.repeat(t.reshape(*x.shape[:2], -1, s["state"]), heads // s["groups"], 2) for t in (b, c))
    dt = jax.nn.softplus(dt + p[f"{at}.dt_bias"])
    y = scan(jnp.exp(-dt * jnp.exp(p[f"{at}.A_log"])), dt[..., None] * u, b, c) + p[f"{at}.D"][:, None] * u
    y = y.reshape(*x.shape[:2], inner) * jax.nn.silu(z)
    if s["gated_norm"]:
        grouped = rms(m, y.reshape(*x.shape[:2], s["groups"], -1))
        y = grouped.reshape(*x.shape[:2], inner) * p[f"{at}.gate_norm.weight"]
    return project(p, f"{at}.out_proj", y) * by["ssm_out"]


def mamba3(m, p, at, x):
    """As published: mamba_ssm 2.3.2.post1, `modules/mamba3.py`, one input a head."""
    s = m["mamba"]
    heads, width, inner, bc = s["heads"], s["head_dim"], s["heads"] * s["head_dim"], s["groups"] * s["state"]
    h = norm(m, p, f"{at}.norm", x) * m["multipliers"]["ssm_in"]
    packed = project(p, f"{at}.in_proj", h)
    z, u, b, c, dt, a, trap = jnp.split(packed, cuts([inner, inner, bc, bc, heads, heads, heads]), -1)
    u = u.reshape(*x.shape[:2], heads, width)
    dt, trap = jax.nn.softplus(dt + p[f"{at}.dt_bias"]), jax.nn.sigmoid(trap)
    decay = jnp.exp(-dt * jnp.maximum(jax.nn.softplus(a), A_FLOOR))
    angle = jnp.cumsum(jnp.pi * jnp.tanh(project(p, f"{at}.angle_proj", h))[:, :, None] * dt[..., None], 1)

    def of_heads(packed, name):
        groups = norm(m, p, f"{at}.{name}_norm", packed.reshape(*x.shape[:2], -1, s["state"]))
        return turn_neighbours(jnp.repeat(groups, heads // s["groups"], 2) + p[f"{at}.{name}_bias"][:, 0], angle)

    def late(t):
        return jnp.pad(t, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1]

    b, c = of_heads(b, "B"), of_heads(c, "C")
    y = scan(decay, (trap * dt)[..., None] * u, b, c)
    y += scan(decay, ((1 - trap) * dt * decay)[..., None] * late(u), late(b), c)
    y = (y + p[f"{at}.D"][:, None] * u).reshape(*x.shape[:2], inner)
    return project(p, f"{at}.out_proj", y * jax.nn.silu(z)) * m["multipliers"]["ssm_out"]


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def clipped(state, by):
    """A state whose gradient is clipped to ±`by`, or not at 0."""
    return state


def clipped_forward(state, by):
    return state, None


def clipped_backward(by, _, grad):
    return (jnp.clip(grad, -by, by) if by else grad,)


clipped.defvjp(clipped_forward, clipped_backward)


def recurrent(m, p, at, x):
    r = m["recurrent"]
    heads, value, inner, qk = r["heads"], r["value_dim"], r["heads"] * r["value_dim"], r["qk_heads"] * r["key_dim"]
    packed = project(p, f"{at}.in_proj", norm(m, p, f"{at}.norm", x))
    qkv, forget, gate = jnp.split(packed, cuts([2 * qk + inner, heads, inner]), -1)
    q, k, v = jnp.split(conv(p, f"{at}.conv", qkv), cuts([qk, qk, inner]), -1)
    q, k = (jnp.repeat(t.reshape(*x.shape[:2], -1, r["key_dim"]), heads // r["qk_heads"], 2) for t in (q, k))
    v = v.reshape(*x.shape[:2], heads, value)
    keep = jnp.exp(-jax.nn.softplus(forget + p[f"{at}.dt_bias"]) * jnp.exp(p[f"{at}.A_log"]))

    def step(state, now):
        keep, q, k, v = now
        fresh = jnp.tanh(state @ p[f"{at}.state_weight"] + k[..., :, None] * v[..., None, :])
        state = clipped(keep[..., None, None] * state + (1 - keep[..., None, None]) * fresh, r["gradient_clip"])
        return state, (state * q[..., :, None]).sum(-2)

    start = jnp.zeros((x.shape[0], heads, r["key_dim"], value), x.dtype)
    _, y = jax.lax.scan(step, start, tuple(jnp.moveaxis(t, 1, 0) for t in (keep, q, k, v)))
    y = (jnp.moveaxis(y, 0, 1) + p[f"{at}.D"] * v).reshape(*x.shape[:2], inner)
    return project(p, f"{at}.out_proj", rms(m, y * jax.nn.silu(gate)) * p[f"{at}.gate_norm.weight"])


MIXERS = {"attention": attention, "mamba": mamba, "recurrent": recurrent, "mlp": mlp}


def kind_of(name: str) -> str:
    """The kind of a block by its name, which may end in `_2` for a second of its kind in a layer."""
    return name.rpartition("_")[0] if name.rpartition("_")[2].isdigit() else name


def loss(m, p, tokens, biases):
    """What is descended: mean cross-entropy of the next token and balancing losses. Beside it the former alone,
    and how often each expert was chosen."""
    routed = Routed(biases)
    by = m["multipliers"]
    x = p["embedding.tokens.weight"][tokens[:, :-1]] * by["embedding"]
    for index, blocks in enumerate(m["layers"]):
        for name in blocks:
            kind, at = kind_of(name), f"layers.{index}.{name}"
            out = moe(m, p, at, x, routed) if kind == "moe" else MIXERS[kind](m, p, at, x)
            x = x + out * by["residual"]
    head = p["embedding.tokens.weight"] if m["tied"] else p["head.weight"]
    logits = norm(m, p, "final.norm", x) @ head.T * by["logits"]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), tokens[:, 1:, None], -1)
    return routed.loss - picked.mean(), (-picked.mean(), routed.counts)
