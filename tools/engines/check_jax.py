"""check_jax.py FOLDER [LOSSES]: every FOLDER/RECIPE/NAME/table.json on eight forced CPU devices against one device;
checkpoints from one mesh to another; what must be refused. LOSSES gets the unsharded losses by recipe, as JSON."""

import copy
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

DEVICES = "--xla_force_host_platform_device_count=8"
os.environ.update({"XLA_FLAGS": DEVICES, "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"})
STEPS, TOLERANCE, RATE = 5, 1e-5, 3e-3
# The mesh that saves, and the one that goes on.
MOVES = {"data": "data-model4", "data-model": "data-expert-model", "data-model4": "data-expert", "data-expert": "data", "data-expert-model": "data-model"}


def quick(raw: dict) -> dict:
    """Steps large enough to drift apart, a rate that rises and falls within them, a limit that gradients reach."""
    optimizers = {name: {**options, "lr": RATE} for name, options in raw["optimizers"].items()}
    return {**raw, "optimizers": optimizers, "run": {**raw["run"], "steps": STEPS, "warmup_steps": 2, "clip": 0.5}}


def worst(many: list, one: list) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(many, one, strict=True))


class Checks:
    """What held and what did not."""

    def __init__(self):
        self.count = self.wrong = 0

    def tell(self, name: str, is_right: bool, detail: str = "") -> None:
        self.count, self.wrong = self.count + 1, self.wrong + (not is_right)
        print(f"{'ok' if is_right else 'WRONG'} {name}{f': {detail}' if detail else ''}", flush=True)

    def refused(self, name: str, said: str, act) -> None:
        try:
            act()
        except ValueError as refusal:
            return self.tell(f"{name} is refused", said in str(refusal), str(refusal))
        self.tell(f"{name} is refused", False, "it was accepted")


def bits(path) -> dict:
    """Every tensor of a checkpoint as bytes, read from the format alone."""
    found = {}
    for file in pathlib.Path(path).glob("*.safetensors"):
        raw = file.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        for key, entry in json.loads(raw[8 : 8 + length]).items():
            start, stop = entry["data_offsets"]
            found[key] = (entry["dtype"], entry["shape"], raw[8 + length + start : 8 + length + stop])
    return found


def check_restart(checks: Checks, name: str, losses: list, trainer, other, steps: pathlib.Path, tmp: str) -> None:
    """Four steps are two, a checkpoint and two more, bit by bit; on another mesh the state is, and the losses agree.
    Both trainers have gone on since: what a load leaves as it was shows."""
    at = str(steps / "step-00000002")
    for label, where, limit in ((f"{name} again", trainer, 0.0), (f"{name} → another mesh", other, TOLERANCE)):
        done = where.load(at)
        folder = tempfile.mkdtemp(dir=tmp)
        checks.tell(f"{label}: loaded", bits(where.save(folder, done)) == bits(at) and len(bits(at)) > 20)
        apart = worst([where.step(2), where.step(3)], losses[2:4])
        checks.tell(f"{label}: two steps on", apart <= limit, f"worst difference {apart:.1e}")
        if where is trainer:
            checks.tell(f"{label}: state after four steps", bits(where.save(folder, 4)) == bits(steps / "step-00000004"))


def check_refusals(checks: Checks, tables, trainer, raw: dict, at: str, tmp: str) -> None:
    spoilt = copy.deepcopy(raw)
    spoilt["parameters"]["head.weight"] = ["model", "no-such-axis"]
    checks.refused("an axis the mesh does not have", "no-such-axis", lambda: tables.parse(spoilt))
    spoilt = copy.deepcopy(raw)
    spoilt["optimizer_of"]["head.weight"] = "sgd"
    checks.refused("an optimizer the program does not have", "sgd", lambda: tables.parse(spoilt))
    right = trainer.table

    def other(**identity) -> None:
        run = {**raw["run"], "identity": {**raw["run"]["identity"], **identity}}
        trainer.table = tables.parse({**raw, "run": run})
        try:
            trainer.load(at)
        finally:
            trainer.table = right

    checks.refused("another recipe's checkpoint", "its recipe is", lambda: other(recipe="other"))
    checks.refused("another mode's checkpoint", "its mode is none and this run's author_dp", lambda: other(mode="author_dp"))
    checks.refused("a checkpoint with other features", "features", lambda: other(features=["mtp"]))
    cut = f"{tmp}/cut"
    shutil.copytree(at, cut)
    file = next(pathlib.Path(cut).glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-1])
    checks.refused("a checkpoint cut short", "its header speaks of", lambda: trainer.load(cut))


