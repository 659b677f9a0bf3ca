"""Measured memory of one rank of an FSDP2 job under torch's fake process group, and facts of the card.

usage: OUT=folder measure_fsdp2.py go     needs one GPU and torch; writes OUT/fsdp_h200.jsonl, the rows of data/truth
"""
import json, os, sys, time, torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
out = os.environ["OUT"] + "/fsdp_h200.jsonl"
G = 2**30
def facts():
    import subprocess
    r = {"kind": "facts", "torch": torch.__version__}
    smi = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total,memory.used,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout.strip()
    r["smi_before"] = smi
    torch.cuda.init(); torch.cuda.set_device(0)
    x = torch.empty(1, device="cuda"); torch.cuda.synchronize()
    p = torch.cuda.get_device_properties(0); free, tot = torch.cuda.mem_get_info()
    r.update(total_memory=p.total_memory, mem_get_info_total=tot, after_context_used=tot - free, reserved=torch.cuda.memory_reserved(), sms=p.multi_processor_count)
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16); b = a @ a; torch.cuda.synchronize()
    free, tot = torch.cuda.mem_get_info(); r["after_cublas_outside"] = tot - free - torch.cuda.memory_reserved()
    c = F.scaled_dot_product_attention(*(torch.randn(1, 8, 1024, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)), is_causal=True); c.sum().backward(); torch.cuda.synchronize()
    free, tot = torch.cuda.mem_get_info(); r["after_attention_outside"] = tot - free - torch.cuda.memory_reserved()
    try:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", RANK="0", WORLD_SIZE="1")
        dist.init_process_group("nccl", rank=0, world_size=1); t = torch.ones(1 << 20, device="cuda"); dist.all_reduce(t); torch.cuda.synchronize()
        free, tot = torch.cuda.mem_get_info(); r["after_nccl_world_outside"] = tot - free - torch.cuda.memory_reserved()
        for i in range(4):
            g = dist.new_group([0]); dist.all_reduce(t, group=g); torch.cuda.synchronize()
            free, tot = torch.cuda.mem_get_info(); r[f"after_nccl_group{i}_outside"] = tot - free - torch.cuda.memory_reserved()
        dist.destroy_process_group()
    except Exception as e: r["nccl_error"] = str(e)[:300]
    return r
class Norm(nn.Module):
    def __init__(s, h): super().__init__(); s.weight = nn.Parameter(torch.ones(h))
    def forward(s, x): return F.rms_norm(x, (x.shape[-1],), s.weight, 1e-5)
def rope(x, cs):
    x_ = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(x_ * cs[None, :, None, :]).flatten(3).type_as(x)
class Attn(nn.Module):
    def __init__(s, c):
        super().__init__(); s.c = c; h, n, k, d = c["hidden"], c["heads"], c["kv_heads"], c["hidden"] // c["heads"]
        s.n, s.k, s.d = n, k, d
        s.wq, s.wk, s.wv, s.wo = (nn.Linear(h, n * d, bias=False), nn.Linear(h, k * d, bias=False), nn.Linear(h, k * d, bias=False), nn.Linear(n * d, h, bias=False))
    def forward(s, x, cs):
        b, t, _ = x.shape
        q, k, v = s.wq(x).view(b, t, s.n, s.d), s.wk(x).view(b, t, s.k, s.d), s.wv(x).view(b, t, s.k, s.d)
        q, k = rope(q, cs), rope(k, cs)
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=s.n != s.k)
        return s.wo(o.transpose(1, 2).contiguous().view(b, t, -1))
class MLP(nn.Module):
    def __init__(s, c): super().__init__(); h, f = c["hidden"], c["ffn"]; s.w1, s.w3, s.w2 = nn.Linear(h, f, bias=False), nn.Linear(h, f, bias=False), nn.Linear(f, h, bias=False)
    def forward(s, x): return s.w2(F.silu(s.w1(x)) * s.w3(x))
class Block(nn.Module):
    def __init__(s, c): super().__init__(); s.n1, s.n2, s.a, s.m = Norm(c["hidden"]), Norm(c["hidden"]), Attn(c), MLP(c)
    def forward(s, x, cs):
        x = x + s.a(s.n1(x), cs); return x + s.m(s.n2(x))
