"""What is shipped."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest


def test_a_source_archive_holds_all_that_is_compiled_in(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("maturin")
    words = [sys.executable, "-m", "maturin", "sdist", "--manifest-path", str(root / "crates/python/Cargo.toml")]
    subprocess.run([*words, "-o", str(tmp_path)], check=True, capture_output=True, cwd=root)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.split("/", 1)[1] for name in tar.getnames()}
    needed = set()
    for source in (root / "crates").glob("*/src/**/*.rs"):
        if f"crates/{source.relative_to(root / 'crates').parts[0]}/Cargo.toml" not in held:
            continue  # Nothing that the package is made of.
        for path in re.findall(r'include_(?:str|bytes)!\(\s*"([^"]+)"', source.read_text()):
            needed.add(str((source.parent / path).resolve().relative_to(root)))
    assert len(needed) > 30
    assert needed <= held, needed - held
    assert not [name for name in held if name.endswith(".so")]
    assert {"python/shardwright/py.typed", "python/shardwright/_native.pyi", "Cargo.lock"} <= held


def test_the_package_is_the_installed_one(root: Path) -> None:
    import shardwright

    folder = Path(shardwright.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_native.pyi").exists() and (folder / "hook.pyi").exists()
    assert list(folder.glob("_native*.so")) or list(folder.glob("_native*.pyd"))
