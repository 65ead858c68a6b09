"""The command line: `lograd COMMAND`.  Bad input is told what is valid, with exit code 2.

Commands are functions that typer reads: their arguments are the options, their docstrings the help; all of them have
--json.  What takes long to import is imported inside of them, so that `lograd --help` is quick.  Ctrl-C and SIGTERM end
every command alike: with one sentence and the usual exit code.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import pkgutil
import re
import signal
import sys
import textwrap
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from typer.core import TyperGroup

import lograd

from .errors import InvalidValue, LogradError, LogradWarning, nearest_name
from .files import CannotWrite, check_folder
from .text import TextTable, text_table

if TYPE_CHECKING:  # torch takes seconds to import
    from . import Plan, Profile, Variance

# -- the console --


class PatientConsole(Console):
    """A console that ends quietly when its reader has gone."""

    def on_broken_pipe(self) -> None:  # `lograd formats | head`: the reader has seen enough
        """End the program without a word: the reader has seen enough."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still in the buffer
        raise SystemExit(0)


# A pipe or a file has no width; tables that are read there should not be folded to 80 columns.
out = PatientConsole(highlight=False, markup=False, width=None if sys.stdout.isatty() else 140)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, header: bool = True) -> None:
    """Print a table of texts, after an empty line."""
    out.print()
    show(text_table(title, columns, [[*map(str, row)] for row in rows], header=header))


def show(table: TextTable) -> None:
    """Print a table in colours, fitted to a terminal; a file or a pipe gets its full width."""
    out.print(table, width=None if out.is_terminal else max(out.width, table.parts.width))


def say(text: str) -> None:
    """Print a sentence on standard error."""
    print(f"lograd: {text}", file=sys.stderr, flush=True)


@contextmanager
def warnings_as_sentences(*, silent: bool = False) -> Iterator[None]:
    """Show our own warnings without file, line and source, or not at all; those of others are as they were."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if not issubclass(category, LogradWarning):
                usual(message, category, *rest)
            elif not silent:
                say(str(message))

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def cell(value: Any) -> str:
    """Return a value as it stands in a table: yes and no, lists with commas, a dash for what does not exist."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception, so that whatever is half done is tidied up on the way out."""


class StoppableGroup(TyperGroup):
    """The commands of a program, of which one that is stopped by a signal says so."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _termination_as_exception():
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as error:
                terminated = isinstance(error, Terminated)
                say(f"{ctx.invoked_subcommand} was stopped by {'SIGTERM' if terminated else 'Ctrl-C'}.")
                raise typer.Exit(128 + (signal.SIGTERM if terminated else signal.SIGINT)) from None


@contextmanager
def _termination_as_exception() -> Iterator[None]:
    # Only the main thread may set handlers, and a process that was told to ignore the signal goes on doing so.
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def raise_it(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, raise_it)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


app = typer.Typer(
    cls=StoppableGroup,
    help="Backward passes with fewer bits and more zeros, chosen by theory, proven by measurement.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point: errors raised on purpose become one sentence on standard error."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a reader that has gone is met here, not when Python ends
    except LogradError as error:
        say(str(error))
        raise SystemExit(2) from None
    except BrokenPipeError:
        out.on_broken_pipe()


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False) -> None:
    """Print the version, where it is asked for; the commands do the rest."""
    if version:
        print(lograd.__version__)
        raise typer.Exit


# -- what the commands take: a `MODULE:FUNCTION` that makes the model, and a folder for results --

PACKAGE = Path(__file__).parent
PARTS = ("model", "batches", "loss")
WANTED = "(model, batches, loss function), or (model, batches) where the model returns its loss"


def load_model(target: str) -> tuple[Any, Iterable[Any], Callable[..., Any] | None]:
    """Return the model, the batches and the loss that a user's function makes; the current folder is searched first.

    The function takes no arguments.  It returns a tuple of two or three, or a mapping with the names in `PARTS`;
    further entries, such as an optimizer, are ignored.
    """
    module_name, colon, function_name = target.partition(":")
    if not (colon and module_name and function_name):
        raise InvalidValue(f"{target!r} is not MODULE:FUNCTION, such as mypkg.train:make.")
    module = _import(module_name)
    if not callable(function := getattr(module, function_name, None)):
        names = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]
        raise InvalidValue(f"{module_name} has no function {function_name!r}.{nearest_name(function_name, names)}")
    with own_words(target):
        made = function()
    return _parts(target, made)


def _import(name: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        with own_words(f"importing {name}"):
            return importlib.import_module(name)
    except InvalidValue as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise InvalidValue(f"there is no module {cause.name!r} in {here} or on Python's path.") from None
        raise


def _parts(target: str, made: Any) -> tuple[Any, Iterable[Any], Callable[..., Any] | None]:
    from torch import Tensor, nn

    if isinstance(made, Mapping):
        parts = [made.get(name) for name in PARTS]
    elif isinstance(made, tuple | list) and len(made) >= 2:
        parts = [*made, None][:3]
    else:
        raise InvalidValue(f"{target} must return {WANTED}; it returned an object of type {type(made).__name__}.")
    model, batches, loss = parts
    if callable(batches) and not isinstance(batches, Iterable):
        with own_words(f"the function batches of {target}"):
            batches = batches(0)  # the batches of the first epoch
    valid = {
        "model, a torch.nn.Module": (model, isinstance(model, nn.Module)),
        "batches, an iterable": (batches, isinstance(batches, Iterable) and not isinstance(batches, Tensor | str)),
        "loss function": (loss, loss is None or callable(loss)),
    }
    for wanted, (value, right) in valid.items():
        if not right:
            raise InvalidValue(
                f"{target} must return {WANTED}; in place of the {wanted}, it returned an object of type "
                f"{type(value).__name__}."
            )
    return model, batches, loss  # type: ignore[return-value]


@contextmanager
def own_words(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into a sentence: what was run, what was raised, and where."""
    try:
        yield
    except LogradError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidValue(f"{what} raised {_raised(error)}.") from error