class Model(nn.Module):
    def __init__(s, c):
        super().__init__(); s.c = c; s.tok = nn.Embedding(c["vocab"], c["hidden"]); s.layers = nn.ModuleList(Block(c) for _ in range(c["layers"])); s.norm = Norm(c["hidden"]); s.head = nn.Linear(c["hidden"], c["vocab"], bias=False)
    def forward(s, t):
        x = s.tok(t)
        for l in s.layers: x = l(x, s.cs)
        return s.head(s.norm(x))
def one(c):
    from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    torch.cuda.set_device(0); r = {"kind": "fsdp2", "case": c}
    dist.init_process_group("fake", rank=0, world_size=c["world"], store=FakeStore())
    mesh = init_device_mesh("cuda", (c["world"],))
    def stat(tag):
        torch.cuda.synchronize(); s = torch.cuda.memory_stats()
        r[tag] = dict(alloc=s["allocated_bytes.all.current"], peak=s["allocated_bytes.all.peak"], reserved=s["reserved_bytes.all.current"], reserved_peak=s["reserved_bytes.all.peak"])
    with torch.device("meta"): m = Model(c)
    if c.get("ac") == "full":
        for i in range(len(m.layers)): m.layers[i] = checkpoint_wrapper(m.layers[i], preserve_rng_state=False)
    if c.get("compile"):
        for i in range(len(m.layers)): m.layers[i] = torch.compile(m.layers[i], fullgraph=True)
    mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for i, l in enumerate(m.layers): fully_shard(l, mesh=mesh, mp_policy=mp, reshard_after_forward=c.get("reshard", True) and i < len(m.layers) - 1)
    fully_shard(m, mesh=mesh, mp_policy=mp, reshard_after_forward=c.get("reshard", True))
    m.to_empty(device="cuda")
    with torch.no_grad():
        for p in m.parameters(): p.normal_(std=0.02)
    d = c["hidden"] // c["heads"]; f = 1.0 / (500000 ** (torch.arange(0, d, 2, device="cuda")[: d // 2].float() / d)); t = torch.outer(torch.arange(c["seq"], device="cuda"), f); m.cs = torch.polar(torch.ones_like(t), t)
    stat("model")
    opt = torch.optim.AdamW(m.parameters(), lr=1e-4, fused=True); stat("optimizer")
    saved = {}
    for i in range(3):
        torch.cuda.reset_peak_memory_stats()
        tok = torch.randint(0, c["vocab"], (c["mbs"], c["seq"]), device="cuda")
        def pack(x):
            if isinstance(x, torch.Tensor): saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x
        if i == 2 and not c.get("compile"):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x): o = m(tok)
        else: o = m(tok)
        loss = F.cross_entropy(o.flatten(0, 1).float(), tok.flatten()); del o
        stat(f"fwd{i}"); loss.backward(); del loss; stat(f"bwd{i}")
        opt.step(); opt.zero_grad(); stat(f"opt{i}")
    r["saved_bytes"] = sum(saved.values()); r["torch"] = torch.__version__
    return r
if __name__ == "__main__":
    if sys.argv[1] == "--one": print("RESULT " + json.dumps(one(json.loads(sys.argv[2])) if sys.argv[2] != "facts" else facts())); sys.stdout.flush(); os._exit(0)
    import subprocess
    B = dict(hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256, layers=4, seq=4096, mbs=1, world=8)
    S = dict(B, hidden=2048, ffn=8192, heads=16, kv_heads=16, vocab=32000, layers=6)
    cases = ["facts"] + [json.dumps(x) for x in [B, dict(B, layers=8), dict(B, mbs=2), dict(B, world=64), dict(B, reshard=False), dict(B, ac="full"), dict(B, ac="full", layers=8, seq=8192), dict(B, layers=8, ac="full", reshard=False), S, dict(S, mbs=4), dict(S, reshard=False), dict(S, ac="full"), dict(S, compile=True), dict(B, compile=True)]]
    with open(out, "w") as f:
        for c in cases:
            t0 = time.time(); p = subprocess.run([sys.executable, __file__, "--one", c], capture_output=True, text=True, timeout=150)
            line = next((l[7:] for l in p.stdout.splitlines() if l.startswith("RESULT ")), None)
            f.write((line or json.dumps({"case": c, "error": (p.stderr or p.stdout)[-1200:]})) + "\n"); f.flush()
            print(c[:120], "ok" if line else "ERROR " + p.stderr[-300:], f"{time.time()-t0:.0f}s", flush=True)
