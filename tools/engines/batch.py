"""batch.py ENGINE FOLDER [LIMIT]: every case below FOLDER through ENGINE's own parser.

A case is what `emit_matrix` writes. The engine is imported once; each case runs its check in a fork, so that
no case sees what another left behind. Then one case is spoilt on purpose and must be refused. Exits 1 when
the parser refuses an emitted case, accepts the spoilt one, or there are fewer than 30.
"""

import importlib
import json
import os
import pathlib
import runpy
import sys
import tempfile
import time
import warnings

HERE = pathlib.Path(__file__).resolve().parent
LEAST = 30


def megatron(case):
    return {"WORLD_SIZE": case["world"][0]}, case["argv"][1:]


def torchtitan(case):
    words = case["argv"]
    # Every case is parsed, its mesh made and its model configured. A few of the smallest model are built and
    # sharded as well, on the meta device: that takes minutes for large ones.
    model, number = case["at"].name.split(".")[0], int(case["at"].name.split(".")[-1])
    build = "yes" if model == "llama3-8b" and number % 4 < 2 else "no"
    return {"NGPU": case["world"][0], "RANK": "0", "BUILD": build}, words[words.index("--module") :]


def deepspeed(case):
    return {"WORLD_SIZE": case["world"][1]}, ["ds_config.json"]


def maxtext(case):
    words = [word for word in case["argv"] if "=" in word]
    slices = 1
    for word in words:
        key, _, value = word.partition("=")
        if key.startswith("dcn_") and key.endswith("_parallelism"):
            slices *= int(value)
    offline = ["skip_jax_distributed_system=True"]
    # The batch is counted over the devices JAX sees.
    devices = f"--xla_force_host_platform_device_count={case['world'][0]}"
    environment = {"NDEV": case["world"][0], "NSLICES": str(slices), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices}
    return environment, words + offline


def bridge(case):
    module = next(path.stem for path in sorted(case["at"].glob("*.py")))
    return {"WORLD_SIZE": case["world"][0]}, [f"{module}.recipe"]


# How a case is handed over, the check, what is imported once, and what spoils a case.
ENGINES = {
    "megatron": (megatron, "check_megatron.py",
                 ["megatron.training.arguments", "megatron.training.training", "megatron.core.transformer.moe.moe_utils"],
                 ["--no-such-flag", "1"]),
    "torchtitan": (torchtitan, "check_titan.py", ["torchtitan.config", "torchtitan.distributed", "torchtitan.models.llama3"],
                   ["--parallelism.tensor_parallel_degree", "7"]),
    "deepspeed": (deepspeed, "check_ds.py", ["deepspeed", "deepspeed.runtime.config"], None),
    "maxtext": (maxtext, "check_max.py", ["maxtext.configs.pyconfig"], ["no_such_key=1"]),
    "bridge": (bridge, "check_bridge.py",
               ["bridge_boot", "megatron.bridge.recipes.common", "megatron.bridge.models.hybrid.hybrid_provider",
                "megatron.bridge.training.utils.omegaconf_utils"],
               ["model.no_such_key=1"]),
}  # fmt: skip


def read(at):
    return {"at": at, "argv": json.loads((at / "argv.json").read_text()), "env": json.loads((at / "env.json").read_text()),
            "world": (at / "world").read_text().split()}  # fmt: skip


def run(case, engine, extra):
    """Exit status and last line of one check, in a fork."""
    hand_over, script, _, _ = ENGINES[engine]
    environment, words = hand_over(case)
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
            os.environ.update({**case["env"], **environment, "TMPDIR": tempfile.gettempdir()})
            os.chdir(case["at"])
            sys.path.insert(0, str(case["at"]))
            sys.argv = [script, *words, *extra]
            status = 70
            try:
                runpy.run_path(str(HERE / script), run_name="__main__")
                status = 0
            except SystemExit as stop:
                status = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
            except BaseException as error:
                print(type(error).__name__, str(error)[:300])
            sys.stdout.flush()
            os._exit(status)
        _, status = os.waitpid(child, 0)
        log.seek(0)
        lines = log.read().decode(errors="replace").strip().splitlines()
    return os.waitstatus_to_exitcode(status), lines[-1][:300] if lines else ""


def spoilt(case, engine):
    """The exit status of a case that no parser may accept."""
    extra = ENGINES[engine][3]
    if extra is not None:
        return run(case, engine, extra)
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((case["at"] / "ds_config.json").read_text())
        config["train_batch_size"] += 1
        (pathlib.Path(folder) / "ds_config.json").write_text(json.dumps(config))
        return run({**case, "at": pathlib.Path(folder)}, engine, [])


def prepare(engine):
    warnings.filterwarnings("ignore")
    sys.path.insert(0, str(HERE))
    os.environ.update({"DS_ACCELERATOR": "cpu", "JAX_PLATFORMS": "cpu", "LOCAL_RANK": "0", "NO_COLOR": "1"})
    if engine == "torchtitan":
        import torch._utils

        torch._utils._get_available_device_type = lambda: "cpu"  # asked for on import
    for module in ENGINES[engine][2]:
        importlib.import_module(module)


def main():
    engine, folder = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    limit = int(sys.argv[3]) if len(sys.argv) > 3 else 120
    began = time.monotonic()
    everything = sorted(at for at in folder.iterdir() if (at / "argv.json").exists())
    count = min(limit, len(everything))
    chosen = [everything[index * len(everything) // count] for index in range(count)]
    # Whatever the limit: state on the host, for which the optimizer's configuration asserts more.
    offloaded = [at for at in everything if at.name.endswith(".offload")]
    cases = [read(at) for at in chosen + [at for at in offloaded[:2] if at not in chosen]]
    prepare(engine)
    refused = 0
    for case in cases:
        status, line = run(case, engine, [])
        if status != 0:
            refused += 1
            print(f"REFUSED {engine} {case['at'].name} (exit {status}): {line}", flush=True)
        elif "VERBOSE" in os.environ:
            print(f"{time.monotonic() - began:.0f} s {case['at'].name}: {line}", flush=True)
    status, line = spoilt(cases[0], engine) if cases else (0, "no case")
    is_judge = status != 0
    print(f"{engine}: {len(cases) - refused} of {len(cases)} layouts accepted by its parser ({len(everything)} emitted); "
          f"a spoilt one {'refused' if is_judge else 'ACCEPTED'}: {line[:120]}; {time.monotonic() - began:.0f} s")  # fmt: skip
    sys.exit(0 if refused == 0 and is_judge and len(cases) >= LEAST else 1)


if __name__ == "__main__":
    main()
