"""Receipts: a store, and every library that writes them, as it is."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import shardwright as sw

HERE = Path(__file__).parent


def test_a_store_lists_shows_compares_and_drifts(root: Path) -> None:
    kept = root / "data/receipts/h200"
    store = sw.receipts("store")
    assert len(store.list()) == 0 and "0 receipts" in repr(store)
    shown = store.show(str(kept / "nam-tp2-mbs2.json"))
    assert shown.recipe == "nam56r" and shown.state == "finished"
    assert shown.step_seconds is not None and shown.promised_seconds is not None and len(shown.steps) > 1
    unlike = store.compare(str(kept / "nam-tp2-mbs2.json"), str(kept / "llama8b-full.json"))
    assert not unlike.comparable and unlike.layer == "recipe" and len(unlike.table) > 3
    with pytest.raises(sw.Refused, match="no history"):
        store.drift(str(kept / "nam-tp2-mbs2.json"), str(kept / "llama8b-full.json"))
    with pytest.raises(sw.Refused):
        store.show("0000")


Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """Runs of `runs/NAME.py`, each once, in a process of its own as runs are: the file that it wrote."""

    @functools.cache
    def run(name: str, fails: bool) -> Path:
        folder = tmp_path_factory.mktemp(name)
        words = [sys.executable, str(HERE / "runs" / f"{name}.py"), "hook.jsonl", *(["fail"] if fails else [])]
        quiet = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
        done = subprocess.run(words, capture_output=True, text=True, env=quiet, cwd=folder)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return folder / "hook.jsonl"

    return run


@pytest.fixture
def trained(runs: Callable[[str, bool], Path], tmp_path: Path) -> Run:
    """Lines that a run wrote; the file lies here as `hook.jsonl`."""

    def lines(name: str, fails: bool = False) -> list[dict[str, Any]]:
        pytest.importorskip(
            {"loop": "transformers", "hf": "accelerate", "pl": "lightning", "titan": "torchtitan"}[name]
        )
        text = runs(name, fails).read_text()
        (tmp_path / "hook.jsonl").write_text(text)
        return [json.loads(line) for line in text.splitlines()]

    return lines


def recorded(state: str, steps: int) -> sw.Receipt:
    """The receipt of what was written, by the command, and as the package shows it."""
    receipt = sw.receipts("store").record(log="hook.jsonl", recipe="llama3-8b", engine="fsdp2")
    assert receipt.state.split(":")[0] == state and len(receipt.steps) == steps
    show = [sys.executable, "-m", "shardwright", "receipt", "show", receipt.id[:12], "--store", "store"]
    shown = subprocess.run(show, capture_output=True, text=True, check=True)
    assert receipt.id[:12] in shown.stdout
    return receipt


def of(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


def norms(lines: list[dict[str, Any]], kind: str) -> set[str]:
    return {line["path"] for line in of(lines, "tensor") if line["tensor"] == kind and line["norm"] > 0}


ENGINES = {"loop": "torch", "hf": "transformers", "pl": "lightning", "titan": "torchtitan"}


@pytest.mark.parametrize("name", ENGINES)
def test_a_run_becomes_a_receipt(name: str, trained: Run) -> None:
    lines = trained(name)
    assert of(lines, "start")[0]["engine"] == ENGINES[name] and of(lines, "end")[0]["status"] == "finished"
    steps = of(lines, "step")
    assert [step["number"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert all(step["loss"] > 0 and step["grad_norm"] > 0 and step["seconds"] > 0 for step in steps)
    assert steps[-1]["loss"] < steps[0]["loss"], "it learns"
    assert norms(lines, "gradient") >= {"layers.0.attention.qkv.weight", "layers.1.mlp.fc2.weight", "head.weight"}
    assert norms(lines, "activation") >= {"layers.0", "layers.1"}
    assert {line["step"] for line in of(lines, "tensor")} == {1, 2, 4, 6}, "every second one, and the first"
    receipt = recorded("finished", 6)
    assert receipt.first_loss == pytest.approx(steps[0]["loss"])
    assert receipt.last_loss == pytest.approx(steps[-1]["loss"])


@pytest.mark.parametrize("name", ENGINES)
def test_a_run_that_fails_says_so(name: str, trained: Run) -> None:
    lines = trained(name, fails=True)
    failure = of(lines, "event")[-1]
    assert failure["event"] == "failure" and "made to fail" in failure["detail"]
    assert of(lines, "end")[0]["status"] == "failed" and len(of(lines, "end")) == 1
    recorded("failed", len(of(lines, "step")))


@pytest.mark.parametrize("name", ["hf", "pl"])
def test_evaluations_and_checkpoints_are_no_steps(name: str, trained: Run) -> None:
    events = {event["event"] for event in of(trained(name), "event")}
    assert events >= {"evaluation", "checkpoint-saved"}


@pytest.mark.parametrize("name", ["hf", "pl"])
def test_losses_are_those_of_the_step(name: str, trained: Run) -> None:
    """Two batches a step are accumulated there: the loss is theirs together, as the plain loop has it from one batch of
    both, with the same weights and data."""
    losses, plain = ([step["loss"] for step in of(trained(which), "step")] for which in (name, "loop"))
    # Hugging Face's trainer rounds what it logs to four digits.
    assert losses == pytest.approx(plain, rel=2e-3 if name == "hf" else 1e-5)
    norms, plain = ([step["grad_norm"] for step in of(trained(which), "step")] for which in (name, "loop"))
    assert norms == pytest.approx(plain, rel=1e-3)
