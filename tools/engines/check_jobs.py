"""check_jobs.py CRDS FOLDER: Kubernetes objects below FOLDER against their CRDs, unknown keys refused."""

import contextlib
import functools
import io
import pathlib
import runpy
import sys
import tempfile

import yaml

HERE = pathlib.Path(__file__).resolve().parent
KINDS = {"trainjob.yaml": "trainjobs.yaml", "jobset.yaml": "jobsets.yaml", "rayjob.yaml": "rayjobs.yaml"}

# A CRD is megabytes of YAML, and the check reads it for every object: parsed once by its text.
parse = functools.lru_cache(maxsize=8)(yaml.safe_load)
yaml.safe_load = lambda stream: parse(stream if isinstance(stream, str) else stream.read())


def check(crd, path):
    """Exit status and last line of one check."""
    sys.argv, said = ["check_crd.py", str(crd), str(path)], io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(HERE / "check_crd.py"), run_name="__main__")
        status = 0
    except SystemExit as stop:
        status = stop.code or 0
    except AssertionError as error:
        return 1, str(error)
    return status, said.getvalue().strip().splitlines()[-1]


def main():
    crds, folder, failures = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 0
    for name, crd in KINDS.items():
        paths = sorted(folder.glob(f"*/{name}"))
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
