"""Which model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Union

from . import _toml
from ._ask import ask
from ._parts import count

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

    from ._looked import Params


class Config(Protocol):
    """A configuration object of transformers, or whatever else can say itself as a dict."""

    def to_dict(self) -> dict[str, Any]: ...


class Recipe:
    """A model: a built-in name, a file, or a text of one's own. `Recipe.load` makes them."""

    __slots__ = ("_text", "_word")

    def __init__(self, word: str, text: str | None = None) -> None:
        self._word = word
        self._text = text

    @classmethod
    def load(cls, what: AnyRecipe) -> Recipe:
        """From a built-in name, a recipe .toml, a config.json or its folder, `org/name` of the local Hugging Face
        cache, a config.json as a dict, or a recipe's tables as a dict. What does not hold is refused here."""
        recipe = as_recipe(what)
        recipe.params()
        return recipe

    @classmethod
    def from_text(cls, text: str, name: str = "recipe") -> Recipe:
        """From the text of a recipe .toml or of a config.json."""
        recipe = cls(name, text)
        recipe.params()
        return recipe

    @classmethod
    def from_config(cls, config: Config, name: str | None = None) -> Recipe:
        """From a model's configuration: `Recipe.from_config(model.config)`. Needs no transformers."""
        return cls.load(_config(config.to_dict(), name))

    @property
    def name(self) -> str:
        """What it is called."""
        return str(ask(["params", self._word], self.texts)["recipe"])

    @property
    def word(self) -> str:
        """What a command line calls it."""
        return self._word

    @property
    def texts(self) -> dict[str, str]:
        """Its text by its word, where it is no file and not built in."""
        return {} if self._text is None else {self._word: self._text}

    def params(self, **given: Any) -> Params:
        """How many parameters, by family and surface."""
        from ._case import case

        return case(self, **given).params()

    def __repr__(self) -> str:
        counted = ask(["params", self._word], self.texts)
        size = f"{count(counted['total'])} parameters, {count(counted['active'])} active a token"
        return f"Recipe {counted['recipe']}: {size}\n  {counted['pattern']} to depth {counted['depth']}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and (self._word, self._text) == (other._word, other._text)

    def __hash__(self) -> int:
        return hash((self._word, self._text))


AnyRecipe: TypeAlias = Union[Recipe, str, "os.PathLike[str]", Mapping[str, Any]]


def as_recipe(what: AnyRecipe) -> Recipe:
    """The recipe that is meant, not read yet."""
    if isinstance(what, Recipe):
        return what
    if isinstance(what, (str, os.PathLike)):
        return Recipe(os.fspath(what))
    if isinstance(what, Mapping):
        is_config = "model_type" in what or "architectures" in what
        return _config(what, None) if is_config else Recipe(str(what.get("name", "recipe")), _toml.dumps(what))
    raise TypeError(
        f"a recipe is a name, a path or a dict, not {type(what).__name__}; Recipe.from_config takes configs"
    )


def _config(config: Mapping[str, Any], name: str | None) -> Recipe:
    called = name or str(config.get("_name_or_path") or "").rstrip("/").rsplit("/", 1)[-1]
    return Recipe(called or str(config.get("model_type", "model")), json.dumps(config, default=_dtype))


def _dtype(value: object) -> str:
    """torch's dtypes, which transformers keeps in configs; anything else has no place in a config.json."""
    if type(value).__name__ != "dtype":
        raise TypeError(f"a config.json holds no {type(value).__name__}: {value!r}")
    return str(value).rsplit(".", 1)[-1]
