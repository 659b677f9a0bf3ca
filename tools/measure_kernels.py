"""Kernels as Megatron-Core and Transformer Engine choose them, timed on one GPU.

    python3 tools/measure_kernels.py OUT.json [SECONDS] [TABLE ...]

Needs torch with CUDA, Transformer Engine, Megatron-Core, mamba_ssm and Emerging-Optimizers; a table whose library is
absent is named as refused. A row has the shape and the median device seconds (`s`) of repeated runs on drawn numbers;
kernels under 80 µs are replayed from a graph, so that the host does not count. Tables: numbers (what equal numbers do to
the clock), power (products with streams between them), dense, products (rows that are no multiple of 16 bytes), te_dense,
moe (permutations), streams, grouped, fp8, attention, loss, optimizer, mamba. No table is begun after SECONDS.
"""

import functools
import itertools
import json
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
import transformer_engine.pytorch as te

import measure_curves

OUT = sys.argv[1]
LIMIT = float(sys.argv[2]) if len(sys.argv) > 2 else 1e9
ONLY = sys.argv[3:]
D = torch.device("cuda")
BEGAN = time.time()
ROWS = []
bf = torch.bfloat16


# Shorter than a curve's: most rows are compared with one another, not with the power a card sustains.
seconds = functools.partial(measure_curves.seconds, budget=0.025, most=100)
drawn = measure_curves.random


