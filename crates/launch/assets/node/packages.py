"""Whether what a launch imports is there, and new enough: python3 packages.py

Reads packages.json beside it, names everything that is missing or too old at once, and exits 1. `launch.sh` runs it
before it starts anything; SHARDWRIGHT_PACKAGES=ignore goes on all the same. `--quick` imports nothing, `--json` is for
`shardwright preflight`, `--table` names another table.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import importlib.util
import io
import json
import os
import re
import shutil
import sys
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What was found of one package or file; `state` is ok, note, missing, old or broken."""

    name: str
    state: str
    found: str
    wanted: str
    install: str


def numbers(version: str) -> tuple[int, ...]:
    """The release of a version: 2.3.2.post1 is (2, 3, 2), 2.15.0a0+git1 is (2, 15, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def suits(version: str, package: dict[str, Any]) -> bool:
    """Whether a version is in the range; one that cannot be read is."""
    has = numbers(version)
    at_least, below = (numbers(package[key] or "") for key in ("at_least", "below"))
    return not has or (has >= at_least and (not below or has < below))


def wanted(package: dict[str, Any]) -> str:
    bounds = [f">= {package['at_least']}" if package["at_least"] else "", f"< {package['below']}" if package["below"] else ""]
    return f"{', '.join(bound for bound in bounds if bound) or 'any version'} for {package['why']}"


def version_of(package: dict[str, Any], module: Any) -> str | None:
    """What the module says of itself, else what it was installed as; none of one that says neither."""
    said = getattr(module, "__version__", None)
    if isinstance(said, str):
        return said
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package["name"])
    return None


def is_there(module: str) -> bool:
    """Whether a module would be found; parents of a dotted one are imported for it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, AttributeError, ValueError):
        return False


def place_of(folder: str) -> str | None:
    """Where the folder of a package is. Nothing is imported for it."""
    top, *below = folder.split(".")
    spec = importlib.util.find_spec(top)
    places = [os.path.join(place, *below) for place in (spec.submodule_search_locations or [])] if spec else []
    # A namespace has several places; the first with the folder is the one that is imported.
    return next((place for place in places if os.path.isdir(place)), None)


def lacks(file: list[str] | None) -> str | None:
    """In words, the file that the folder of a package does not have."""
    if file is None:
        return None
    folder, name = file
    place = place_of(folder)
    has = place is not None and os.path.exists(os.path.join(place, name))
    return None if has else f"has no {folder.replace('.', '/')}/{name}"


def is_built(unless: list[str] | None) -> bool:
    """Whether a folder of a package has a file whose name begins so."""
    place = place_of(unless[0]) if unless else None
    return place is not None and any(name.startswith(unless[1]) for name in os.listdir(place))


def check_tool(tool: dict[str, Any]) -> Answer:
    """One program that is run."""
    named = os.environ.get(tool["variable"] or "", "").split()
    path = shutil.which(named[0] if named else tool["name"])
    state = "ok" if path or is_built(tool["unless"]) else "missing"
    return Answer(tool["name"], state, path or "not installed", f"for {tool['why']}", tool["install"])


def check(package: dict[str, Any], is_quick: bool) -> Answer:
    """One package. What an optional one lacks is a note."""

    def answer(state: str, found: str) -> Answer:
        is_note = state != "ok" and package["fallback"]
        what = package["fallback"] or package["install"]
        return Answer(package["name"], "note" if is_note else state, found, wanted(package), what)

    if is_built(package["unless"]):
        return answer("ok", "not needed")
    if not is_there(package["module"]):
        return answer("missing", "not installed")
    module = None
    if not is_quick:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                module = importlib.import_module(package["module"])
                for name in package["imports"]:
                    importlib.import_module(name)
        except Exception as error:  # A package may raise anything where it does not fit torch or the driver.
            return answer("broken", f"does not import: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    lacking = lacks(package["file"])
    if lacking:
        return answer("broken", lacking)
    version = version_of(package, module)
    if version is None:
        return answer("ok", "version unknown")
    return answer("ok" if suits(version, package) else "old", version)


def answers(table: dict[str, Any], is_quick: bool) -> list[Answer]:
    # The engine's sources, where `launch.sh` found them.
    sys.path[:0] = table["path"] + [folder for folder in [os.environ.get("SHARDWRIGHT_ENGINE")] if folder]
    files = [Answer(f["path"], "ok" if os.path.exists(f["path"]) else "missing", "no such file", f["why"], f["install"]) for f in table["files"]]
    tools = [check_tool(tool) for tool in table.get("tools", [])]
    return files + [check(package, is_quick) for package in table["packages"]] + tools


def say(found: list[Answer]) -> bool:
    """Prints all of it; whether everything that is needed is there."""
    for note in (one for one in found if one.state == "note"):
        print(f"packages: {note.name} {note.found}: {note.install}")
    bad = [one for one in found if one.state not in ("ok", "note")]
    for one in bad:
        print(f"packages: {one.name} {one.found}, needed {one.wanted}\n  {one.install}")
    if bad:
        print(f"packages: {len(bad)} of {len(found)} are not as this launch needs them, by {sys.executable}")
    else:
        print(f"packages: {', '.join(f'{one.name} {one.found}' for one in found if one.state == 'ok' and one.found != 'no such file')}")
    return not bad


def main() -> int:
    here = os.path.dirname(os.path.abspath(__file__)) if "__file__" in globals() else "."
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", help="the table as JSON text (default: packages.json beside this file)")
    parser.add_argument("--quick", action="store_true", help="look for packages and import none")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.table is None:
        with open(os.path.join(here, "packages.json"), encoding="utf-8") as file:
            table = json.load(file)
    else:
        table = json.loads(arguments.table)
    is_ignored = os.environ.get("SHARDWRIGHT_PACKAGES") == "ignore"
    found = answers(table, arguments.quick or is_ignored)
    if arguments.json:
        print(json.dumps([one._asdict() for one in found]))
        return 0
    is_whole = say(found)
    if not is_whole and is_ignored:
        print("packages: SHARDWRIGHT_PACKAGES=ignore, going on")
        return 0
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
