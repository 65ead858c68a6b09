"""An experiment: its cells, the tables that are drawn from them, and its options, by name and in presets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from lograd import InvalidValue
from lograd.errors import nearest_name, sentence

from .cells import Cell, CellFolder
from .result import Result
from .sources import Kind, find

E = TypeVar("E", bound="Experiment")
_TYPES: dict[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "Path": Path}
_WORDS = {"int": "a whole number", "float": "a number"}


@dataclass(frozen=True)
class Experiment(ABC):
    """A table or figure whose numbers are measured or trained; its options are the fields of the dataclass.

    Args:
        data: the file or folder with the data; None where the experiment brings its own.
        only: cells or networks to which the experiment is restricted; empty for all.
    """

    words: ClassVar[str]
    """One line for the list of experiments."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Options by the name of a preset; "smoke" takes seconds, "cpu" is made for two cores, "paper" is the full size."""
    needs_data: ClassVar[bool] = False
    """True where nothing can be done without data; the smoke preset then takes the sets inside the package."""
    claim: ClassVar[str] = ""
    """The paper's claim with its numbers, in a sentence or two; empty for an experiment of our own."""
    verdict: ClassVar[str] = ""
    """A sentence on what agrees with the claim and what does not, shown beside committed results."""
    committed: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Committed files of other experiments that measure the claim too, with the beginnings of the rows that do so."""
    keeps_figures: ClassVar[bool] = False
    """True where `--results` writes the figures as well, as LABEL-1.svg and so on."""
    core_hours: ClassVar[float | None] = None
    """An estimate for the cpu preset."""

    data: Path | None = None
    only: str = ""

    @property
    def label(self) -> str:
        """The name of its files of results."""
        return type(self).__name__.lower()

    @property
    def source(self) -> str:
        """The images in words: the name of their file, or those inside the package."""
        return "the digits inside the package" if self.data is None else self.data.name

    @property
    def data_kind(self) -> Kind | None:
        """The kind of data that is looked for where a folder of several sets is given; None takes the folder."""
        return "images"

    @property
    def hours(self) -> float | None:
        """Core-hours that it takes, about; None where nobody has measured it."""
        return self.core_hours

    @abstractmethod
    def cells(self, folder: CellFolder) -> Iterator[Cell]:
        """The cells, in the order in which they are worked out.

        Each one is finished before the next one is asked for, so later cells may depend on what the folder holds of
        earlier ones.
        """

    @abstractmethod
    def draw(self, folder: CellFolder) -> list[Result]:
        """The tables of the finished cells, from their files alone."""

    @classmethod
    def make(cls: type[E], options: Mapping[str, Any], preset: str | None = None) -> E:
        """The experiment with a preset and options, of which texts are read by the types of the fields."""
        if preset is not None and preset not in cls.presets:
            valid = ", ".join(cls.presets) or "none"
            raise InvalidValue(f"this experiment has no preset {preset!r}; it has: {valid}.")
        known = {one.name: str(one.type).removesuffix(" | None") for one in fields(cls)}
        given: dict[str, Any] = dict(cls.presets[preset]) if preset is not None else {}
        for name, value in options.items():
            if name not in known:
                raise InvalidValue(f"this experiment has no option {name!r}.{nearest_name(name, known)}")
            given[name] = _read(name, value, known[name]) if isinstance(value, str) else value
        made = cls(**given)
        if made.data is None or made.data_kind is None:
            return made
        return replace(made, data=find(made.data, made.data_kind))

    @classmethod
    def options(cls) -> dict[str, Any]:
        """The options with their usual values."""
        return {one.name: one.default for one in fields(cls)}

    def command(self, *names: str) -> str:
        """The command that makes the table, with those of the named options that are not the usual ones."""
        usual = self.options()
        changed = {name: value for name in names if (value := getattr(self, name)) != usual[name]}
        name = type(self).__module__.rpartition(".")[2]
        data = "" if self.data is None else " --data FILE"
        return f"./dev reproduce {name}{data}" + "".join(f" --set {one}={changed[one]}" for one in changed)

    def _data(self) -> Path:
        """The data, where the experiment cannot do without."""
        if self.data is None:
            raise InvalidValue(f"{self.label} needs data; give its file or folder by --data.")
        return self.data


def _read(name: str, text: str, kind: str) -> Any:
    try:
        return _TYPES[kind](text)
    except ValueError:
        raise InvalidValue(sentence(name, text, _WORDS[kind])) from None
