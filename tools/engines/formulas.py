"""formulas.py FOLDER: the reference model against formulas written out here, in fp64 on one process.

FOLDER/RECIPE/one/sharding.json as `emit_parity` writes it. Rotary rates against transformers' (`modeling_rope_utils.py`),
routing against loops over tokens, multipliers against the same model with them folded into its weights.
"""

import copy
import json
import math
import pathlib
import sys

ASSETS = pathlib.Path(__file__).resolve().parents[2] / "crates/launch/assets/fsdp2"
TOLERANCE = 1e-9


def folded(m: dict, p: dict) -> tuple[dict, dict]:
    """The same model without multipliers: each is a factor on the rows or columns of some weight."""
    by, m, p = m["multipliers"], copy.deepcopy(m), dict(p)
    a, s = m["attention"], m["mamba"]
    heads, kv, width = a["heads"], a["kv_heads"], a["head_dim"]
    scale = by["attention"] * math.sqrt(width)
    inner, shared = s["heads"] * s["head_dim"], s["groups"] * s["state"]
    parts = [inner, inner, shared, shared, s["heads"]]

    def rows(weight, sizes, factors):
        weight, first = weight * 1, 0
        for size, factor in zip(sizes, factors, strict=True):
            weight = join(weight, first, first + size, factor)
            first += size
        return weight

    def join(weight, first, end, factor):
        mask = [factor if first <= row < end else 1.0 for row in range(weight.shape[0])]
        return weight * type_of(weight)(mask)[:, None]

    def type_of(weight):
        if hasattr(weight, "new_tensor"):
            return weight.new_tensor
        import numpy

        return numpy.array

    for path in p:
        weight = p[path]
        if path == "embedding.tokens.weight":
            p[path] = weight * by["embedding"]
        elif path == "head.weight":
            p[path] = weight * by["logits"]
        elif path.endswith("attention.qkv.weight"):
            sizes = [heads * width, kv * width, kv * width]
            p[path] = rows(weight, sizes, [scale, by["key"], 1.0]) * by["attention_in"]
        elif path.endswith("attention.out.weight"):
            p[path] = weight * (by["attention_out"] * by["residual"])
        elif path.endswith("mamba.in_proj.weight"):
            p[path] = rows(weight, parts, by["ssm"]) * by["ssm_in"]
        elif path.endswith("mamba.out_proj.weight"):
            p[path] = weight * (by["ssm_out"] * by["residual"])
        elif path.endswith("mlp.fc1.weight"):
            p[path] = rows(weight, [m["mlp"]["ffn"]] * 2, [by["mlp"][0], 1.0])
        elif path.endswith("mlp.fc2.weight"):
            p[path] = weight * (by["mlp"][1] * by["residual"])
        elif path.endswith("experts.fc2.weight"):
            p[path] = weight * by["residual"]
    m["multipliers"] = {key: [1.0] * len(value) if isinstance(value, list) else 1.0 for key, value in by.items()}
    m["multipliers"]["attention"] = None
    return m, p


def llama3_rates(theta: float, width: int, factor: float, low: float, high: float, original: int) -> list[float]:
    """`_compute_llama3_parameters`, column by column."""
    rates = []
    for i in range(0, width, 2):
        rate = 1.0 / theta ** (i / width)
        wavelength = 2 * math.pi / rate
        if wavelength > original / low:
            rate /= factor
        elif wavelength >= original / high:
            smooth = (original / wavelength - low) / (high - low)
            rate = (1 - smooth) * rate / factor + smooth * rate
        rates.append(rate)
    return rates


