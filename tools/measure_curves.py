"""What one GPU reaches, by shape: the curves under data/hardware/curves.

    python3 tools/measure_curves.py OUT_FOLDER [--brief]

Needs torch with CUDA. Each figure is the median of repeated runs timed by CUDA events on random data, after warming up,
with the card at its own clocks; a run lasts long enough that the card settles at the power it sustains. Kernels that are
not torch's own (mamba_ssm's scans, xma's m2rnn) are measured when they can be imported, and named as absent when not.
One JSON file a table, each row: the shape, seconds, and what ran.
"""

import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F

BRIEF = "--brief" in sys.argv
OUT = next(word for word in sys.argv[1:] if not word.startswith("--"))
DEVICE = torch.device("cuda")
LEFT_OUT = []


def seconds(run, budget=0.06, most=200):
    """Median seconds of one run; as many as fit the budget, at least three."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    once = max(start.elapsed_time(end) / 1e3, 2e-6)
    group = max(1, int(2e-3 / once))
    rounds = int(max(3, min(most, budget / (once * group))))
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(group):
            run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / group)
    return statistics.median(times)


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32 if dtype.itemsize < 2 else dtype).to(dtype)


def keep(name, rows):
    with open(os.path.join(OUT, name + ".json"), "w") as file:
        json.dump(rows, file)
    print(name, len(rows), f"{time.time() - BEGAN:.0f}s", flush=True)


def tried(rows, row, run, **more):
    try:
        rows.append({**row, "seconds": seconds(run, **more)})
    except Exception as error:  # a shape a kernel refuses is a fact too
        rows.append({**row, "refused": f"{type(error).__name__}: {str(error)[:120]}"})
        torch.cuda.empty_cache()


def products():
    """y = x wᵀ as a linear layer calls it, and the two products of its backward."""
    rows = []
    tokens = [128, 512, 1024, 2048, 4096, 8192, 16384, 32768]
    widths = [256, 512, 1024, 1536, 2048, 3584, 4096, 7168, 8192, 12288, 16384, 28672]
    if BRIEF:
        tokens, widths = [1024, 8192], [1024, 4096, 8192]
    for m, n, k in itertools.product(tokens, widths, widths):
        if m * n * k > 2**43 or m * n > 2**31 or (n > 8192 and k > 8192):
            continue
        x, w, dy = random(m, k), random(n, k), random(m, n)
        shape = {"format": "bf16", "m": m, "n": n, "k": k}
        tried(rows, {**shape, "pass": "forward"}, lambda: torch.mm(x, w.t()), budget=0.02)
        if n in (1024, 4096, 8192, 28672) or k in (1024, 4096, 8192):
            tried(rows, {**shape, "pass": "input"}, lambda: torch.mm(dy, w), budget=0.02)
            tried(rows, {**shape, "pass": "weight"}, lambda: torch.mm(dy.t(), x), budget=0.02)
        del x, w, dy
    keep("products_bf16", rows)


def products_odd():
    """Widths that are no multiple of a tile, as vocabularies and uneven splits make them."""
    rows = []
    for m, n, k in itertools.product([4096, 8192], [2304, 3968, 4000, 4104, 5120, 6272, 10240, 18944, 32064, 50304, 65536], [896, 1792, 3584, 4096]):
        x, w = random(m, k), random(n, k)
        tried(rows, {"format": "bf16", "m": m, "n": n, "k": k, "pass": "forward"}, lambda: torch.mm(x, w.t()), budget=0.02)
    keep("products_odd", rows)


def products_fp8():
    rows = []
    one = torch.ones((), device=DEVICE)
    for m, n, k in itertools.product([1024, 2048, 4096, 8192, 16384, 32768], [1024, 2048, 4096, 8192, 16384, 28672], [1024, 2048, 4096, 8192, 16384]):
        if m * n * k > 2**42 or (n > 8192 and k > 8192):
            continue
        x, w = random(m, k, dtype=torch.float8_e4m3fn), random(n, k, dtype=torch.float8_e4m3fn)
        run = lambda: torch._scaled_mm(x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
        tried(rows, {"format": "fp8", "m": m, "n": n, "k": k, "pass": "forward"}, run, budget=0.02)
    for m, k in itertools.product([4096, 16384], [4096, 8192, 16384]):
        x = random(m, k)
        cast = lambda: (x * (448.0 / x.abs().amax().float())).to(torch.float8_e4m3fn)
        tried(rows, {"what": "cast, eager", "m": m, "k": k}, cast)
    keep("products_fp8", rows)


def grouped():
    rows = []
    for experts, tokens, n, k in itertools.product([2, 4, 8, 16, 32, 64], [64, 256, 1024, 4096], [896, 1792, 2048, 4096], [2048, 3584, 7168]):
        if experts * tokens > 131072:
            continue
        x, w = random(experts * tokens, k), random(experts, n, k)
        ends = torch.arange(1, experts + 1, device=DEVICE, dtype=torch.int32) * tokens
        shape = {"format": "bf16", "experts": experts, "m": tokens, "n": n, "k": k}
        tried(rows, {**shape, "what": "grouped"}, lambda: torch._grouped_mm(x, w.transpose(-2, -1), offs=ends), budget=0.02)
        parts = list(x.split(tokens))
        tried(rows, {**shape, "what": "one after another"}, lambda: [torch.mm(p, w[i].t()) for i, p in enumerate(parts)], budget=0.02)
    keep("grouped", rows)


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    rows = []
    backends = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    shapes = [(8, 8, 128, 128), (32, 8, 128, 128), (32, 32, 128, 128), (16, 16, 64, 64), (56, 8, 64, 64), (16, 16, 192, 128), (4, 1, 128, 128), (8, 2, 256, 256)]
    for (name, backend), (heads, kv, dim, v_dim), sequence in itertools.product(backends.items(), shapes, [1024, 2048, 4096, 8192, 16384, 32768]):
        batch = max(1, 16384 // sequence)
        if name == "flash" and dim != v_dim:
            continue
        q = random(batch, heads, sequence, dim).requires_grad_()
        k = random(batch, kv, sequence, dim).requires_grad_()
        v = random(batch, kv, sequence, v_dim).requires_grad_()
        row = {"kernel": name, "batch": batch, "heads": heads, "kv_heads": kv, "dim": dim, "v_dim": v_dim, "sequence": sequence, "causal": True}

        def call():
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=kv != heads)

        try:
            y = call()
        except Exception as error:
            rows.append({**row, "refused": f"{type(error).__name__}: {str(error)[:120]}"})
            continue
        with torch.no_grad():
            tried(rows, {**row, "pass": "forward"}, call, budget=0.03)
        dy = torch.randn_like(y)
        tried(rows, {**row, "pass": "backward"}, lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), budget=0.03)
    keep("attention", rows)


def streams():
    """What elementwise work reaches of the memory's rate, by size."""
    rows = []
    rms = torch.compile(lambda x, w: F.rms_norm(x, (x.shape[-1],), w))
    swiglu = torch.compile(lambda x: F.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :])
    for tokens, width in itertools.product([256, 1024, 4096, 16384, 65536], [1024, 4096, 8192]):
        x, y, w = random(tokens, width), random(tokens, width), random(width)
        size = x.nbytes
        shape = {"tokens": tokens, "width": width}
        tried(rows, {**shape, "what": "copy", "bytes": 2 * size}, lambda: y.copy_(x))
        tried(rows, {**shape, "what": "add", "bytes": 3 * size}, lambda: x + y)
        tried(rows, {**shape, "what": "rmsnorm eager", "bytes": 2 * size}, lambda: F.rms_norm(x, (width,), w))
        tried(rows, {**shape, "what": "rmsnorm compiled", "bytes": 2 * size}, lambda: rms(x, w))
        tried(rows, {**shape, "what": "swiglu eager", "bytes": 1.5 * size}, lambda: F.silu(x[:, : width // 2]) * x[:, width // 2 :])
        tried(rows, {**shape, "what": "swiglu compiled", "bytes": 1.5 * size}, lambda: swiglu(x))
        tried(rows, {**shape, "what": "softmax", "bytes": 2 * size}, lambda: torch.softmax(x, -1))
        tried(rows, {**shape, "what": "gather rows", "bytes": 2 * size}, lambda index=torch.randperm(tokens, device=DEVICE): x[index])
    for tokens, vocabulary in itertools.product([2048, 8192], [32000, 65536, 128256]):
        logits = random(tokens, vocabulary).requires_grad_()
        target = torch.randint(vocabulary, (tokens,), device=DEVICE)
        both = lambda: torch.autograd.grad(F.cross_entropy(logits.float(), target), logits)
        tried(rows, {"what": "cross entropy in fp32, eager, both ways", "tokens": tokens, "vocabulary": vocabulary}, both)
        compiled = torch.compile(lambda l, t: F.cross_entropy(l.float(), t))
        tried(rows, {"what": "cross entropy in fp32, compiled, both ways", "tokens": tokens, "vocabulary": vocabulary}, lambda: torch.autograd.grad(compiled(logits, target), logits))
        del logits
    for millions in [10, 100, 1000]:
        weights = [torch.nn.Parameter(random(millions * 100_000, dtype=torch.float32)) for _ in range(10)]
        for w in weights:
            w.grad = torch.randn_like(w)
        step = torch.optim.AdamW(weights, fused=True)
        tried(rows, {"what": "fused AdamW, fp32 weights, gradients and moments", "elements": millions * 1_000_000, "bytes": millions * 28e6}, step.step)
        del weights, step
        torch.cuda.empty_cache()
    keep("streams", rows)


def launches():
    """Host time of one small kernel, eager and replayed from a graph, and of one small layer."""
    rows = []
    x = random(64, 64)

    def hundred():
        for _ in range(100):
            x.add_(1)

    hundred()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(50):
        hundred()
    host = (time.perf_counter() - began) / 5000
    torch.cuda.synchronize()
    rows.append({"what": "small kernel, eager, host seconds", "seconds": host})
    rows.append({"what": "small kernel, eager", "seconds": seconds(hundred) / 100})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hundred()
    rows.append({"what": "small kernel, graph", "seconds": seconds(graph.replay) / 100})
    linear = torch.nn.Linear(64, 64, device=DEVICE, dtype=torch.bfloat16)

    def layer():
        y = x
        for _ in range(10):
            y = F.rms_norm(F.silu(linear(y)), (64,))
        y.sum().backward()

    rows.append({"what": "linear, silu, norm, forward and backward of ten, eager, each", "seconds": seconds(layer) / 10})
    keep("launches", rows)


def host():
    rows = []
    for megabytes in [1, 16, 256, 1024]:
        here, there = torch.empty(megabytes << 20, dtype=torch.uint8).pin_memory(), torch.empty(megabytes << 20, dtype=torch.uint8, device=DEVICE)
        tried(rows, {"what": "host to device, pinned", "bytes": megabytes << 20}, lambda: there.copy_(here, non_blocking=True))
        tried(rows, {"what": "device to host, pinned", "bytes": megabytes << 20}, lambda: here.copy_(there, non_blocking=True))
    keep("host", rows)


def scans():
    rows = []
    try:
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as scan
    except Exception as error:
        LEFT_OUT.append(f"mamba_ssm: {error}")
        return
    for (heads, dim, state, groups), (batch, sequence), chunk in itertools.product(
        [(56, 64, 64, 8), (28, 64, 64, 4), (128, 64, 128, 8), (64, 64, 128, 8), (16, 64, 128, 1), (80, 64, 128, 1)],
        [(1, 2048), (1, 4096), (1, 8192), (4, 4096), (1, 32768)],
        [128, 256],
    ):
        x = random(batch, sequence, heads, dim).requires_grad_()
        dt = random(batch, sequence, heads).requires_grad_()
        a = (-torch.rand(heads, device=DEVICE) - 0.5).requires_grad_()
        b = random(batch, sequence, groups, state).requires_grad_()
        c = random(batch, sequence, groups, state).requires_grad_()
        d = torch.ones(heads, device=DEVICE).requires_grad_()
        bias = torch.zeros(heads, device=DEVICE).requires_grad_()
        row = {"kernel": "mamba2", "batch": batch, "sequence": sequence, "heads": heads, "dim": dim, "state": state, "groups": groups, "chunk": chunk}
        call = lambda: scan(x, dt, a, b, c, chunk, D=d, dt_bias=bias, dt_softplus=True)
        try:
            y = call()
        except Exception as error:
            rows.append({**row, "refused": f"{type(error).__name__}: {str(error)[:120]}"})
            continue
        with torch.no_grad():
            tried(rows, {**row, "pass": "forward"}, call)
        dy = torch.randn_like(y)
        tried(rows, {**row, "pass": "backward"}, lambda: torch.autograd.grad(y, (x, dt, a, b, c, d, bias), dy, retain_graph=True))
        width = heads * dim + 2 * groups * state
        u, w = random(batch, width, sequence).requires_grad_(), random(width, 1, 4).requires_grad_()
        conv = lambda: F.silu(F.conv1d(u, w, padding=3, groups=width)[..., :sequence])
        with torch.no_grad():
            tried(rows, {**row, "kernel": "conv, torch", "pass": "forward", "width": width}, conv)
    keep("mamba2", rows)


def mamba3():
    rows = []
    try:
        from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined as scan
    except Exception as error:
        LEFT_OUT.append(f"mamba3: {error}")
        return
    for (heads, dim, state, groups), (batch, sequence) in itertools.product([(56, 64, 64, 8), (56, 64, 128, 1)], [(1, 4096), (4, 4096)]):
        q, k = (random(batch, sequence, groups, state).requires_grad_() for _ in range(2))
        v = random(batch, sequence, heads, dim).requires_grad_()
        adt = (-torch.rand(batch, heads, sequence, device=DEVICE)).requires_grad_()
        dt = torch.rand(batch, heads, sequence, device=DEVICE).requires_grad_()
        trap = torch.rand(batch, heads, sequence, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
        qb, kb = (random(heads, state).requires_grad_() for _ in range(2))
        angles = random(batch, sequence, heads, state // 2).float().requires_grad_()
        row = {"kernel": "mamba3", "batch": batch, "sequence": sequence, "heads": heads, "dim": dim, "state": state, "groups": groups, "chunk": 64}
        call = lambda: scan(q, k, v, adt, dt, trap, qb, kb, angles, chunk_size=64)
        try:
            y = call()
        except Exception as error:
            rows.append({**row, "refused": f"{type(error).__name__}: {str(error)[:200]}"})
            continue
        with torch.no_grad():
            tried(rows, {**row, "pass": "forward"}, call)
        dy = torch.randn_like(y)
        tried(rows, {**row, "pass": "backward"}, lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True))
    keep("mamba3", rows)


def recurrences():
    rows = []
    try:
        from xma.layers.m2rnn.op import m2rnn
    except Exception as error:
        LEFT_OUT.append(f"xma: {error}")
        return
    for heads, (key, value), (batch, sequence) in itertools.product([28, 56], [(64, 16)], [(1, 2048), (1, 4096), (4, 4096)]):
        q, k = (random(batch, sequence, heads, key).requires_grad_() for _ in range(2))
        v = random(batch, sequence, heads, value).requires_grad_()
        w = random(heads, value, value).requires_grad_()
        f = torch.rand(batch, sequence, heads, device=DEVICE, dtype=torch.bfloat16).requires_grad_()
        row = {"kernel": "m2rnn", "batch": batch, "sequence": sequence, "heads": heads, "key": key, "value": value}
        call = lambda: m2rnn(q, k, v, w, f)[0]
        try:
            y = call()
        except Exception as error:
            rows.append({**row, "refused": f"{type(error).__name__}: {str(error)[:200]}"})
            continue
        with torch.no_grad():
            tried(rows, {**row, "pass": "forward"}, call)
        dy = torch.randn_like(y)
        tried(rows, {**row, "pass": "backward"}, lambda: torch.autograd.grad(y, (q, k, v, w, f), dy, retain_graph=True))
    keep("m2rnn", rows)


def about():
    properties = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem,power.limit", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True).stdout.strip()
    keep("about", [{"device": properties.name, "multiprocessors": properties.multi_processor_count, "l2": properties.L2_cache_size,
                    "driver": driver, "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(),
                    "python": platform.python_version(), "left_out": LEFT_OUT}])


BEGAN = time.time()
if __name__ == "__main__":
    os.makedirs(OUT, exist_ok=True)
    only = os.environ.get("ONLY", "").split(",") if os.environ.get("ONLY") else None
    for table in (launches, streams, attention, scans, recurrences, mamba3, grouped, products_fp8, products_odd, products, host, about):
        if only is None or table.__name__ in only:
            try:
                table()
            except Exception as error:
                LEFT_OUT.append(f"{table.__name__}: {type(error).__name__}: {error}")
                print(LEFT_OUT[-1], flush=True)
                torch.cuda.empty_cache()
