"""The first exception of a run's log: cause.py LOG FIRST_LINE [--say | --watch PID], or cause.py --refused KIND LINE...

Prints it as JSON for the summary (null where there is none), in words with --say. With --watch it follows the log, and
ends PID once a rank has raised the same thing before the first step in two starts: another start would end there too.
`shardwright receipt record` reads the same from the log and adds what to do. --refused prints what `launch.sh` found
before it started anything in the same form.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from typing import Iterator, NamedTuple

# What torchrun's --tee and torch's own excepthook put before a line; the latter leaves a space.
PREFIX = re.compile(r"((?:\[default\d+\]:)?)((?:\[rank\d+\]: ?)?)")
FRAME = re.compile(r'\s+File "(.+)", line (\d+), in (.+)')
RAISED = re.compile(r"(?:\w+\.)*([A-Z]\w*)(?:: (.*)|:?$)")
USAGE = re.compile(r"\S+: error: (.+)")
KILLED = re.compile(r"Signal \d+ \((SIG\w+)\) received by PID")
# NCCL's watchdog is often the first to see that a kernel of another library has failed.
WATCHDOG = re.compile(r"watchdog thread terminated with exception: (CUDA error: .+)")
CRASHES = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV")
STEP = re.compile(r"^(\s*(\[[^\]]*\]|\S*) ?iteration +\d+/|step \d+ loss |.*\bstep: +\d+ )")
LIBRARY = re.compile(r"-packages/torch/|^<|/lib/python3[^/]*/(?!(site|dist)-packages)")
ENDS = ("ChildFailedError", "SignalException")


class Cause(NamedTuple):
    """What was raised, where, and by whom; `rank` is the local one where torch was not started yet."""

    type: str
    message: str
    place: str | None
    rank: int | None

    def words(self) -> str:
        who = "" if self.rank is None else f"rank {self.rank}: "
        return f"{who}{self.type}{f': {self.message}' if self.message else ''}{f' ({self.place})' if self.place else ''}"


class Finder:
    """Follows tracebacks process by process."""

    def __init__(self) -> None:
        self.open: dict[str, tuple[str, str | None]] = {}
        self.causes: list[Cause] = []
        self.has_stepped = False
        self.restarts = 0

    def line(self, raw: str) -> None:
        prefix = PREFIX.match(raw)
        text, who = (raw[prefix.end() :], prefix.group(1) + prefix.group(2).strip()) if prefix else (raw, "")
        number = re.search(r"\[rank(\d+)\]", who) or re.search(r"\[default(\d+)\]", who)
        rank = int(number.group(1)) if number else None
        frame = FRAME.match(text)
        if frame:
            place = f"{os.path.basename(frame.group(1))}:{frame.group(2)} in {frame.group(3)}"
            _, own = self.open.get(who, ("", None))
            self.open[who] = (place, own if LIBRARY.search(frame.group(1)) else place)
        elif STEP.match(text):
            self.causes, self.has_stepped = [], True
        elif "will restart worker group" in text:
            self.restarts += 1
        elif failed := WATCHDOG.search(text):
            self.causes.append(Cause("CUDA", failed.group(1), None, rank))
        elif killed := KILLED.search(text):
            by = "the program crashed" if killed.group(1) in CRASHES else "killed from outside"
            self.causes.append(Cause(killed.group(1), by, None, rank))
        elif usage := USAGE.match(text):
            self.causes.append(Cause("usage", usage.group(1), None, rank))
        elif text.strip() and not text[0].isspace() and who in self.open:
            last, own = self.open.pop(who)
            raised = RAISED.match(text.strip())
            if raised and raised.group(1) not in ENDS:
                self.causes.append(Cause(raised.group(1), (raised.group(2) or "")[:400], own or last, rank))

    def repeats(self) -> Cause | None:
        """What a rank raised more than once before any step, where there was a restart. What links and peers do may not
        come back."""
        if self.has_stepped or not self.restarts:
            return None
        own = Counter(cause for cause in self.causes if not cause.type.startswith("Dist") and "NCCL" not in cause.message)
        return next((cause for cause, count in own.items() if count > 1), None)


def lines(path: str, first: int, is_followed: bool) -> Iterator[str]:
    """Lines of the log from one on; followed, empty ones stand for what is not there yet."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for _ in range(first - 1):
            file.readline()
        rest = ""
        while True:
            rest += file.readline()
            if rest.endswith("\n"):
                yield rest.rstrip("\r\n")
                rest = ""
            elif not is_followed:
                yield rest
                return
            else:
                time.sleep(0.5)
                yield ""


def watch(path: str, first: int, pid: int) -> None:
    finder = Finder()
    for line in lines(path, first, True):
        finder.line(line)
        repeated = finder.repeats()
        if repeated:
            print(f"not started again, the same twice before the first step: {repeated.words()}", flush=True)
            os.kill(pid, signal.SIGTERM)
            return
        if finder.has_stepped:
            return


def main() -> None:
    if sys.argv[1] == "--refused":
        kind, *said = sys.argv[2:]
        message = "; ".join(line.strip() for text in said for line in text.splitlines())
        return print(json.dumps(Cause(kind, message[:400], None, None)._asdict()))
    path, first, *rest = sys.argv[1:]
    if rest[:1] == ["--watch"]:
        return watch(path, int(first), int(rest[1]))
    finder = Finder()
    for line in lines(path, int(first), False):
        finder.line(line)
    cause = finder.causes[0] if finder.causes else None
    if rest == ["--say"]:
        print(cause.words() if cause else "no exception in the log")
    else:
        print(json.dumps(cause._asdict() if cause else None))


if __name__ == "__main__":
    main()