def yarn_rates(theta: float, width: int, factor: float, original: int) -> tuple[list[float], float]:
    """`_compute_yarn_parameters` with its defaults: rates, and the factor on turned columns."""

    def border(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(border(32)), 0), min(math.ceil(border(1)), width - 1)
    high = high + 0.001 if low == high else high
    rates = []
    for i in range(width // 2):
        extrapolated = 1.0 / theta ** (2 * i / width)
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        rates.append(extrapolated / factor * ramp + extrapolated * (1 - ramp))
    return rates, 0.1 * math.log(factor) + 1.0


def routed(router, x, weight, bias):
    """Experts and shares of each token, and both losses, by loops (`moe_utils.py`, `router.py` of Megatron-Core)."""
    import torch

    o, k = router.options, router.top_k
    tokens = [(b, s) for b in range(x.shape[0]) for s in range(x.shape[1])]
    experts, shares, z = {}, {}, 0.0
    counts, sums = torch.zeros(x.shape[0], weight.shape[0]).double(), torch.zeros(x.shape[0], weight.shape[0]).double()
    for b, s in tokens:
        logits = weight @ x[b, s]
        z += torch.logsumexp(logits, 0).item() ** 2
        scores = torch.sigmoid(logits) if o["score"] == "sigmoid" else torch.softmax(logits, 0)
        ranked = (scores + bias).tolist()
        size = len(ranked) // o["groups"]
        best = [sum(sorted(ranked[g * size : (g + 1) * size])[-(1 if o["group_score"] == "max" else 2) :]) for g in range(o["groups"])]
        allowed = sorted(range(o["groups"]), key=lambda g: -best[g])[: o["group_top_k"]]
        order = sorted((e for e in range(len(ranked)) if e // size in allowed), key=lambda e: -ranked[e])
        experts[b, s] = order[:k]
        share = torch.stack([scores[e] for e in experts[b, s]])
        shares[b, s] = (share / share.sum() if o["normalize"] else share) * o["scaling"]
        probabilities = scores / scores.sum() if o["score"] == "sigmoid" else scores
        sums[b] += probabilities
        for e in scores.topk(k)[1].tolist():
            counts[b, e] += 1
    length = x.shape[1]
    if o["aux_loss_over"] == "batch":
        counts, sums, length = counts.sum(0, keepdim=True), sums.sum(0, keepdim=True), length * x.shape[0]
    losses = (counts * sums).sum(1) * weight.shape[0] * o["aux_loss"] / (k * length**2)
    return experts, shares, losses.mean().item(), (o["z_loss"] or 0.0) * z / len(tokens)


def check_router(name: str, m: dict):
    import torch
    from moe import Router

    router = Router(m["hidden"], m["moe"]).double()
    torch.nn.init.normal_(router.weight)
    bias = torch.zeros(m["moe"]["experts"]).double()
    if router.bias_rate is not None:
        router.expert_bias.normal_(std=0.3)
        bias = router.expert_bias
    x = torch.randn(3, 8, m["hidden"]).double()
    chosen, share = router(x)
    experts, shares, aux, z = routed(router, x, router.weight.detach(), bias)
    same = all(chosen[b, s].tolist() == experts[b, s] for b, s in experts)
    yield f"{name} choice of experts", 0.0 if same else 1.0
    yield f"{name} shares of experts", max((share[b, s] - shares[b, s]).abs().max().item() for b, s in shares)
    scores = torch.sigmoid(x @ router.weight.T) if router.options["score"] == "sigmoid" else (x @ router.weight.T).softmax(-1)
    yield f"{name} balancing loss", abs(router.balance(scores, chosen).item() - aux)
    if router.options["z_loss"] is not None:
        yield f"{name} z loss", abs(router.smallness(x @ router.weight.T).item() - z)
    # Both losses are descended with a weight of one.
    out = share.sum() * 0.0
    (got,) = torch.autograd.grad(out, router.weight)
    wanted = router.balance(scores, chosen)
    if router.options["z_loss"] is not None:
        wanted = wanted + router.smallness(x @ router.weight.T)
    (gradient,) = torch.autograd.grad(wanted, router.weight)
    yield f"{name} gradient of its losses", (got - gradient).abs().max().item()


def check_folded(m: dict):
    import torch
    from model import Hybrid

    torch.manual_seed(0)
    model = Hybrid(m, list(range(len(m["layers"]))), True, True).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    plain, weights = folded(m, {path: value.detach() for path, value in model.named_parameters()})
    other = Hybrid(plain, list(range(len(m["layers"]))), True, True).double()
    other.load_state_dict(weights)
    tokens = torch.randint(m["vocab"], (2, 8))
    yield "multipliers folded into weights", (model(tokens) - other(tokens)).abs().max().item()


def check_rotation(m: dict):
    """The first columns of a head turn as complex numbers do, the rest stay."""
    import torch
    from model import rotary, turned

    rope = m["rope"]
    n, x = len(rope["rates"]), torch.randn(1, 5, 2, m["attention"]["head_dim"]).double()
    y = turned(x, *rotary(x, rope, None))
    pairs = torch.complex(x[..., :n], x[..., n : 2 * n])
    angle = torch.arange(5)[:, None, None] * torch.tensor(rope["rates"])
    wanted = pairs * torch.polar(torch.full_like(angle, rope["amplitude"]), angle)
    wanted = torch.cat([wanted.real, wanted.imag, x[..., 2 * n :]], -1)
    # Angles are fp32, as they are on a GPU.
    yield "rotation of the first columns", max((y - wanted).abs().max().item() - 1e-5, 0.0)


def check_norm(m: dict):
    import torch
    from basics import Norm

    norm, x = Norm(m["hidden"], m["norm_eps"]).double(), torch.randn(4, m["hidden"]).double() * 0.01
    torch.nn.init.ones_(norm.weight)
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    yield "epsilon of norms", (norm(x) - wanted).abs().max().item()


def check_rates():
    """The learning rate of every step, written out: up over ten, down over ninety or the last twenty."""
    from schedule import factor

    fall = {
        "cosine": lambda s: 0.1 + 0.9 * (1 + math.cos(math.pi * (s - 10) / 90)) / 2, "linear": lambda s: 1 - 0.9 * (s - 10) / 90,
        "constant": lambda s: 1.0, "wsd": lambda s: 1.0 if s <= 80 else 1 - 0.9 * (s - 80) / 20,
    }  # fmt: skip
    for decay, wanted in fall.items():
        run = {"steps": 100, "warmup_steps": 10, "learning_rate": 3.0, "least_learning_rate": 0.3, "decay": decay, "decay_steps": 20}
        each = ((factor(run, step), (step + 1) / 10 if step < 10 else wanted(step)) for step in range(101))
        yield f"learning rate, {decay}", max(abs(a - b) for a, b in each)


def main() -> None:
    sys.path.insert(0, str(ASSETS))
    root = pathlib.Path(sys.argv[1])
    moe, fields = (json.loads((root / name / "one/sharding.json").read_text())["model"] for name in ("tiny-moe", "tiny-fields"))
    rates, amplitude = yarn_rates(10000.0, 8, 4.0, 64)
    llama = llama3_rates(10000.0, 8, 8.0, 1.0, 4.0, 64)
    checks = [
        ("Llama 3.1's rotary rates", max(abs(a - b) for a, b in zip(moe["rope"]["rates"], llama, strict=True))),
        ("YaRN's rotary rates", max(abs(a - b) for a, b in zip(fields["rope"]["rates"], rates, strict=True))),
        ("YaRN's factor", abs(fields["rope"]["amplitude"] - amplitude)),
        *check_router("tiny-moe", moe), *check_router("tiny-fields", fields), *check_folded(fields),
        *check_rotation(fields), *check_norm(fields), *check_rates(),
    ]  # fmt: skip
    for name, difference in checks:
        print(f"{'ok' if difference <= TOLERANCE else 'DIFFERS'} {name}: {difference:.1e}")
    wrong = sum(not difference <= TOLERANCE for _, difference in checks)
    print(f"formulas: {len(checks) - wrong} of {len(checks)} as written out")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
