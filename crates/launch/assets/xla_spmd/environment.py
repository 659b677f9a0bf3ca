"""Variables that a framework reads once, when it is imported: libtpu's and XLA's flags among them.

`launch.sh` exports what `environment.env` says; a run that is started without it gets the same from here.
"""

from __future__ import annotations

import os
import shlex
import sys

FRAMEWORKS = ("jax", "jaxlib", "torch", "torch_xla")


def apply(path: str) -> list[str]:
    """Sets what the file says and the caller has not set; gives the names. Too late once a framework is there."""
    if loaded := [name for name in FRAMEWORKS if name in sys.modules]:
        raise RuntimeError(f"{', '.join(loaded)} imported before `{path}` was read: their flags would not be heard")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        pairs = [word.partition("=") for word in shlex.split(file.read())]
    fresh = [(name, value) for name, _, value in pairs if name not in os.environ]
    os.environ.update(fresh)
    return [name for name, _ in fresh]