def graphed(run):
    """Device time without the host: captured ten times in a graph."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        for _ in range(10):
            run()
    return seconds(g.replay) / 10


def row(kind, s=None, **k):
    ROWS.append(dict(kind=kind, **k, **({} if s is None else {"s": s})))


def tried(kind, run, **k):
    try:
        s = seconds(run)
        more = {}
        if s < 8e-5:
            try:
                more = {"eager_s": s}
                s = min(s, graphed(run))
            except Exception as e:
                torch.cuda.synchronize()
                more = {"graph": str(e)[:60]}
        row(kind, s, **k, **more)
    except Exception as e:
        row(kind, **k, refused=f"{type(e).__name__}: {str(e)[:150]}")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def prof(run, kind, **k):
    """Kernels of one call, by name."""
    try:
        from torch.profiler import profile, ProfilerActivity

        for _ in range(3):
            run()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as p:
            run()
            torch.cuda.synchronize()
        ev = [e for e in p.events() if str(e.device_type).endswith("CUDA")]
        by = {}
        for e in ev:
            b = by.setdefault(e.name[:120], [0, 0.0])
            b[0] += 1
            b[1] += e.time_range.elapsed_us()
        iv = sorted((e.time_range.start, e.time_range.end) for e in ev)
        busy, end = 0.0, 0
        for a0, b0 in iv:
            if b0 > end:
                busy += b0 - max(a0, end)
                end = b0
        row(kind, **k, count=len(ev), busy_us=busy, kernels=[[n, *v] for n, v in by.items()])
    except Exception as e:
        row(kind, **k, refused=f"{type(e).__name__}: {str(e)[:200]}")


def sustained(run, t=1.2):
    """Seconds a run, and the clock, over t seconds of nothing else."""

    for _ in range(2):
        run()
    torch.cuda.synchronize()
    b = time.time()
    n = 0
    q = None
    while time.time() - b < t:
        for _ in range(10):
            run()
        n += 10
        torch.cuda.synchronize()
        if q is None and time.time() - b > t * 0.6:
            q = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader"],
                stdout=subprocess.PIPE,
                text=True,
            )
    s = (time.time() - b) / n
    return s, (q.communicate()[0].strip() if q else None)


def numbers():
    m, n, k = 16384, 14336, 4096

    def kinds(a, b):
        r = drawn(a, b)
        u = torch.rand(a, b, device=D).to(bf)
        yield "normal", r
        yield "normal*0.02", (r * 0.02).to(bf)
        yield "uniform", u
        yield "zeros", torch.zeros_like(r)
        yield "nan", torch.full_like(r, float("nan"))
        yield "ones", torch.ones_like(r)
        yield "half zeros", r * (u > 0.5)
        yield "rows repeated 4", r[: a // 4].repeat(4, 1).contiguous()
        yield "relu", torch.relu(r)

    for (name, x), (_, w) in zip(kinds(m, k), kinds(n, k)):
        s, q = sustained(lambda: torch.mm(x, w.t()))
        row("data", s, data=name, m=m, n=n, k=k, **{"pass": "forward"}, clock=q, tflops=2 * m * n * k / s / 1e12)
    # one factor of another kind
    x = drawn(m, k)
    for name, w in kinds(n, k):
        if name in ("zeros", "nan", "normal*0.02", "rows repeated 4"):
            s, q = sustained(lambda: torch.mm(x, w.t()), 0.8)
            row("data", s, data="normal x " + name, m=m, n=n, k=k, clock=q, tflops=2 * m * n * k / s / 1e12)
    q = drawn(2, 32, 8192, 128)
    for name, f in (("normal", 1.0), ("zeros", 0.0), ("0.02", 0.02)):
        y = (q * f).to(bf)
        s, c = sustained(lambda: F.scaled_dot_product_attention(y, y, y, is_causal=True), 0.8)
        row("data", s, data="attention " + name, clock=c)


def power():
    x, y = drawn(16384, 8192), drawn(16384, 8192)
    f = torch.randn(16384, 8192, device=D)
    for name, run in (
        ("add bf16", lambda: torch.add(x, y, out=x)),
        ("fp32 += bf16", lambda: f.add_(x)),
        ("copy", lambda: y.copy_(x)),
        ("small kernels", lambda: x[:64].mul_(1.0)),
        ("adam-like", lambda: torch.addcmul(f, f, f, out=f)),
    ):
        s, q = sustained(run, 1.0)
        row("power", s, what=name, clock=q)
    q, k, v = (drawn(2, 32, 8192, 128).requires_grad_() for _ in range(3))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    g = torch.randn_like(o)
    s, c = sustained(lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True), 1.0)
    row("power", s, what="attention backward", clock=c)
    a, b = drawn(16384, 4096), drawn(14336, 4096)
    # Products with streams between them: how power is shared over a step, and what the clock is where it does not bind.
    for part, data in itertools.product((0.9, 0.75, 0.6, 0.45, 0.3), ("normal", "nan")):
        if data == "nan":
            a, b = torch.full_like(a, float("nan")), torch.full_like(b, float("nan"))
        else:
            a, b = drawn(16384, 4096), drawn(14336, 4096)
        n = max(1, int(2.6e-3 * (1 - part) / part / 2.2e-4))

        def mix():
            torch.mm(a, b.t())
            for _ in range(n):
                torch.add(x, y, out=x)

        s, c = sustained(mix, 1.5)
        ev = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(20)]
        for e in ev:
            e[0].record()
            torch.mm(a, b.t())
            e[1].record()
            [torch.add(x, y, out=x) for _ in range(n)]
            e[2].record()
        torch.cuda.synchronize()
        row(
            "mix",
            s,
            data=data,
            streams=n,
            clock=c,
            product_s=sorted(e[0].elapsed_time(e[1]) for e in ev)[10] / 1e3,
            stream_s=sorted(e[1].elapsed_time(e[2]) for e in ev)[10] / 1e3,
        )


def te_dense():
    from transformer_engine.pytorch.cpp_extensions import general_gemm

    for m, n, k in (
        (16384, 14336, 4096),
        (16384, 4096, 7168),
        (16384, 6144, 4096),
        (2048, 4608, 12288),
        (2048, 6144, 12288),
        (8192, 5120, 2048),
        (8192, 4124, 3584),
        (4096, 10240, 8192),
    ):
        c = dict(m=m, n=n, k=k)
        for name, f in (("normal", 1.0), ("zeros", 0.0)):
            x, w, dy = (drawn(m, k) * f).to(bf), (drawn(n, k) * f).to(bf), (drawn(m, n) * f).to(bf)
            o = torch.zeros(n, k, device=D)
            tried(
                "te gemm", lambda: general_gemm(w, x, out_dtype=bf, layout="TN"), data=name, **c, **{"pass": "forward"}
            )
            tried(
                "te gemm",
                lambda: general_gemm(w, dy, out_dtype=bf, layout="NN", grad=True),
                data=name,
                **c,
                **{"pass": "input"},
            )
            tried(
                "te gemm",
                lambda: general_gemm(x, dy, out_dtype=bf, layout="NT", grad=True),
                data=name,
                **c,
                **{"pass": "weight"},
            )
            tried(
                "te gemm accumulate",
                lambda: general_gemm(x, dy, out_dtype=torch.float32, accumulate=True, layout="NT", out=o, grad=True),
                data=name,
                **c,
                **{"pass": "weight"},
            )


def products():
    """Three passes by alignment of n and k."""
    base = [
        (8192, 4096, 4096),
        (8192, 1024, 4096),
        (8192, 8192, 2048),
        (16384, 4096, 3584),
        (4096, 4096, 1024),
        (8192, 2048, 7168),
    ]
    for (m, n, k), (what, off) in itertools.product(
        base, [("n", o) for o in (0, 1, 2, 4, 6, 8, 12, 28, 64)] + [("k", o) for o in (1, 2, 4, 6, 8, 28)]
    ):
        nn, kk = (n + off, k) if what == "n" else (n, k + off)
        x, w, dy = drawn(m, kk), drawn(nn, kk), drawn(m, nn)
        c = dict(m=m, n=nn, k=kk, off=off, side=what)
        tried("gemm", lambda: torch.mm(x, w.t()), **c, **{"pass": "forward"})
        tried("gemm", lambda: torch.mm(dy, w), **c, **{"pass": "input"})
        tried("gemm", lambda: torch.mm(dy.t(), x), **c, **{"pass": "weight"})
        if off in (0, 1, 2, 4, 12, 28) and (m, n, k) == base[0]:
            for p, run in (
                ("forward", lambda: torch.mm(x, w.t())),
                ("input", lambda: torch.mm(dy, w)),
                ("weight", lambda: torch.mm(dy.t(), x)),
            ):
                prof(run, "gemm name", **c, **{"pass": p})
        del x, w, dy
    for m, n in itertools.product(
        (2048, 8192, 16384), (4124, 4112, 4128, 2078, 7180, 18560, 18576, 17440, 9232, 4636)
    ):  # in_proj widths at several degrees
        for k in (3584, 4096, 2688):
            x, w = drawn(m, k), drawn(n, k)
            dy = drawn(m, n)
            c = dict(m=m, n=n, k=k, off=n % 64, side="in_proj")
            tried("gemm", lambda: torch.mm(x, w.t()), **c, **{"pass": "forward"})
            tried("gemm", lambda: torch.mm(dy, w), **c, **{"pass": "input"})
            tried("gemm", lambda: torch.mm(dy.t(), x), **c, **{"pass": "weight"})


def dense():
    """Products of real layers in bursts, all passes, over drawn numbers and over zeros."""
    shapes = [
        (16384, 6144, 4096),
        (16384, 4096, 2048),
        (16384, 14336, 4096),
        (16384, 4096, 7168),
        (8192, 3072, 4096),
        (8192, 28672, 4096),
        (8192, 4096, 14336),
        (2048, 12288, 1536),
        (2048, 4608, 12288),
        (2048, 6144, 12288),
        (2048, 12288, 6144),
        (8192, 5120, 2048),
        (8192, 2048, 4096),
        (4096, 10240, 8192),
        (4096, 8192, 7168),
        (4096, 57344, 8192),
        (16384, 64128, 4096),
        (8192, 75968, 2048),
        (2048, 6400, 12288),
        (16384, 3584, 3584),
        (4096, 1536, 7168),
        (4096, 24576, 1536),
        (4096, 16384, 7168),
        (4096, 576, 7168),
        (4096, 32768, 512),
        (8192, 128, 2048),
        (8192, 64, 3584),
        (16384, 256, 7168),
    ]
    for m, n, k in shapes:
        x, w, dy = drawn(m, k), drawn(n, k), drawn(m, n)
        c = dict(m=m, n=n, k=k)
        tried("dense", lambda: torch.mm(x, w.t()), **c, **{"pass": "forward"})
        tried("dense", lambda: torch.mm(dy, w), **c, **{"pass": "input"})
        tried("dense", lambda: torch.mm(dy.t(), x), **c, **{"pass": "weight"})
        o = torch.zeros(n, k, device=D, dtype=torch.float32)
        try:
            from transformer_engine.pytorch.cpp_extensions import general_gemm

            tried(
                "dense te accumulate",
                lambda: general_gemm(x, dy, out_dtype=torch.float32, accumulate=True, layout="NT", out=o, grad=True),
                **c,
                **{"pass": "weight"},
            )
        except Exception as e:
            row("dense te accumulate", **c, refused=str(e)[:100])
        z = torch.zeros_like(x), torch.zeros_like(w)
        tried("dense zeros", lambda: torch.mm(z[0], z[1].t()), **c, **{"pass": "forward"})
        del x, w, dy, o, z


def grouped():
    from transformer_engine.pytorch.cpp_extensions import general_grouped_gemm

    for g, m, (n, k) in itertools.product(
        (2, 4, 8, 16, 64),
        (64, 256, 512, 1024, 4096),
        (
            (1536, 2048),
            (2048, 768),
            (2048, 3584),
            (3584, 1024),
            (3584, 896),
            (1792, 3584),
            (28672, 4096),
            (4096, 14336),
            (4096, 7168),
            (7168, 2048),
        ),
    ):
        if g * m > 65536 or g * n * k > 2**31:
            continue
        x, dy = drawn(g * m, k), drawn(g * m, n)
        w = [drawn(n, k) for _ in range(g)]
        xs, ds = list(x.split(m)), list(dy.split(m))
        c = dict(groups=g, m=m, n=n, k=k)
        y, dx = torch.empty(g * m, n, device=D, dtype=bf), torch.empty(g * m, k, device=D, dtype=bf)
        gw = [torch.empty(n, k, device=D, dtype=bf) for _ in range(g)]
        q = [None] * g
        sp = [m] * g
        tried(
            "grouped",
            lambda: general_grouped_gemm(w, xs, [y], q, bf, layout="TN", m_splits=sp, single_output=True),
            **c,
            **{"pass": "forward"},
        )
        tried(
            "grouped",
            lambda: general_grouped_gemm(w, ds, [dx], q, bf, layout="NN", m_splits=sp, grad=True, single_output=True),
            **c,
            **{"pass": "input"},
        )
        tried(
            "grouped",
            lambda: general_grouped_gemm(xs, ds, gw, q, bf, layout="NT", m_splits=sp, grad=True),
            **c,
            **{"pass": "weight"},
        )
        del x, dy, w, xs, ds, y, dx, gw


def streams():

    for t, h in itertools.product((2048, 4096, 8192, 16384), (2048, 2688, 3584, 4096, 7168, 8192, 12288)):
        if t * h > 2**27:
            continue
        x, y = drawn(t, h), drawn(t, h)
        f = torch.randn(t, h, device=D)
        b = x.nbytes
        c = dict(tokens=t, width=h)
        tried("add bf16", lambda: x + y, bytes=3 * b, **c)
        tried("fp32 += bf16", lambda: f.add_(x), bytes=5 * b, **c)
        tried("copy", lambda: y.copy_(x), bytes=2 * b, **c)
        tried("bf16 to fp32", lambda: x.float(), bytes=3 * b, **c)
        tried("fp32 to bf16", lambda: f.to(bf), bytes=3 * b, **c)
        tried("mul scalar fp32", lambda: f.mul_(0.5), bytes=4 * b, **c)
        tried("zero fp32", lambda: f.zero_(), bytes=2 * b, **c)
        tried("norm fp32", lambda: f.norm(), bytes=2 * b, **c)
        v = x.view(t // 4, 4, h)
        tried("transpose copy", lambda: v.transpose(0, 1).contiguous(), bytes=2 * b, **c)
        tried("transpose 2d copy", lambda: x.t().contiguous(), bytes=2 * b, **c)
        tried("slice copy", lambda: x[:, : h // 2].contiguous(), bytes=b, **c)
        tried("cat dim0", lambda: torch.cat((x, y)), bytes=4 * b, **c)
        tried("cat dim-1", lambda: torch.cat((x, y), -1), bytes=4 * b, **c)
        tried("sum dim0", lambda: x.sum(0), bytes=b, **c)
        for norm, name in ((te.RMSNorm, "te rmsnorm"), (te.LayerNorm, "te layernorm")):
            m = norm(h, params_dtype=bf, device="cuda")
            z = x.clone().requires_grad_()
            o = m(z)
            with torch.no_grad():
                tried(name + " forward", lambda: m(z), bytes=2 * b, **c)
            tried(
                name + " backward",
                lambda: torch.autograd.grad(o, (z, m.weight), y, retain_graph=True),
                bytes=3 * b,
                **c,
            )
        del x, y, f, z, o
    # activation as Megatron compiles it (jit_fuser = torch.compile)
    try:
        from megatron.core.fusions.fused_bias_swiglu import (
            SwiGLUFunction,
            WeightedSwiGLUFunction,
            swiglu,
            swiglu_back,
            weighted_swiglu,
            weighted_swiglu_back,
        )

        for t, h in itertools.product((4096, 16384, 65536), (768, 1024, 1536, 7168, 14336)):
            if t * h > 2**28:
                continue
            x, g, p = drawn(t, 2 * h), drawn(t, h), torch.rand(t, 1, device=D)
            tried("swiglu forward", lambda: swiglu(x), bytes=2 * 3 * t * h, tokens=t, width=h)
            tried("swiglu backward", lambda: swiglu_back(g, x), bytes=2 * 5 * t * h, tokens=t, width=h)
            tried("weighted swiglu forward", lambda: weighted_swiglu(x, p), bytes=2 * 3 * t * h, tokens=t, width=h)
            tried(
                "weighted swiglu backward",
                lambda: weighted_swiglu_back(g, x, p),
                bytes=2 * 5 * t * h,
                tokens=t,
                width=h,
            )
    except Exception as e:
        row("swiglu", refused=str(e)[:200])


def moe():
    from transformer_engine.pytorch.permutation import moe_permute_with_probs, moe_unpermute, moe_sort_chunks_by_index
    from megatron.core.transformer.moe.moe_utils import permute, unpermute

    for t, h, e, k in (
        (4096, 2048, 128, 8),
        (8192, 2048, 128, 8),
        (8192, 3584, 64, 6),
        (16384, 3584, 64, 6),
        (4096, 7168, 256, 8),
        (8192, 4096, 8, 2),
        (8192, 2688, 128, 6),
        (2048, 3584, 64, 6),
    ):
        x = drawn(t, h).requires_grad_()
        logits = torch.randn(t, e, device=D)
        top = logits.topk(k, -1).indices
        mask = torch.zeros(t, e, dtype=torch.bool, device=D).scatter_(1, top, True)
        probs = torch.softmax(logits, -1) * mask
        c = dict(tokens=t, width=h, experts=e, k=k)
        b = t * k * h * 2
        for fused in (False, True):
            try:
                o = permute(x, mask, probs=probs, num_out_tokens=t * k, fused=fused)
                px, pp, idx = o[0], o[1], o[2]
                g = torch.randn_like(px)
                with torch.no_grad():
                    prof(
                        lambda: permute(x, mask, probs=probs, num_out_tokens=t * k, fused=fused),
                        "permute forward",
                        fused=fused,
                        bytes=2 * b,
                        **c,
                    )
                prof(
                    lambda: torch.autograd.grad(px, x, g, retain_graph=True),
                    "permute backward",
                    fused=fused,
                    bytes=2 * b,
                    **c,
                )
                z = px.detach().clone().requires_grad_()
                u = unpermute(z, idx, restore_shape=x.shape, routing_map=mask, fused=fused)
                with torch.no_grad():
                    prof(
                        lambda: unpermute(z, idx, restore_shape=x.shape, routing_map=mask, fused=fused),
                        "unpermute forward",
                        fused=fused,
                        bytes=2 * b,
                        **c,
                    )
                g2 = torch.randn_like(u)
                prof(
                    lambda: torch.autograd.grad(u, z, g2, retain_graph=True),
                    "unpermute backward",
                    fused=fused,
                    bytes=2 * b,
                    **c,
                )
            except Exception as er:
                row("permute", fused=fused, **c, refused=f"{type(er).__name__}: {str(er)[:200]}")
        tried("topk", lambda: logits.topk(k, -1), **c)
        tried("softmax", lambda: torch.softmax(logits, -1), **c)
        tried("router product", lambda: torch.mm(x.detach().float(), torch.randn(h, e, device=D)), **c)
        try:
            from megatron.core.transformer.moe.moe_utils import sort_chunks_by_idxs

            px = drawn(t * k, h).requires_grad_()
            n = min(e, 128)
            sp = torch.full((n,), t * k // n, dtype=torch.long)
            sp[-1] += t * k - int(sp.sum())
            si = torch.arange(n).view(8, -1).t().reshape(-1) if n % 8 == 0 else torch.arange(n)
            with torch.no_grad():
                prof(
                    lambda: sort_chunks_by_idxs(px, sp, si, fused=False),
                    "sort chunks forward",
                    fused=False,
                    bytes=2 * b,
                    **c,
                )
        except Exception as er:
            row("sort chunks", **c, refused=str(er)[:200])
        del x


def attention():

    for (h, kv, d, dv), (b, s) in itertools.product(
        (
            (16, 4, 128, 128),
            (32, 8, 128, 128),
            (8, 1, 128, 128),
            (12, 12, 128, 128),
            (32, 4, 128, 128),
            (16, 16, 192, 128),
            (28, 4, 64, 64),
            (56, 8, 64, 64),
            (8, 8, 64, 64),
            (64, 8, 64, 64),
            (16, 16, 80, 80),
            (16, 2, 256, 256),
        ),
        ((1, 2048), (2, 4096), (4, 4096), (2, 8192), (1, 16384), (1, 32768)),
    ):
        try:
            m = te.DotProductAttention(
                h,
                (d, dv) if d != dv else d,
                num_gqa_groups=kv,
                attention_dropout=0.0,
                qkv_format="sbhd",
                attn_mask_type="causal",
            ).cuda()
            q, k, v = (drawn(s, b, n, w).requires_grad_() for n, w in ((h, d), (kv, d), (kv, dv)))
            c = dict(heads=h, kv=kv, d=d, dv=dv, batch=b, seq=s)
            o = m(q, k, v)
            g = torch.randn_like(o)
            with torch.no_grad():
                tried("te attention", lambda: m(q, k, v), **c, **{"pass": "forward"})
            tried(
                "te attention",
                lambda: torch.autograd.grad(o, (q, k, v), g, retain_graph=True),
                **c,
                **{"pass": "backward"},
            )
            del q, k, v, o, g
        except Exception as e:
            row(
                "te attention",
                heads=h,
                kv=kv,
                d=d,
                dv=dv,
                batch=b,
                seq=s,
                refused=f"{type(e).__name__}: {str(e)[:150]}",
            )
            torch.cuda.empty_cache()


def fp8():
    from transformer_engine.common import recipe as R

    recipes = dict(
        bf16=None, delayed=R.DelayedScaling(), tensorwise=R.Float8CurrentScaling(), blockwise=R.Float8BlockScaling()
    )
    for (m, n, k), (name, rc) in itertools.product(
        ((8192, 4096, 4096), (8192, 14336, 4096), (8192, 4096, 14336), (4096, 7168, 2048), (16384, 3584, 3584)),
        recipes.items(),
    ):
        try:
            l = te.Linear(k, n, bias=False, params_dtype=bf, device="cuda")
            x = drawn(m, k).requires_grad_()
            g = drawn(m, n)

            def both():
                with te.fp8_autocast(enabled=rc is not None, fp8_recipe=rc) if rc is not None else torch.enable_grad():
                    y = l(x)
                y.backward(g)
                x.grad = None
                l.weight.grad = None

            tried("te linear both", both, m=m, n=n, k=k, recipe=name)
            prof(both, "te linear kernels", m=m, n=n, k=k, recipe=name)
        except Exception as e:
            row("te linear both", m=m, n=n, k=k, recipe=name, refused=f"{type(e).__name__}: {str(e)[:200]}")
            torch.cuda.empty_cache()
        for g, mm in ((8, 1024), (16, 512)):
            if (m, n, k) != (4096, 7168, 2048):
                continue
            try:
                l = te.GroupedLinear(g, k, n, bias=False, params_dtype=bf, device="cuda")
                x = drawn(g * mm, k).requires_grad_()
                gr = drawn(g * mm, n)

                def both():
                    with (
                        te.fp8_autocast(enabled=rc is not None, fp8_recipe=rc)
                        if rc is not None
                        else torch.enable_grad()
                    ):
                        y = l(x, [mm] * g)
                    y.backward(gr)
                    x.grad = None

                tried("te grouped both", both, groups=g, m=mm, n=n, k=k, recipe=name)
                prof(both, "te grouped kernels", groups=g, m=mm, n=n, k=k, recipe=name)
            except Exception as e:
                row("te grouped both", groups=g, recipe=name, refused=f"{type(e).__name__}: {str(e)[:200]}")


def loss():
    for t, v in itertools.product((4096, 8192, 16384), (32064, 64128, 75968)):
        try:
            from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy

            x = drawn(t, 1, v).requires_grad_()
            y = torch.randint(v, (t, 1), device=D)

            def te_both():
                l = parallel_cross_entropy(x, y)
                l.sum().backward()
                x.grad = None

            prof(te_both, "te cross entropy", tokens=t, vocab=v)
            from megatron.core.fusions.fused_cross_entropy import (
                calculate_logits_max,
                calculate_predicted_logits,
                calculate_cross_entropy_loss,
                calculate_gradients,
            )

            row("native ce present", ok=True)
        except Exception as e:
            row("te cross entropy", tokens=t, vocab=v, refused=f"{type(e).__name__}: {str(e)[:200]}")


def optimizer():
    try:
        from transformer_engine.pytorch.optimizers import FusedAdam

        for n, each in ((20, 50_000_000), (200, 5_000_000), (1000, 500_000)):
            p = [torch.nn.Parameter(torch.randn(each, device=D)) for _ in range(n)]
            for w in p:
                w.grad = torch.randn_like(w)
            o = FusedAdam(p, lr=1e-4, adam_w_mode=True)
            tried("te adam", o.step, tensors=n, each=each, bytes=28 * n * each)
            del p, o
            torch.cuda.empty_cache()
    except Exception as e:
        row("te adam", refused=f"{type(e).__name__}: {str(e)[:200]}")
    try:
        from emerging_optimizers.orthogonalized_optimizers.muon_utils import newton_schulz

        for a, b in ((4096, 4096), (3584, 4096), (14336, 4096), (1024, 3584), (2048, 768), (8192, 8192)):
            g = torch.randn(a, b, device=D)
            tried("newton schulz", lambda: newton_schulz(g, steps=5, coefficient_type="quintic"), a=a, b=b)
            prof(lambda: newton_schulz(g, steps=5, coefficient_type="quintic"), "newton schulz kernels", a=a, b=b)
    except Exception as e:
        row("newton schulz", refused=f"{type(e).__name__}: {str(e)[:200]}")


def experts8():
    """groups as experts have them, all kernels of both passes, gradients of weights added into fp32; and padding"""
    from transformer_engine.common import recipe as R

    recipes = dict(
        bf16=None, blockwise=R.Float8BlockScaling(), tensorwise=R.Float8CurrentScaling(), delayed=R.DelayedScaling()
    )
    shapes = ((16, 2048, 1536, 2048), (16, 2048, 2048, 768), (16, 512, 1536, 2048), (8, 4096, 1536, 2048))
    shapes += ((8, 2048, 4096, 7168), (8, 2048, 7168, 2048), (4, 8192, 896, 3584), (1, 8192, 28672, 4096))
    for (g, m, n, k), (name, rc) in itertools.product(shapes, recipes.items()):
        c = dict(groups=g, m=m, n=n, k=k, recipe=name)
        try:
            l = te.GroupedLinear(g, k, n, bias=False, params_dtype=bf, device="cuda", fuse_wgrad_accumulation=True)
            for p in l.parameters():
                p.main_grad = torch.zeros(p.shape, device=D, dtype=torch.float32)
                p.grad_added_to_main_grad = False
            x, gr, first = drawn(g * m, k).requires_grad_(), drawn(g * m, n), [True]

            def both():
                with te.fp8_autocast(enabled=rc is not None, fp8_recipe=rc) if rc is not None else torch.enable_grad():
                    y = l(x, [m] * g, is_first_microbatch=first[0])
                first[0] = False
                y.backward(gr)
                x.grad = None
                for p in l.parameters():
                    p.grad = None

            both()
            prof(both, "grouped kernels accumulated", **c)
        except Exception as e:
            row("grouped kernels accumulated", **c, refused=f"{type(e).__name__}: {str(e)[:200]}")
            torch.cuda.empty_cache()
    for t, h, g in ((32768, 2048, 16), (16384, 3584, 4), (16384, 7168, 8)):
        pad, back, x = te.Fp8Padding(g), te.Fp8Unpadding(g), drawn(t, h)
        splits = [t // g - 3] * (g - 1) + [t - (t // g - 3) * (g - 1)]
        with torch.no_grad():
            prof(lambda: pad(x, splits), "pad", tokens=t, width=h, groups=g, bytes=4 * t * h)
            y, _ = pad(x, splits)
            prof(lambda: back(y, splits), "unpad", tokens=t, width=h, groups=g, bytes=4 * t * h)


def relu2():
    """squared ReLU times a token's weight, one kernel a pass; every width in a process of its own compiles best"""
    from megatron.core.fusions.fused_weighted_squared_relu import weighted_squared_relu, weighted_squared_relu_back

    for t, h in ((16384, 896), (65536, 896)):
        x, g, p = drawn(t, h), drawn(t, h), torch.rand(t, 1, device=D)
        c = dict(tokens=t, width=h)
        tried("weighted relu2 forward", lambda: weighted_squared_relu(x, p), bytes=2 * 2 * t * h, **c)
        tried("weighted relu2 backward", lambda: weighted_squared_relu_back(g, x, p), bytes=2 * 3 * t * h, **c)


