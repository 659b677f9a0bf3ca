"""What is raised, and the findings in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing to know: by which rule, how grave, about what, and what would mend it."""

    rule: str
    message: str
    severity: str = "error"
    blame: str = "usage"
    where: str = ""
    """The thing the rule looked at: a tensor's path, a key, a stage."""
    hint: str | None = None
    quote: str | None = None
    """The engine's own condition, where an engine refuses."""
    fix_key: str | None = None
    fix_values: tuple[int, ...] = ()
    """Values of `fix_key` that satisfy the rule."""

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Finding:
        """From a finding of a JSON answer."""
        fix = json.get("fix") or {}
        return cls(
            rule=json["rule"],
            message=json["message"],
            severity=json["severity"],
            blame=json["blame"],
            where=json["object"],
            hint=json.get("hint"),
            quote=json.get("quote"),
            fix_key=fix.get("key"),
            fix_values=tuple(fix.get("values", ())),
        )

    def __str__(self) -> str:
        hint = f"\n  hint: {self.hint}" if self.hint else ""
        return f"{self.severity}: {self.message} [{self.rule}]{hint}"


class ShardwrightError(Exception):
    """A question without an answer; `findings` say why."""

    def __init__(self, findings: Sequence[Finding], text: str = "") -> None:
        self.findings = tuple(findings)
        refusing = [str(finding) for finding in self.findings if finding.severity == "error"]
        super().__init__("\n".join(refusing) or text.strip() or "no reason was given")


class Usage(ShardwrightError):
    """What was asked cannot be read: a keyword or a value that there is not."""


class Refused(ShardwrightError):
    """A recipe, a layout or a file that does not hold."""


class DoesNotFit(ShardwrightError):
    """Something that only makes sense where it fits. `fit` itself raises nothing: its answer has `fits`."""


class Bug(ShardwrightError):
    """Our mistake; the hint says what to report."""
