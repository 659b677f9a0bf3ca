"""The package and what people write with it, under mypy and pyright."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """
import shardwright as sw

recipe = sw.Recipe.load("nam56r")
case = sw.case(recipe, on="8xH200", tp=2, zero=1, with_=["mtp"], sp=False, headroom="10%")
fit: sw.Fit = case.fit(overload=[1.0, 1.5])
total: int = fit.worst.total_bytes
names: list[str] = [line.line for line in fit.worst.lines]
plan = sw.plan("nam56r", on="8xH200", top=3)
if plan.best is not None:
    seconds: float = plan.best.seconds
launch = plan.case.launch("launch", scheduler="slurm")
rows = sw.sweep("nam56r", "8xH200", over={"tp": [1, 2]}).table.to_dicts()
try:
    case.check()
except sw.ShardwrightError as error:
    rules: list[str] = [finding.rule for finding in error.findings]
ids = sw.receipts("store").list().column("id")
"""

WRONG = """
import shardwright as sw

sw.case("nam56r", on="8xH200", tpp=2)
sw.case("nam56r", on="8xH200", tp="two")
sw.case("nam56r", on="8xH200").fit().fitz
sw.case("nam56r", on="8xH200").fit(overlaod=[1.0])
total: str = sw.case("nam56r", on="8xH200").fit().total_bytes
sw.plan("nam56r", on="8xH200").best.seconds
sw.Recipe.load(7)
sw.plan("nam56r")
sw.case("nam56r").launch(scheduler=3)
"""

pytest.importorskip("mypy")
pytest.importorskip("pyright")


def checked(tool: str, *paths: Path) -> tuple[int, str]:
    flags = ["--strict", "--no-error-summary"] if tool == "mypy" else ["--pythonpath", sys.executable]
    run = subprocess.run([sys.executable, "-m", tool, *flags, *map(str, paths)], capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_right_use_passes_and_every_wrong_one_is_an_error(tool: str, tmp_path: Path) -> None:
    (good := tmp_path / "good.py").write_text(GOOD)
    (wrong := tmp_path / "wrong.py").write_text(WRONG)
    code, said = checked(tool, good)
    assert code == 0, said
    code, said = checked(tool, wrong)
    assert code == 1, said
    lines = {int(number) for number in re.findall(r"wrong\.py:(\d+):(?:\d+ -)? error", said)}
    meant = {number for number, line in enumerate(WRONG.splitlines(), 1) if line and not line.startswith("import")}
    assert lines == meant, said


@pytest.mark.parametrize("tool", ["mypy", "pyright"])
def test_the_package_itself(tool: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    code, said = checked(tool, root / "python/shardwright")
    assert code == 0, said


def test_every_name_that_is_typed_is_there(root: Path) -> None:
    """A stub that promises what is not there, or the other way round, would pass both checkers."""
    from shardwright import _native, hook

    for module, stub in ((_native, "_native.pyi"), (hook, "hook.pyi")):
        text = (root / "python/shardwright" / stub).read_text()
        promised = set(re.findall(r"^(?:def|class) (\w+)|^(\w+):", text, re.M))
        for name in {first or second for first, second in promised}:
            assert hasattr(module, name), name
    methods = re.findall(r"^    def (\w+)", (root / "python/shardwright/hook.pyi").read_text(), re.M)
    assert all(hasattr(hook.Receipt, method) for method in methods)


def test_every_keyword_is_a_flag_of_the_command() -> None:
    from shardwright import _native, _words

    def said(command: str) -> set[str]:
        return set(re.findall(r"--([a-z0-9-]+)", _native.answer([command, "--help"])[2]))

    def flag(key: str) -> str:
        return key.rstrip("_").replace("_", "-")

    groups = (
        ("fit", {*_words.Flags.__annotations__, *_words.FitFlags.__annotations__}),
        ("plan", set(_words.SearchFlags.__annotations__)),
        ("launch", set(_words.LaunchFlags.__annotations__)),
        ("rehearse", set(_words.RehearseFlags.__annotations__)),
    )
    for command, keys in groups:
        missing = {key for key in keys if flag(key) not in said(command)}
        assert not missing, (command, missing)
    named = {*_words.RECIPE, *_words.LAYOUT, *_words.STATE, *_words.BOUNDS}
    assert named == set(_words.Flags.__annotations__)
    # And no layout flag of the command is missing here.
    assert {"sp", "no-sp"} <= said("fit")
    layout = set(re.findall(r"--([a-z0-9-]+)", _native.answer(["mesh", "--help"])[2]))
    besides = {"json", "help", "version", "rank", "order", "no-sp", "crash", "on", "svg", "png"}
    assert layout - besides <= {flag(key) for key in _words.LAYOUT}
