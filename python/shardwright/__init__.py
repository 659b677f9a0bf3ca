"""Will it fit, what do I run, was it true: large-model training planned before it is launched.

import shardwright as sw

fit = sw.case("nam56r", on="8xH200", tp=2).fit()
fit.fits, fit.worst.total_bytes
sw.plan("nam56r", on="8xH200").case.launch("launch")
"""

from __future__ import annotations

from . import _native
from ._case import Case, Sweep, case, plan, sweep
from ._errors import Bug, DoesNotFit, Finding, Refused, ShardwrightError, Usage
from ._looked import Check, Mesh, Params, Rehearsal, Splits, Stages
from ._parts import (
    Argument,
    Choice,
    Chunk,
    Event,
    File,
    Layout,
    Lever,
    Line,
    Part,
    Phase,
    RankClass,
    StageTime,
    Step,
    Tensor,
)
from ._priced import Fit, Launch, Plan, Schedule
from ._receipts import Comparison, Drift, Receipt, Receipts, receipts
from ._recipe import Recipe
from ._result import Result
from ._table import Table

__version__ = _native.version()

__all__ = [
    "Argument", "Bug", "Case", "Check", "Choice", "Chunk", "Comparison", "DoesNotFit", "Drift", "Event", "File",
    "Finding", "Fit", "Launch", "Layout", "Lever", "Line", "Mesh", "Params", "Part", "Phase", "Plan", "RankClass",
    "Receipt", "Receipts", "Recipe", "Refused", "Rehearsal", "Result", "Schedule", "ShardwrightError", "Splits",
    "StageTime", "Stages", "Step", "Sweep", "Table", "Tensor", "Usage", "case", "plan", "receipts", "sweep",
]  # fmt: skip