def _raised(error: BaseException) -> str:
    """Return the exception and the innermost line of it that is not inside an installed package."""
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg} ({error.filename}:{error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename and "importlib" not in frame.filename
    ]
    own = [frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE)] or frames
    place = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
    text = str(error).split("\n")[0].rstrip(".")
    return f"{type(error).__name__}{f': {text}' if text else ''}{place}"


def folder_for_results(path: Path, name: str, overwrite: bool) -> Path:
    """Make a folder with its parents, before the work whose result goes into it under a name that must be free."""
    if (path / name).exists() and not overwrite:
        raise InvalidValue(
            f"the folder {path} has {name} already; replace it by --overwrite, or give another folder by -o."
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"Cannot make the folder {path}: {error.strerror}.") from error
    return path


def check_same(path: Path, plan: Plan, *, overwrite: bool) -> None:
    """Refuse to replace a plan by another one, unless that is asked for; an equal one is no loss."""
    from . import Plan

    if overwrite or not path.exists():
        return
    try:
        found = Plan.load(path).hash()
    except LogradError:
        found = "not a plan"
    if found != plan.hash():
        raise InvalidValue(
            f"{path} exists and is another plan ({found}, the new one is {plan.hash()}); replace it by --overwrite, or "
            "give another place by -o."
        )


# -- commands on a model --

Make = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:FUNCTION",
        help="A function that returns (model, batches, loss function); the last may be None.",
    ),
]


@app.command("profile")
def profile_command(
    make: Make,
    steps: Annotated[int, typer.Option(help="Batches to run.")] = 20,
    every: Annotated[int, typer.Option(help="Of so many steps one is observed.")] = 1,
    noise: Annotated[
        int, typer.Option(help="Disturb each layer so often, for lograd plan --allocation noise; 2 are enough.")
    ] = 0,
    times: Annotated[
        bool, typer.Option("--times", help="Time each method in each layer, for lograd plan --noise and --objective.")
    ] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for profile.npz and profile.html; it is made.")
    ] = Path("run"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a profile in the folder.")] = False,
    as_json: Json = False,
) -> None:
    """Look at the gradients of a model: their laws, zeros and formats, layer by layer.

    MODULE:FUNCTION names a function without arguments, such as mypkg.train:make; the current folder is searched first.
    """
    from . import profile
    from .progress import progress_shown

    network, batches, loss = load_model(make)
    folder = folder_for_results(output, "profile.npz", overwrite)
    with progress_shown(not as_json or None), warnings_as_sentences(), own_words("a step of the model"):
        found = profile(network, batches, loss, steps, every=every, noise=noise, times=times)
    found.save(folder / "profile.npz")
    page = _page(found, folder / "profile.html", f"Gradients of {make}")
    if as_json:
        print_json({"folder": str(folder), **found.to_dict()})
        return
    show(found.table())
    if found.menus is not None:
        out.print()
        show(found.menus.table())
    out.print(f"\nThe profile: {folder / 'profile.npz'}\n{page}")


def _page(found: Profile | Variance, path: Path, title: str) -> str:
    """Write the page of a result, and return a sentence on where it is, or on what it needs."""
    from .plots import MissingExtra

    try:
        found.to_html(path, title)
    except MissingExtra as error:
        return f"No page was written: {error}."
    return f"The page: {path} (open it in a browser)"


