from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root() -> Path:
    return ROOT


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is written into the clone, and the package is the installed one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDWRIGHT_STORE", str(tmp_path / "store"))
    return tmp_path
