"""check_jobs.py CRDS FOLDER: Kubernetes objects below FOLDER against their CRDs, unknown keys refused."""

import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
KINDS = {"trainjob.yaml": "trainjobs.yaml", "jobset.yaml": "jobsets.yaml", "rayjob.yaml": "rayjobs.yaml"}


def check(crd, path):
    done = subprocess.run([sys.executable, HERE / "check_crd.py", crd, path], capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1:]


def main():
    crds, failures = pathlib.Path(sys.argv[1]), 0
    for name, crd in KINDS.items():
        paths = sorted(pathlib.Path(sys.argv[2]).glob(f"*/{name}"))
        refused = 0
        for path in paths:
            status, line = check(crds / crd, path)
            if status != 0:
                refused += 1
                print(f"REFUSED {path.parent.name}/{name}: {line}")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as spoilt:
            spoilt.write(paths[0].read_text().replace("\nspec:", "\nspec:\n  noSuchField: 1", 1))
            spoilt.flush()
            status, line = check(crds / crd, spoilt.name)
        failures += refused + (status == 0) + (len(paths) < 30)
        print(f"{name}: {len(paths) - refused} of {len(paths)} accepted; a spoilt one {'refused' if status else 'ACCEPTED'}: {line}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