@app.command("plan")
def plan_command(
    profile: Annotated[Path, typer.Argument(help="A folder with profile.npz, or the file itself.")],
    noise: Annotated[
        float | None,
        typer.Option(help="The fastest plan that adds at most this much of the minibatch's variance, such as 0.2."),
    ] = None,
    objective: Annotated[str | None, typer.Option(help="progress: the plan with the most progress per second.")] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="With a goal: choose from these methods or patterns; repeat it.")
    ] = None,
    bits: Annotated[
        str | None,
        typer.Option(
            metavar="INTEGER|recommended",
            help="Round to the best float of so many bits; recommended: the fewest with a good cosine in each layer.",
        ),
    ] = None,
    sparsity: Annotated[float | None, typer.Option(help="Prune to skip this share of the work, such as 0.85.")] = None,
    allocation: Annotated[
        str | None,
        typer.Option(
            help="uniform: the sparsity in each layer; cosine or noise: over all, split by theory.",
            show_default="noise, if the profile has it, else uniform",
        ),
    ] = None,
    law: Annotated[str, typer.Option(help="Of the threshold: empirical, lognormal or normal.")] = "empirical",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            help="Leave alone: first, last, a pattern of names, or none.", show_default="last; none with a goal"
        ),
    ] = None,
    products: Annotated[
        list[str] | None,
        typer.Option(
            help="Treat the gradient for dX (input_gradient) or dW (weight_gradient) only.", show_default="both"
        ),
    ] = None,
    split: Annotated[
        bool, typer.Option("--split", help="With --allocation noise: dX and dW of a layer get different sparsity.")
    ] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Prune all layers, also those whose zeros save no time.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The plan; plan.json beside the profile by default.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace another plan in that place.")] = False,
    as_json: Json = False,
) -> None:
    """Choose methods, or formats and sparsities, for each layer of a profile, and save them as a plan.

    --noise and --objective are goals, and need a profile of lograd profile --noise 2 --times.
    """
    from . import Profile

    if sparsity is None and (allocation is not None or everywhere):
        asked = "--everywhere" if allocation is None else "--allocation"
        raise InvalidValue(f"{asked} says how zeros are made, so it needs --sparsity.")
    source = profile / "profile.npz" if profile.is_dir() else profile
    target = check_folder(output if output is not None else source.parent / "plan.json")
    given = {
        "noise": noise,
        "objective": objective,
        "methods": method or None,
        "bits": None if bits is None else _bits(bits),
        "sparsity": sparsity,
        "allocation": allocation,
        "law": law,
        "keep": [] if keep == ["none"] else keep or None,
        "products": products or None,
        "split": split or None,
        "everywhere": everywhere or None,
    }
    choices: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with warnings_as_sentences():
        made = Profile.load(source).plan(**choices)
    check_same(target, made, overwrite=overwrite)
    made.save(target)
    if as_json:
        print_json({"path": str(target), "hash": made.hash(), "plan": made.to_dict()})
        return
    show(made.table())
    out.print(f"\nThe plan: {target}")


def _bits(text: str) -> Any:
    try:
        return text if text == "recommended" else int(text)
    except ValueError:
        near = nearest_name(text, ("recommended",))
        raise InvalidValue(f"--bits must be a number of bits, such as 6, or recommended; got {text!r}.{near}") from None


@app.command("variance")
def variance_command(
    make: Make,
    plan: Annotated[Path | None, typer.Option(help="A plan from lograd plan.")] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe for all layers instead, such as int5-bhq.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the noise.")] = 0,
    steps: Annotated[int, typer.Option(help="Minibatches from which their own variance is estimated.")] = 16,
    treated: Annotated[int, typer.Option(help="The first so many of them are also run with the plan.")] = 2,
    repeats: Annotated[int, typer.Option(help="Draws of random numbers for each of these.")] = 12,
    contributions: Annotated[
        bool, typer.Option("--contributions/--no-contributions", help="Also treat one layer at a time.")
    ] = True,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for variance.json and variance.html; it is made.")
    ] = Path("run"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a variance in the folder.")] = False,
    as_json: Json = False,
) -> None:
    """Measure the variance and the bias that a plan adds to gradients, beside the variance over minibatches.

    MODULE:FUNCTION names a function without arguments, such as mypkg.train:make; the current folder is searched first.
    """
    from . import Plan, variance
    from .progress import progress_shown

    if (plan is None) == (recipe is None):
        raise InvalidValue("variance needs --plan FILE or --recipe NAME, one of them.")
    with warnings_as_sentences():
        chosen = Plan.uniform(str(recipe)) if plan is None else Plan.load(plan)
    network, batches, loss = load_model(make)
    folder = folder_for_results(output, "variance.json", overwrite)
    with progress_shown(not as_json or None), warnings_as_sentences(), own_words("a step of the model"):
        found = variance(
            network, batches, chosen, loss, steps=steps, treated=treated, repeats=repeats, seed=seed,
            contributions=contributions,
        )  # fmt: skip
    found.save(folder / "variance.json")
    page = _page(found, folder / "variance.html", f"Variance of the gradients of {make}")
    if as_json:
        print_json({"folder": str(folder), **found.to_dict()})
        return
    show(found.table())
    out.print()
    show(found.layers_table())
    out.print(f"\nThe numbers: {folder / 'variance.json'}\n{page}")


