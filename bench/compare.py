"""Alternates steps of the runtime and of PyTorch and prints the least time of each with its ratio:
`compare.py STEPS_BINARY THREADS RECIPE.toml…`. Both run one step at a time, turn by turn, so that
what else the machine does falls on both.
"""

import os
import pathlib
import subprocess
import sys
import tomllib

HERE = pathlib.Path(__file__).parent
ROUNDS = int(os.environ.get("ROUNDS", "8"))
MODES = os.environ.get("MODES", "eager").split(",")
# A block's time is that of so many more of them.
MORE = 3


class Runner:
    """A process that runs one step for each line it is sent."""

    def __init__(self, command, threads):
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self.times, self.loss = [], None
        self.step()  # warms up, and says where the loss begins
        self.first, self.times = self.loss, []

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        if len(words) != 2:
            sys.exit(f"{self.process.args[0]} ended early")
        self.times.append(float(words[0]))
        self.loss = float(words[1])

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def commands(binary, path, pattern, threads):
    yield "runtime", [binary, path, pattern]
    for mode in MODES:
        yield f"torch {mode}", [sys.executable, str(HERE / "hybrid.py"), path, pattern, threads, mode]


def measure(binary, path, patterns, threads):
    """Least milliseconds by pattern and name, and first losses."""
    runners = {}
    for pattern in patterns:
        for name, command in commands(binary, path, pattern, threads):
            runners[pattern, name] = Runner(command, threads)
    for _ in range(ROUNDS):
        for runner in runners.values():
            runner.step()
    for runner in runners.values():
        runner.close()
    return {key: min(r.times) for key, r in runners.items()}, {key: r.first for key, r in runners.items()}


def line(label, times):
    ours = times["runtime"]
    others = "".join(f"   {name} {ms:8.1f} ms (ratio {ours / ms:.2f})" for name, ms in times.items() if name != "runtime")
    print(f"{label:<28} runtime {ours:8.1f} ms{others}", flush=True)


def main(binary, threads, paths):
    print(f"f32, AdamW, {threads} thread, {ROUNDS} alternating steps, the least of each; ratio = runtime / torch")
    for path in paths:
        with open(path, "rb") as file:
            recipe = tomllib.load(file)
        pattern = recipe["pattern"]
        times, losses = measure(binary, path, [pattern], threads)
        names = [name for _, name in times]
        line(f"{recipe['name']} {pattern}", {name: times[pattern, name] for name in names})
        print("  first losses: " + ", ".join(f"{name} {losses[pattern, name]:.2f}" for name in names))
        for letter in sorted(set(pattern)):
            one, many = letter, letter * (1 + MORE)
            times, _ = measure(binary, path, [one, many], threads)
            line(f"  a block of {letter}", {n: (times[many, n] - times[one, n]) / MORE for n in names})
            if letter == min(pattern):
                rest = {n: times[one, n] - (times[many, n] - times[one, n]) / MORE for n in names}
                line("  embedding, head and loss", rest)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