def muon():
    from megatron.core.optimizer.emerging_optimizers import TensorParallelMuon

    for a, b in ((4096, 4096), (1024, 3584), (448, 3584), (3584, 896)):
        p = torch.nn.Parameter(torch.randn(a, b, device=D))
        o, p.grad = TensorParallelMuon([p], lr=1e-3), torch.randn(a, b, device=D)
        prof(o.step, "muon step kernels", a=a, b=b)


def mamba():
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined as comb

    for (heads, dim, state, groups), (b, s) in itertools.product(
        ((28, 64, 64, 4), (64, 64, 128, 4), (128, 64, 128, 8)), ((1, 4096), (4, 4096))
    ):
        try:
            inner = heads * dim
            width = 2 * inner + 2 * groups * state + heads
            zx = drawn(b, s, width).requires_grad_()
            cw = drawn(inner + 2 * groups * state, 4).requires_grad_()
            cb = drawn(inner + 2 * groups * state).requires_grad_()
            dtb = torch.zeros(heads, device=D).requires_grad_()
            a = (-torch.rand(heads, device=D) - 0.5).requires_grad_()
            dd = torch.ones(heads, device=D).requires_grad_()
            nw = torch.ones(inner, device=D, dtype=bf).requires_grad_()
            call = lambda: comb(
                zx,
                cw,
                cb,
                dtb,
                a,
                D=dd,
                chunk_size=128,
                activation="silu",
                headdim=None if dd.dim() == 2 else dim,
                ngroups=groups,
                norm_before_gate=False,
                rmsnorm_weight=nw,
            )
            y = call()
            g = torch.randn_like(y)
            c = dict(heads=heads, dim=dim, state=state, groups=groups, batch=b, seq=s)
            with torch.no_grad():
                tried("mamba2 split", call, **c, **{"pass": "forward"})
                prof(call, "mamba2 kernels", **c, **{"pass": "forward"})
            back = lambda: torch.autograd.grad(y, (zx, cw, cb, dtb, a, dd, nw), g, retain_graph=True)
            tried("mamba2 split", back, **c, **{"pass": "backward"})
            prof(back, "mamba2 kernels", **c, **{"pass": "backward"})
        except Exception as e:
            row("mamba2 split", heads=heads, seq=s, refused=f"{type(e).__name__}: {str(e)[:200]}")


TABLES = (numbers, power, dense, products, te_dense, moe, streams, grouped, fp8, experts8, attention, loss, optimizer)
TABLES += (muon, relu2, mamba)

if __name__ == "__main__":
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.max.sm,power.limit", "--format=csv,noheader"]
    smi = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    row("about", device=torch.cuda.get_device_name(), torch=torch.__version__, smi=smi)
    for table in TABLES:
        if ONLY and table.__name__ not in ONLY:
            continue
        if time.time() - BEGAN > LIMIT:
            row("left out", table=table.__name__)
            continue
        try:
            table()
        except Exception as error:
            row(table.__name__, refused=f"{type(error).__name__}: {str(error)[:300]}")
        torch.cuda.empty_cache()
        with open(OUT, "w") as file:
            json.dump(ROWS, file)
        print(table.__name__, len(ROWS), f"{time.time() - BEGAN:.0f} s", flush=True)
