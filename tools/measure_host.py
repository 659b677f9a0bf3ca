"""What the host takes to start one operation, by kind: seconds of the calling thread for forward, and of a backward pass for the autograd engine.

    python3 tools/measure_host.py OUT.json

Needs torch with CUDA. Tensors are tiny, so that the device is never behind. Kinds whose library is absent are named as absent.
"""

import json, os, platform, subprocess, sys, time
import torch
import torch.nn.functional as F

D, bf, ROWS = torch.device("cuda"), torch.bfloat16, []
N = 100


def timed(run, each=N, rounds=15):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        times.append((time.perf_counter() - began) / each)
        torch.cuda.synchronize()
    return sorted(times)[len(times) // 2]


def keep(kind, **figures):
    ROWS.append({"kind": kind, **figures})


def pair(kind, call, x, n=N, **more):
    """Forward of n in a row with a graph, then their backward."""
    try:

        def forward():
            y = x
            for _ in range(n):
                y = call(y)
            return y

        ahead = timed(forward, n)
        with torch.no_grad():
            bare = timed(forward, n)
        times = []
        for _ in range(12):
            y = forward()
            torch.cuda.synchronize()
            g = torch.ones_like(y)
            torch.cuda.synchronize()
            began = time.perf_counter()
            y.backward(g)
            times.append((time.perf_counter() - began) / n)
            torch.cuda.synchronize()
        keep(kind, forward=ahead, no_grad=bare, backward=sorted(times)[len(times) // 2], **more)
    except Exception as error:
        keep(kind, absent=f"{type(error).__name__}: {str(error)[:160]}", **more)


def eager():
    x, y = (torch.randn(64, 64, device=D, dtype=bf, requires_grad=True) for _ in range(2))
    w = torch.randn(64, 64, device=D, dtype=bf, requires_grad=True)
    pair("eager add", lambda t: t + y, x)
    pair("eager mul", lambda t: t * y, x)
    pair("eager mul scalar", lambda t: t * 0.5, x)
    pair("eager silu", F.silu, x)
    pair("eager to float and back", lambda t: t.float().to(bf), x)
    pair("view", lambda t: t.view(64, 64), x)
    pair("transpose", lambda t: t.transpose(0, 1), x)
    pair("contiguous", lambda t: t.transpose(0, 1).contiguous(), x)
    pair("linear", lambda t: F.linear(t, w), x)
    pair("softmax", lambda t: torch.softmax(t, -1), x)
    pair("cat of halves", lambda t: torch.cat((t[:, :32], t[:, 32:]), -1), x)
    pair("index", lambda t, i=torch.randperm(64, device=D): t.index_select(0, i), x)
    pair("rms_norm", lambda t: F.rms_norm(t, (64,)), x)

    class Nothing(torch.nn.Module):
        def forward(self, t):
            return t

    m = Nothing()
    keep("module call", forward=timed(lambda: [m(x) for _ in range(N)]))

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t.view_as(t)

        @staticmethod
        def backward(ctx, g):
            return g

    pair("autograd function", Same.apply, x)
    with torch.no_grad():
        keep("kernel in place", forward=timed(lambda: [x.data.add_(1) for _ in range(N)]))
        keep("empty", forward=timed(lambda: [torch.empty(64, 64, device=D) for _ in range(N)]))
        keep("topk", forward=timed(lambda: [torch.topk(x, 4, -1) for _ in range(N)]))
        keep("sort", forward=timed(lambda: [torch.argsort(x[0]) for _ in range(N)]))
        keep("sum", forward=timed(lambda: [x.sum() for _ in range(N)]))
        keep(
            "scatter",
            forward=timed(
                lambda i=torch.zeros(64, 4, dtype=torch.long, device=D): [
                    torch.zeros(64, 64, device=D).scatter_(1, i, 1.0) for _ in range(N)
                ]
            ),
        )
        keep("item", forward=timed(lambda: [x[0, 0].item() for _ in range(N)]))
        keep("to cpu", forward=timed(lambda: [x[0].to("cpu") for _ in range(N)]))
        pinned = torch.empty(64, dtype=bf, pin_memory=True)
        keep("to pinned, not waiting", forward=timed(lambda: [pinned.copy_(x[0], non_blocking=True) for _ in range(N)]))
        keep("synchronize", forward=timed(lambda: [torch.cuda.synchronize() for _ in range(N)]))
        e = torch.cuda.Event()
        s = torch.cuda.Stream()
        keep("event and wait", forward=timed(lambda: [(e.record(), s.wait_event(e)) for _ in range(N)]))


def transformer_engine():
    import transformer_engine.pytorch as te
    from transformer_engine.common import recipe as R

    x = torch.randn(64, 2, 256, device=D, dtype=bf, requires_grad=True)
    linear = te.Linear(256, 256, bias=False, params_dtype=bf, device="cuda")
    pair("te linear", linear, x, 50)
    pair("te linear with bias", te.Linear(256, 256, bias=True, params_dtype=bf, device="cuda"), x, 50)
    pair(
        "te layernorm linear",
        te.LayerNormLinear(256, 256, bias=False, normalization="RMSNorm", params_dtype=bf, device="cuda"),
        x,
        50,
    )
    pair("te rmsnorm", te.RMSNorm(256, params_dtype=bf, device="cuda"), x, 50)
    pair("te layernorm", te.LayerNorm(256, params_dtype=bf, device="cuda"), x, 50)
    attention = te.DotProductAttention(4, 64, attention_dropout=0.0, qkv_format="sbhd", attn_mask_type="causal").cuda()

    def attend(t):
        q = t.view(64, 2, 4, 64)
        return attention(q, q, q).view(64, 2, 256)

    pair("te attention", attend, x, 50)
    for groups in (2, 4, 8, 16, 32, 64):
        grouped = te.GroupedLinear(groups, 256, 256, bias=False, params_dtype=bf, device="cuda")
        rows = torch.randn(groups * 16, 256, device=D, dtype=bf, requires_grad=True)
        pair("te grouped linear", lambda t: grouped(t, [16] * groups), rows, 8, groups=groups)
    for name, recipe in (
        ("delayed", R.DelayedScaling()),
        ("tensorwise", R.Float8CurrentScaling()),
        ("blockwise", R.Float8BlockScaling()),
    ):
        wide = torch.randn(256, 1, 256, device=D, dtype=bf, requires_grad=True)

        def scaled(t):
            with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
                return linear(t)

        pair("te linear fp8", scaled, wide, 30, recipe=name)
        for groups in (8, 16):
            grouped = te.GroupedLinear(groups, 256, 256, bias=False, params_dtype=bf, device="cuda")
            rows = torch.randn(groups * 128, 256, device=D, dtype=bf, requires_grad=True)

            def many(t):
                with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
                    return grouped(t, [128] * groups)

            pair("te grouped linear fp8", many, rows, 4, groups=groups, recipe=name)
    from transformer_engine.pytorch.optimizers import FusedAdam

    for tensors in (100, 400, 1600):
        weights = [torch.nn.Parameter(torch.randn(1024, device=D)) for _ in range(tensors)]
        for w in weights:
            w.grad = torch.randn_like(w)
        step = FusedAdam(weights, lr=1e-4)
        keep("te adam, a tensor", forward=timed(step.step, tensors), tensors=tensors)


def muon():
    from megatron.core.optimizer.emerging_optimizers import TensorParallelMuon

    for matrices in (50, 200):
        weights = [torch.nn.Parameter(torch.randn(64, 64, device=D)) for _ in range(matrices)]
        for w in weights:
            w.grad = torch.randn_like(w)
        step = TensorParallelMuon(weights, lr=1e-3)
        keep("muon, a matrix", forward=timed(step.step, matrices), matrices=matrices)


def compiled():
    from megatron.core.fusions.fused_bias_swiglu import bias_swiglu_impl, weighted_bias_swiglu_impl
    from megatron.core.fusions.fused_bias_dropout import bias_dropout_add_fused_train

    x = torch.randn(64, 2, 512, device=D, dtype=bf, requires_grad=True)
    pair("megatron swiglu", lambda t: torch.cat((bias_swiglu_impl(t, None),) * 2, -1), x, 50)
    r = torch.randn(64, 2, 512, device=D, dtype=bf, requires_grad=True)
    pair("megatron dropout add", lambda t: bias_dropout_add_fused_train((t, None), r, 0.0), x, 50)


def triton_launch():
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(x, y, n, B: tl.constexpr):
        i = tl.arange(0, B)
        tl.store(y + i, tl.load(x + i) + n)

    x = torch.randn(64, device=D)
    y = torch.empty_like(x)
    keep("triton launch", forward=timed(lambda: [kernel[(1,)](x, y, 1.0, B=64) for _ in range(N)]))


def mamba():
    from mamba_ssm.ops.triton.ssd_combined import mamba_split_conv1d_scan_combined as combined

    heads, dim, state, groups, b, s = 4, 64, 64, 1, 1, 128
    inner = heads * dim
    width = 2 * inner + 2 * groups * state + heads
    x = torch.randn(b, s, width, device=D, dtype=bf, requires_grad=True)
    cw, cb = (
        torch.randn(*shape, device=D, dtype=bf, requires_grad=True)
        for shape in ((inner + 2 * groups * state, 4), (inner + 2 * groups * state,))
    )
    bias, a, d = (
        torch.zeros(heads, device=D, requires_grad=True),
        (-torch.rand(heads, device=D) - 0.5).requires_grad_(),
        torch.ones(heads, device=D, requires_grad=True),
    )
    call = lambda t: F.pad(
        combined(
            t,
            cw,
            cb,
            bias,
            a,
            D=d,
            chunk_size=128,
            activation="silu",
            headdim=dim,
            ngroups=groups,
            norm_before_gate=False,
        ),
        (0, width - inner),
    )
    pair("mamba2 split scan", call, x, 10)
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined as scan

    q = torch.randn(b, s, heads, dim, device=D, dtype=bf, requires_grad=True)
    bb, cc = (torch.randn(b, s, groups, state, device=D, dtype=bf, requires_grad=True) for _ in range(2))
    dt = torch.randn(b, s, heads, device=D, dtype=bf, requires_grad=True)
    pair("mamba2 chunk scan", lambda t: scan(t, dt, a, bb, cc, 128, D=d, dt_bias=bias, dt_softplus=True), q, 10)
    from causal_conv1d import causal_conv1d_fn

    u = torch.randn(1, 256, 128, device=D, dtype=bf, requires_grad=True)
    w = torch.randn(256, 4, device=D, dtype=bf, requires_grad=True)
    pair("causal conv1d", lambda t: causal_conv1d_fn(t, w, None, activation="silu"), u, 50)


def collectives(backend):
    import torch.distributed as dist

    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
        n = 8
    else:
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29533")
        dist.init_process_group("nccl", rank=0, world_size=1)
        n = 1
    x, big = torch.randn(256, device=D), torch.randn(256 * n, device=D)
    keep("all reduce", backend=backend, forward=timed(lambda: [dist.all_reduce(x) for _ in range(N)]))
    keep("all gather", backend=backend, forward=timed(lambda: [dist.all_gather_into_tensor(big, x) for _ in range(N)]))
    keep(
        "reduce scatter", backend=backend, forward=timed(lambda: [dist.reduce_scatter_tensor(x, big) for _ in range(N)])
    )
    keep(
        "all to all",
        backend=backend,
        forward=timed(lambda: [dist.all_to_all_single(big, big.clone(), [256] * n, [256] * n) for _ in range(N)]),
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    cpu = subprocess.run("lscpu", shell=True, capture_output=True, text=True).stdout
    keep(
        "about",
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
        python=platform.python_version(),
        cpu=[
            line
            for line in cpu.splitlines()
            if any(w in line for w in ("Model name", "MHz", "Hypervisor", "CPU(s):", "L3"))
        ],
    )
    began = time.perf_counter()
    n = 0
    for i in range(3_000_000):
        n += i & 7
    keep("python loop", forward=(time.perf_counter() - began) / 3_000_000)
    for part in (
        eager,
        transformer_engine,
        muon,
        compiled,
        triton_launch,
        mamba,
        lambda: collectives("fake"),
        lambda: collectives("nccl"),
    ):
        try:
            part()
        except Exception as error:
            keep(getattr(part, "__name__", "?"), absent=f"{type(error).__name__}: {str(error)[:200]}")
        json.dump(ROWS, open(sys.argv[1], "w"), indent=0)
    for r in ROWS:
        print({k: (round(v * 1e6, 2) if isinstance(v, float) else v) for k, v in r.items()}, flush=True)
