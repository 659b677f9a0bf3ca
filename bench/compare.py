"""Runs the runtime and PyTorch on the same model, from the same weights and over the same tokens, and
prints how far they differ and how long each takes. In f64 the loss and the gradient of every tensor
are compared. In f32 both train, one step at a time and turn by turn, so that what else the machine
does falls on both; a ratio is taken in every turn, and its median and quartiles are printed.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import tomllib

HERE = pathlib.Path(__file__).parent
# A block's time is that of so many more of them.
MORE = 3
# The largest differences that are still rounding: of f64, and of the first loss in f32. Later losses
# of f32 drift further apart: a token whose scores are nearly even goes to another expert.
AGREE = {"f64": 1e-9, "first": 1e-5}


def lines(recipe):
    """Sequences in which each token follows from the one before by one of two rules."""
    source, vocab = random.Random(1), recipe["vocab"]
    while True:
        token, words = source.randrange(vocab), []
        for _ in range(recipe["sequence"] + 1):
            words.append(str(token))
            token = (token * 5 + 3 + source.randrange(2)) % vocab
        yield " ".join(words) + "\n"


class Runner:
    """A process that runs one step for each line it is sent."""

    def __init__(self, command, threads):
        environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self.steps = []

    def step(self, line):
        self.process.stdin.write(line)
        self.process.stdin.flush()
        words = self.process.stdout.readline().split()
        if len(words) != 4:
            sys.exit(f"{' '.join(self.process.args)} ended early")
        self.steps.append([float(word) for word in words])

    def column(self, number, warm):
        return [step[number] for step in self.steps[warm:]]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Model:
    """A recipe under a pattern, with weights and gradients that the runtime wrote."""

    def __init__(self, args, path, pattern, folder):
        self.args, self.path, self.pattern, self.folder = args, path, pattern, folder
        with open(path, "rb") as file:
            self.recipe = tomllib.load(file)
        self.first = next(lines(self.recipe))
        self.ask([args.steps, "write", path, pattern, folder])

    def ask(self, command):
        return subprocess.run(command, input=self.first, text=True, check=True, stdout=subprocess.PIPE).stdout

    def torch(self, mode, threads):
        return [sys.executable, str(HERE / "hybrid.py"), mode, self.path, self.pattern, self.folder, threads]

    def check(self):
        worst = json.loads(self.ask(self.torch("check", "1")))
        loss = worst.pop("loss")
        name = max(worst, key=worst.get)
        print(f"  f64: loss differs by {loss:.0e}, gradients of {len(worst) - 1} tensors by {worst[name]:.0e} at most ({name})")
        return max(loss, worst[name]) < AGREE["f64"]

    def runners(self, threads):
        found = {"runtime": [self.args.steps, "time", self.path, self.pattern, threads]}
        found |= {f"torch {mode}": self.torch(mode, threads) for mode in self.args.modes}
        return {name: Runner(command, threads) for name, command in found.items()}


def alternate(args, all_runners, recipe):
    """Steps of every runner turn by turn; the first are not counted."""
    source = lines(recipe)
    for _ in range(args.warm + args.rounds):
        line = next(source)
        for runner in all_runners:
            runner.step(line)
    for runner in all_runners:
        runner.close()


def ratio(ours, theirs):
    """Median and quartiles of the ratios of each turn."""
    all_ratios = [a / b for a, b in zip(ours, theirs)]
    low, middle, high = statistics.quantiles(all_ratios, n=4) if len(all_ratios) > 1 else all_ratios * 3
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def report(args, threads, runners):
    print(f"  {threads} thread{'s' if threads != '1' else ''}, ms a step:   median    least      CPU   ours / theirs, median (quartiles): wall, CPU")
    ours = runners["runtime"]
    for name, runner in runners.items():
        wall, cpu = runner.column(0, args.warm), runner.column(1, args.warm)
        times = f"{statistics.median(wall):9.1f}{min(wall):9.1f}{statistics.median(cpu):9.1f}"
        against = "" if runner is ours else f"   {ratio(ours.column(0, args.warm), wall)}, {ratio(ours.column(1, args.warm), cpu)}"
        print(f"    {name:<20}{times}{against}", flush=True)
    others = [r for r in runners.values() if r is not ours]
    apart = [max(abs(r.steps[i][2] / step[2] - 1) for r in others) for i, step in enumerate(ours.steps)]
    print(f"    f32: the first loss differs by {apart[0]:.0e}, of {len(apart)} steps by {max(apart):.0e} at most")
    return apart[0] < AGREE["first"]


def by_block(args, path, recipe, threads):
    """Times of one more block of each kind: of several less those of one."""
    print(f"  {threads} thread(s), a block, ms of CPU, least:")
    for letter in sorted(set(recipe["pattern"])):
        found = {}
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as many:
            models = [Model(args, path, letter, one), Model(args, path, letter * (1 + MORE), many)]
            runners = [model.runners(threads) for model in models]
            alternate(args, [r for some in runners for r in some.values()], recipe)
            for name in runners[0]:
                few, more = (min(some[name].column(1, args.warm)) for some in runners)
                found[name] = (more - few) / MORE
        print(f"    {letter}: " + ", ".join(f"{name} {ms:.1f}" for name, ms in found.items()), flush=True)


def arguments():
    parser = argparse.ArgumentParser(prog="bench/step_vs_torch", description=__doc__)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE.toml", help="models; those of bench/ unless said")
    parser.add_argument("--threads", default="1,2", help="threads of both sides, one run each (1,2)")
    parser.add_argument("--modes", default="eager", help="eager, compile, or both with a comma between (eager)")
    parser.add_argument("--rounds", type=int, default=10, help="counted steps of each side (10)")
    parser.add_argument("--warm", type=int, default=2, help="steps before they count (2)")
    parser.add_argument("--blocks", action="store_true", help="what a block of each kind takes, too")
    parser.add_argument("--steps", required=True, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.threads, args.modes = args.threads.split(","), args.modes.split(",")
    args.recipes = args.recipes or [str(path) for path in sorted(HERE.glob("*.toml"))]
    return args


def main(args):
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    print(f"f32, AdamW, {args.rounds} alternating steps; torch {torch.__version__}; {cores} cores, load {os.getloadavg()[0]:.1f}")
    agree = True
    for path in args.recipes:
        with open(path, "rb") as file:
            recipe = tomllib.load(file)
        print(f"{recipe['name']} {recipe['pattern']}, hidden {recipe['hidden']}, sequence {recipe['sequence']}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            model = Model(args, path, recipe["pattern"], folder)
            agree &= model.check()
            for threads in args.threads:
                runners = model.runners(threads)
                alternate(args, runners.values(), recipe)
                agree &= report(args, threads, runners)
                if args.blocks:
                    by_block(args, path, recipe, threads)
    sys.exit(0 if agree else "the two sides do not agree")


if __name__ == "__main__":
    main(arguments())
