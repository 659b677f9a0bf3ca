"""Threads, signals, progress, forks and panics."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import shardwright as sw
from shardwright import _native

LONG = ("plan", "deepseek-v3", "--on", "128x8xH200", "--engine", "megatron", "--stats", "--work-limit", "none")
"""Minutes, if nobody stops it."""


def test_two_calls_run_at_once_and_python_goes_on() -> None:
    words = ["rehearse", "nam56r", "--tp", "2", "--steps", "4", "--json"]

    def seconds(threads: int) -> float:
        began = time.monotonic()
        calls = [threading.Thread(target=_native.answer, args=(words,)) for _ in range(threads)]
        for call in calls:
            call.start()
        for call in calls:
            call.join()
        return time.monotonic() - began

    inside: list[float] = []
    lock = threading.Lock()

    def overlapping() -> None:
        with lock:
            inside.append(time.monotonic())
        assert _native.answer(words)[0] == 0
        with lock:
            inside.append(-time.monotonic())

    calls = [threading.Thread(target=overlapping) for _ in range(2)]
    for call in calls:
        call.start()
    ticks, began = 0, time.monotonic()
    while any(call.is_alive() for call in calls):
        time.sleep(0.005)
        ticks += 1
    took = time.monotonic() - began
    assert [moment > 0 for moment in inside[:2]] == [True, True], "both were under way before either was over"
    assert ticks > took / 0.005 / 10, f"{ticks} turns of the interpreter in {took:.2f} s"
    assert seconds(1) > 0


def test_answers_of_threads_are_each_its_own() -> None:
    degrees = [1, 2, 4, 8] * 3
    found: dict[int, int] = {}

    def ask(index: int) -> None:
        found[index] = sw.case("llama3-8b", on="8xH200", tp=degrees[index]).fit().layout.tp

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(degrees))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(degrees))] == degrees


def test_ctrl_c_stops_a_search_within_a_second() -> None:
    caught: list[float] = []

    def interrupt() -> None:
        time.sleep(1.0)
        caught.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        _native.answer([*LONG, "--json"])
    assert time.monotonic() - caught[0] < 1.0
    assert sw.case("llama3-8b", on="8xH200").fit().fits, "and the next question is answered"


def test_ctrl_c_ends_the_command() -> None:
    command = subprocess.Popen([sys.executable, "-m", "shardwright", *LONG], stdout=subprocess.DEVNULL)
    time.sleep(2.0)
    assert command.poll() is None
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=1.0) == -signal.SIGINT


def test_progress_is_told_and_may_end_the_call() -> None:
    told: list[tuple[int, int]] = []

    def progress(done: int, of: int) -> None:
        told.append((done, of))
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        _native.answer(["plan", "nam56r", "--on", "64xH100", "--json"], None, progress)
    assert len(told) == 1 and 0 <= told[0][0] <= told[0][1]


def test_a_bar_is_shown_where_somebody_looks() -> None:
    pytest.importorskip("tqdm")
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    script = "import shardwright as sw, shardwright._ask as ask; ask.PATIENCE = 0.0\nsw.plan('nam56r', on='64xH100')"
    for looks in (True, False):
        leader, follower = pty.openpty()
        stderr = follower if looks else subprocess.PIPE
        # A terminal of no width is shown nothing.
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        run = subprocess.Popen([sys.executable, "-c", script], stderr=stderr, stdout=subprocess.DEVNULL)
        os.close(follower)
        shown = b""
        try:
            while looks and (more := os.read(leader, 4096)):
                shown += more
        except OSError:
            pass  # The other side is closed.
        os.close(leader)
        shown += b"" if looks else run.communicate()[1]
        assert run.wait() == 0
        assert (b"layouts inside a layer" in shown) == looks, shown


def _in_child(queue: multiprocessing.Queue[str]) -> None:
    try:
        queue.put(str(sw.case("llama3-8b", on="8xH200").fit().fits))
    except RuntimeError as error:
        queue.put(str(error))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_refused_and_spawned_workers_answer() -> None:
    assert sw.case("llama3-8b", on="8xH200").fit().fits
    for kind, said in (("fork", "spawn"), ("spawn", "True")):
        context = multiprocessing.get_context(kind)
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(queue,))
        child.start()
        assert said in queue.get(timeout=60)
        child.join()


def test_a_panic_is_a_bug_and_not_the_end() -> None:
    exit, _, _, messages = _native.answer(["params", "nam56r", "--crash", "main", "--json"])
    if exit == 2:
        pytest.skip("a release build does not panic on purpose")
    assert exit == 70 and "made to panic" in messages
    with pytest.raises(sw.Bug, match="report it") as caught:
        from shardwright._ask import ask

        ask(["params", "nam56r", "--crash", "main"])
    assert caught.value.findings[0].rule == "bug/panic"
    assert sw.Recipe.load("nam56r").name == "nam56r"


def test_the_command() -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "shardwright", *words], capture_output=True, text=True)

    assert run("params", "nam56r").stdout.startswith("nam56r  AEMEAEMEAEMR")
    assert run("--version").stdout.split()[1] == sw.__version__
    assert run("fit", "deepseek-v3", "--on", "8xH200").returncode == 3
    wrong = run("fit", "nam56r", "--tensor-parallel", "2", "--on", "8xH200")
    assert wrong.returncode == 2 and "'--tp'" in wrong.stderr
    script = Path(sys.executable).with_name("shardwright")
    if script.exists():
        assert subprocess.run([script, "params", "nam56r"], capture_output=True).returncode == 0