# -- commands that look things up --

Threads = Annotated[int | None, typer.Option(help="Threads of the timed layers.", show_default="PyTorch's own")]
WithTimes = Annotated[bool, typer.Option("--times/--no-times", help="Time layers, which takes up to half a minute.")]


@app.command("doctor")
def doctor_command(threads: Threads = None, times: WithTimes = True, as_json: Json = False) -> None:
    """Versions, instruction sets, native kernels: what a bug report needs; and what is fastest on this CPU.

    A few layers are timed in FP32, with bf16 autocast, channels-last, with 8-, 6- and 4-bit integers and with sparse
    products at 85 % zeros. One sentence says which is fastest and how to switch it on. If the CPU announces AMX, a
    child process tries it, since AMX of some virtual machines kills the process.
    """
    from .environment import environment, instruction_sets, probe_amx
    from .formats.values import check_width
    from .progress import progress_shown

    if threads is not None:  # more threads than cores wait for each other, and their times mean nothing
        check_width("--threads", threads, 1, os.cpu_count() or 1)
    amx = probe_amx()
    sections = environment() | {"instruction sets": instruction_sets(amx)}
    if not as_json:  # before the times, which make one wait
        for title, section in sections.items():
            print_table(title, ["", ""], [[key, cell(value)] for key, value in section.items()], header=False)
    if not times:
        if as_json:
            print_json(sections)
        return

    import torch  # a broken one has been said by now

    from .doctor import advice, missing_ways, speed_table, time_layers, times_to_dict

    count = threads or torch.get_num_threads()
    missing = missing_ways(sections["native module"]["reason"], str(amx) if amx.deadly else "")
    with progress_shown(not as_json or None):
        rows = time_layers(count, missing)
    missing |= {way: reason for row in rows for way, reason in row.failed.items()}
    if as_json:
        print_json(sections | {"times": times_to_dict(rows, missing, count), "sentence": advice(rows, missing)})
        return
    out.print()
    show(speed_table(rows, missing, count))
    out.print(f"\n{advice(rows, missing)}", soft_wrap=True)


@app.command("formats")
def formats_command(
    format: Annotated[str | None, typer.Argument(help="A format such as 1-4-1, int4 or mxfp4; none for all.")] = None,
    as_json: Json = False,
) -> None:
    """The catalogue of number formats, or every code of one format."""
    from .formats import CATALOGUE, BlockFormat, parse_format

    if format is None:
        rows = [_summary(name, entry) for name, entry in CATALOGUE.items()]
        if as_json:
            print_json(rows)
        else:
            print_table("Formats with a name", list(rows[0]), [list(map(cell, row.values())) for row in rows])
            out.print("\nAny other: 1-EXPONENT-MANTISSA (lograd formats 1-4-1), intBITS, ELEMENT/SIZE/SCALE.")
        return
    chosen = parse_format(format)
    summary = _summary(format, chosen)
    element = chosen.element if isinstance(chosen, BlockFormat) else chosen
    codes = _codes(element)
    if as_json:
        print_json(summary | {"codes": codes})
        return
    print_table(str(chosen), ["property", "value"], [[key, cell(value)] for key, value in summary.items()])
    if not codes:
        out.print(f"\n{element} is too wide to list, or has no codes; formats of up to 8 bits list theirs.")
        return
    title = "Elements of a block, before its scale" if isinstance(chosen, BlockFormat) else "Every code"
    half = (len(codes) + 1) // 2  # two columns: in a signed float, the negative codes beside the positive ones
    pairs = [
        [*codes[i].values(), *(codes[i + half].values() if i + half < len(codes) else ("", ""))] for i in range(half)
    ]
    print_table(title, ["code", "value", "code", "value"], [[cell(value) for value in row] for row in pairs])


