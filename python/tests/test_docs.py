"""What the documentation shows, run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest


def test_every_snippet_runs(root: Path) -> None:
    text = (root / "docs/python.md").read_text()
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(snippets) == text.count("```python") >= 5
    names: dict[str, Any] = {}
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"docs/python.md, snippet {number}", "exec"), names)
    assert names["fit"].fits and names["run"].last_loss == pytest.approx(1 / 3)
    assert (Path("launch") / "job.sbatch").exists()


def test_the_first_hour_runs(root: Path) -> None:
    text = (root / "docs/first-hour.md").read_text()
    (snippet,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    names: dict[str, Any] = {}
    exec(compile(snippet, "docs/first-hour.md", "exec"), names)
    assert names["plan"].case.fit().fits


def test_every_module_and_name_that_is_written_about_is_there(root: Path) -> None:
    text = (root / "docs/python.md").read_text()
    for module, name in re.findall(r"shardwright\.callbacks\.(\w+)\.(\w+)\(", text):
        source = (root / "python/shardwright/callbacks" / f"{module}.py").read_text()
        assert re.search(rf"^(class|def) {name}\b", source, re.M), (module, name)
    import shardwright as sw

    methods = re.findall(r"`(\w+)\((?:\w+)?\)`", text)
    assert len(methods) >= 9 and all(hasattr(sw.Case, method) for method in methods), methods
    doc = sw.__doc__ or ""
    names = {"sw": sw}
    lines = [line[4:] for line in doc.splitlines() if line.startswith("    ")]
    exec("\n".join(lines), names)


def test_the_notebook_runs_and_draws(root: Path, tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    preprocessors = pytest.importorskip("nbconvert.preprocessors")
    pytest.importorskip("ipykernel")
    path = root / "docs/notebooks/first_hour.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells), (
        "outputs stay out of git"
    )
    preprocessors.ExecutePreprocessor(timeout=600, kernel_name="python3").preprocess(
        notebook, {"metadata": {"path": str(tmp_path)}}
    )
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output["output_type"] == "error"]
    drawn = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(drawn) >= 7
    assert any("<svg" in text for text in drawn), "the memory bars are drawn"
    assert "job.sbatch" in json.dumps(notebook)