def check_command(checks: Checks, case: pathlib.Path, losses: list, tmp: str) -> None:
    """train.py as it is started: flags come from environment.env, which the program must read before JAX is there;
    a second start goes on from the first one's checkpoint, and two are kept."""
    folder = pathlib.Path(tmp, "launch")
    shutil.copytree(case, folder)
    raw = quick(json.loads((folder / "table.json").read_text()))
    (folder / "table.json").write_text(json.dumps({**raw, "run": {**raw["run"], "keep_last": 2, "save_every": 1}}))
    (folder / "environment.env").write_text(f"XLA_FLAGS='{DEVICES}'\nJAX_PLATFORMS=cpu\n")
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}

    def start(*words: str) -> subprocess.CompletedProcess:
        line = [sys.executable, str(folder / "train.py"), "--table", str(folder / "table.json"), "--framework", "jax",
                "--checkpoints", f"{tmp}/steps", "--losses", f"{tmp}/losses", *words]  # fmt: skip
        return subprocess.run(line, env=environment, capture_output=True, text=True)

    whole = start("--steps", "3")
    checks.tell("train.py sets its flags before JAX is imported", whole.returncode == 0, whole.stderr[-300:] if whole.returncode else "")
    again = start("--steps", "4")
    fourth = json.loads(pathlib.Path(tmp, "losses").read_text()) if again.returncode == 0 else again.stderr[-300:]
    checks.tell("train.py goes on from its newest checkpoint, bit by bit", fourth == losses[3:4], str(fourth))
    kept = sorted(os.listdir(f"{tmp}/steps"))
    checks.tell("two checkpoints are kept", kept == ["step-00000003", "step-00000004"], str(kept))
    early = "import sys, environment, jax\nenvironment.apply('environment.env')"
    late = subprocess.run([sys.executable, "-c", early], cwd=folder, env=environment, capture_output=True, text=True)
    checks.tell("flags that come too late are refused", "imported before" in late.stderr)


def splits(raw):
    """Whether two micro-steps are one: a balancing loss over a microbatch is another loss when there are two."""
    router = (raw["model"]["moe"] or {}).get("router")
    return router is None or router["aux_loss"] is None or router["aux_loss_over"] == "sequence"


def main():
    cases = sorted(pathlib.Path(sys.argv[1]).glob("*/*/table.json"))
    sys.path.insert(0, str(cases[0].parent))  # every case carries the same modules
    import table as tables
    import train

    checks, baselines, trainers, losses = Checks(), {}, {}, {}
    tmp = pathlib.Path(tempfile.mkdtemp())

    def run(name, table, is_sharded):
        """Five steps, with checkpoints after the second and the fourth."""
        trainer, found = train.Trainer(table, train.start(table, "jax", is_sharded)), []
        for step in range(STEPS):
            found.append(trainer.step(step))
            if step in (1, 3):
                trainer.save(str(tmp / name), step + 1)
        return trainer, found

    for path in cases:
        raw = quick(json.loads(path.read_text()))
        table, name = tables.parse(raw), f"{raw['recipe']} {path.parent.name}"
        if raw["recipe"] not in baselines:
            one = baselines[raw["recipe"]] = run(raw["recipe"], table, False)[1]
            checks.tell(f"{raw['recipe']} learns", one[-1] != one[0], f"{one[0]:.6f} → {one[-1]:.6f}")
        trainers[name], losses[name] = run(name, table, True)
        apart = worst(losses[name], baselines[raw["recipe"]])
        checks.tell(f"{name} {table.axes}", apart <= TOLERANCE, f"worst difference {apart:.1e}")
    for name, trainer in trainers.items():
        recipe, mesh = name.split()
        check_restart(checks, name, losses[name], trainer, trainers[f"{recipe} {MOVES[mesh]}"], tmp / name, str(tmp))
    raw = next(raw for raw in (quick(json.loads(path.read_text())) for path in reversed(cases)) if splits(raw))
    raw["batch"] = {**raw["batch"], "microbatches": 2}
    apart = worst(run("micro", tables.parse(raw), False)[1], baselines[raw["recipe"]])
    checks.tell(f"{raw['recipe']} in two micro-steps", apart <= TOLERANCE, f"worst difference {apart:.1e}")
    name, trainer = next(iter(trainers.items()))
    check_refusals(checks, tables, trainer, quick(json.loads(cases[0].read_text())), str(tmp / name / "step-00000002"), str(tmp))
    check_command(checks, cases[0].parent, losses[name], str(tmp))
    shutil.rmtree(tmp)
    if len(sys.argv) > 2:
        pathlib.Path(sys.argv[2]).write_text(json.dumps(baselines))
    print(f"xla-spmd: {checks.count - checks.wrong} of {checks.count} hold under JAX")
    sys.exit(1 if checks.wrong or not cases else 0)


if __name__ == "__main__":
    main()