def _summary(name: str, format: Any) -> dict[str, Any]:
    from .formats import BlockFormat

    element = format.element if isinstance(format, BlockFormat) else format
    listable = element.bits <= 16
    return {
        "name": name,
        "text": str(format),
        "bits per element": format.bits_per_element if isinstance(format, BlockFormat) else format.bits,
        "finite values": len(element.values()) if listable else None,
        "largest": element.max,
        "smallest positive": element.min_positive,
        "infinity and NaN": getattr(element, "specials", "none"),
    }


def _codes(format: Any) -> list[dict[str, Any]]:
    from .formats import IdealFormat

    if isinstance(format, IdealFormat) or format.bits > 8:
        return []
    return [{"code": f"{code:0{format.bits}b}", "value": _plain(format.decode(code))} for code in range(2**format.bits)]


def _plain(value: float) -> float | str:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else str(value)


@app.command("recipes")
def recipes_command(
    name: Annotated[str | None, typer.Argument(help="A recipe such as int5-bhq; none for all families.")] = None,
    as_json: Json = False,
) -> None:
    """Treatments by name, each with one line and its reference; or what one name stands for."""
    from .treatments import ALL_RECIPES, OPERANDS, PRODUCTS, SYMBOLS, describe, recipe, to_json
    from .treatments.recipes import MODIFIERS, registered

    if name is not None:
        found = recipe(name)
        sites = {
            product: {operand: getattr(getattr(found, product), operand) for operand in OPERANDS[product]}
            for product in PRODUCTS
        }
        if as_json:
            print_json({p: {operand: to_json(part) for operand, part in parts.items()} for p, parts in sites.items()})
            return
        rows = [
            [f"{product} ({SYMBOLS[product]})", operand, describe(part)]
            for product, parts in sites.items()
            for operand, part in parts.items()
        ]
        print_table(name, ["product", "<operand", "<treatment"], rows)
        return
    if as_json:
        columns = ("name", "example", "words", "reference")
        print_json([{column: getattr(entry, column) for column in columns} for entry in ALL_RECIPES])
        return
    rows = [[entry.name, entry.example, entry.words, entry.reference] for entry in ALL_RECIPES]
    rows += [[own, own, "registered in this process", ""] for own in registered]
    print_table("Recipes", ["name", "<example", "<what it does", "<reference"], rows)
    out.print("\nEndings: " + "; ".join(f"-{ending}, {words}" for ending, (words, _) in MODIFIERS.items()) + ".")
    out.print("A+B applies B after A.  A/B treats the gradient by A for dX and by B for dW.")
    out.print(
        "Recipes of all three products leave biases, norms, the first convolution and the last linear layer in "
        "float32; Plan.uniform(name, keep=()) treats these two layers as well."
    )
    out.print("References: lograd cite.")


_ENTRY = re.compile(r"^@\w+\{(?P<key>\w+),\n.*?^\}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Citation:
    """One entry, and the functions, classes and modules that rest on it."""

    key: str
    bibtex: str
    used_by: tuple[str, ...]


@app.command("cite")
def cite_command(as_json: Json = False) -> None:
    """BibTeX of the papers and specifications that the package implements."""
    found = citations()
    if as_json:
        print_json([{"key": entry.key, "bibtex": entry.bibtex, "used_by": entry.used_by} for entry in found])
    else:
        print("\n\n".join(f"% {', '.join(entry.used_by)}\n{entry.bibtex}" for entry in found))


def citations() -> list[Citation]:
    """Every BibTeX entry in lograd's docstrings, sorted by key."""
    documents = dict(_documents())
    entries = {match["key"]: match[0] for text in documents.values() for match in _ENTRY.finditer(text)}
    return [
        Citation(
            key,
            entries[key],
            tuple(sorted(name for name, text in documents.items() if f"[{key}]" in text or entries[key] in text)),
        )
        for key in sorted(entries)
    ]


def _documents() -> Iterator[tuple[str, str]]:
    """Yield (qualified name, docstring) of every module, and of what it defines."""
    for info in pkgutil.walk_packages(lograd.__path__, "lograd."):
        if info.name.startswith(("lograd._", "lograd.integrations.")):  # the latter import libraries of others
            continue
        module = importlib.import_module(info.name)
        yield info.name, _clean(module)
        for name, member in vars(module).items():
            if getattr(member, "__module__", None) == info.name and (
                inspect.isclass(member) or inspect.isfunction(member)
            ):
                yield f"{info.name}.{name}", _clean(member)


def _clean(documented: object) -> str:
    return textwrap.dedent(inspect.cleandoc(documented.__doc__ or ""))
