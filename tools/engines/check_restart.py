"""check_restart.py CASE: an emitted FSDP2 launch of four ranks under torchrun, on a token file: a run that is asked to
end (SIGTERM) saves, and the next start goes on to the losses of a run that was never interrupted, bit by bit."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import numpy as np

STEPS, PATIENCE = 24, 300


def start(folder: pathlib.Path, *words: str) -> subprocess.Popen:
    line = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
            str(folder / "train.py"), "--plan", str(folder / "sharding.json"), "--device", "cpu", *words]  # fmt: skip
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def losses(path: pathlib.Path) -> list:
    return json.loads(path.read_text()) if path.exists() else []


def main():
    failed = 0

    def tell(name, is_right, detail=""):
        nonlocal failed
        failed += not is_right
        print(f"{'ok' if is_right else 'WRONG'} {name}{f': {detail}' if detail else ''}", flush=True)

    with tempfile.TemporaryDirectory() as tmp:
        tmp = pathlib.Path(tmp)
        folder = tmp / "launch"
        shutil.copytree(sys.argv[1], folder)
        raw = json.loads((folder / "sharding.json").read_text())
        np.random.default_rng(0).integers(raw["model"]["vocab"], size=2000).astype("<u2").tofile(tmp / "tokens.u16")
        run = {"data": [str(tmp / "tokens.u16")], "checkpoints": str(tmp / "steps"), "save_every": 3, "keep_last": 2, "steps": STEPS, "log_every": 1}
        (folder / "sharding.json").write_text(json.dumps({**raw, "run": {**raw["run"], **run}}))

        whole = start(folder, "--checkpoints", str(tmp / "whole"), "--losses", str(tmp / "whole.json"))
        _, said = whole.communicate(timeout=PATIENCE)
        expected = losses(tmp / "whole.json")
        tell("a run of its own", whole.returncode == 0 and len(expected) == STEPS, said[-400:] if whole.returncode else f"{expected[0]:.6f} → {expected[-1]:.6f}")

        ended = start(folder, "--losses", str(tmp / "first.json"))
        for line in ended.stdout:
            if line.startswith("step 5 "):
                ended.send_signal(signal.SIGTERM)
        ended.wait(PATIENCE)
        kept = sorted(os.listdir(tmp / "steps"))
        first = losses(tmp / "first.json")
        is_saved = kept and kept[-1] == f"step-{len(first):08d}" and 5 <= len(first) < STEPS
        tell("asked to end, it saves and says so", is_saved and ended.returncode != 0, f"exit {ended.returncode}, {kept}")
        tell("two checkpoints are kept, nothing half-written", len(kept) == 2, str(kept))

        rest = start(folder, "--losses", str(tmp / "rest.json"))
        out, said = rest.communicate(timeout=PATIENCE)
        tell("the next start goes on, bit by bit", first + losses(tmp / "rest.json") == expected, out.splitlines()[0] if out else said[-400:])

        sys.path.insert(0, str(folder))
        import folder as folders

        for name, asked, said in (("over", "none", "later checkpoints"), ("from an earlier one", str(min((tmp / "steps").iterdir())), "later checkpoints"), ("from nowhere", str(tmp), "no finished")):
            try:
                folders.find(str(tmp / "steps"), asked)
                tell(f"starting {name} is refused", False)
            except folders.CheckpointError as refusal:
                tell(f"starting {name} is refused", said in str(refusal), str(refusal).replace(str(tmp), "…"))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
