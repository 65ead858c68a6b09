"""The file of a checkpoint, and all that must hold of its content before any of it goes into a run.

The file is what torch.save writes, with a checksum in it (`seals`).  Everything is checked first, so that a checkpoint
that is refused leaves nothing half loaded.
"""

from __future__ import annotations

import copy
import io
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lograd import InvalidType, InvalidValue, LogradError
from lograd.errors import sentence
from lograd.files.atomic import CannotRead, read_file, replace_file
from lograd.files.checks import check_number, check_object, check_whole
from lograd.files.seals import check_seal, sealed
from lograd.weights import LowPrecisionTensor, WeightsHandle
from lograd.weights.saving import load_state

from .measuring import Interval
from .ranks import Ranks

VERSION = 1
FIELDS = ("version", "steps", "seconds", "lr", "interval", "random", "model", "optimizer", "handle", "scaler")
LIKE_PARAMETER = ("momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
"""Names of the tensors that optimizers keep for each element of a parameter."""
SQUARES = ("exp_avg_sq", "max_exp_avg_sq")
OF_EACH_RANK = ("handle", "random", "work")
"""Parts that differ between the ranks of a run: statistics, random states, and the place in the batches."""
OF_EACH_STAGE = (*OF_EACH_RANK, "pipeline", "optimizer")
"""Parts that differ between the stages of a pipeline; those of the optimizer are put together again."""
WORDS = {"pipeline": "a pipeline", "learned": "learned ranges", "weights": "weights in low precision"}
"""Parts of a run that have other names in a sentence."""


def write(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint; until the new one is whole and on the disk, the old one is the checkpoint."""
    content = io.BytesIO()
    torch.save(state, content)
    replace_file(path, sealed(content.getbuffer()))


def read(path: Path) -> Any:
    """The content that `write` was given, tensors and plain values only; a damaged file meets no parser."""
    content = read_file(path)
    try:
        check_seal(content)
        _check_archive(content)
        return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except LogradError as error:
        raise CannotRead(f"Cannot read the checkpoint {path}: {error}") from None
    except Exception as error:  # torch.load raises whatever its readers raise
        reason = str(error).split("\n")[0][:120]
        raise CannotRead(f"Cannot read the checkpoint {path}: {type(error).__name__}, {reason}") from error


def state_of_rank(state: Any, ranks: Ranks) -> Any:
    """Return the state that one rank goes on from; it is that of rank 0 but for the parts that differ.

    A checkpoint of another number of ranks is refused.
    """
    others = state.get("ranks", []) if isinstance(state, dict) else []
    if not isinstance(others, list) or len(others) != ranks.size - 1:
        raise InvalidValue(f"it must have the states of {ranks.size} ranks.")
    if ranks.main:
        return state
    names = (*OF_EACH_RANK, "pipeline") if "pipeline" in state else OF_EACH_RANK
    check_object(f"the state of rank {ranks.rank}", others[ranks.rank - 1], names)
    return state | others[ranks.rank - 1]


def joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of an optimizer from those of all stages, which have the state of their own parameters."""
    kept = {index: values for state in states for index, values in state["state"].items()}
    return states[0] | {"state": dict(sorted(kept.items()))}


def _check_archive(content: bytes) -> None:
    """Sizes that the file can hold, and the archive's own sums, which torch.load does not look at."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for entry in archive.infolist():
            odd = entry.compress_type != zipfile.ZIP_STORED or entry.external_attr  # to torch a folder has no content
            if odd or entry.file_size > len(content):
                raise InvalidValue(f"its part {entry.filename[:60]!r} is not as torch.save writes it.")
        if (broken := archive.testzip()) is not None:
            raise InvalidValue(f"its part {broken[:60]!r} was changed or damaged after it was saved.")


# -- what must hold --


def check(state: Any, total: int, parts: dict[str, Any], settings: str) -> None:
    """Refuse, in one sentence, what a run cannot go on from; nothing is changed here.

    Args:
        total: steps of the run.
        parts: its model, optimizer, handle, scaler and handle of weights, by name, None where it has none; and the
            optimizer of what a plan learns, as "learned", if there is one.
        settings: the checksum of its settings.
    """
    version = state.get("version") if isinstance(state, dict) else None
    if type(version) is not int or version != VERSION:
        raise InvalidValue(f"this is not a checkpoint of version {VERSION}.")
    check_object("a checkpoint", state, FIELDS, None)
    if state.get("settings", settings) != settings:  # the first checkpoints did not have it
        raise InvalidValue("the settings in config.json were changed after the checkpoint was written; put them back.")
    for name, part in parts.items():
        if (part is None) != (state.get(name) is None):
            how = "with" if part is None else "without"
            raise InvalidValue(f"the checkpoint was written by a run {how} {WORDS.get(name, name)}.")
    check_whole("steps of the checkpoint", state["steps"], 0, total)
    check_number("seconds of the checkpoint", state["seconds"], 0)
    check_number("lr of the checkpoint", state["lr"], 0)
    _check_interval(state["interval"])
    _check_random(state["random"])
    _check_model(state["model"], parts["model"])
    for name in ("optimizer", "learned"):
        if name in parts:
            _check_optimizer(state[name], parts[name])
    if parts["scaler"] is not None:
        _check_scaler(state["scaler"], parts["scaler"])
    if parts["handle"] is not None:
        parts["handle"].check_state_dict(state["handle"])
    if parts["weights"] is not None:
        _check_weights(state["weights"], parts["weights"])


def _check_interval(values: Any) -> None:
    check_object("the interval of the checkpoint", values, [field.name for field in fields(Interval)])
    for name, value in values.items():
        if name in ("loss", "bits"):
            check_number(f"{name} of the interval", value)
        else:
            check_whole(f"{name} of the interval", value)


def _check_random(state: Any) -> None:
    try:
        torch.Generator().set_state(state)
    except (TypeError, RuntimeError, AttributeError):
        raise InvalidValue("the random state of the checkpoint is not one of torch's.") from None


def _check_model(tensors: Any, model: nn.Module) -> None:
    own = model.state_dict()
    check_object("the model of the checkpoint", tensors, list(own))
    for name, tensor in own.items():
        if isinstance(tensor, Tensor):
            _check_like(f"{name} of the model", tensors[name], tensor)


def _check_weights(saved: Any, weights: WeightsHandle) -> None:
    """Load codes into copies of those in memory, which refuses whatever does not fit."""
    try:
        load_state({name: copy.deepcopy(weight) for name, weight in weights.weights.items()}, saved)
    except InvalidType as error:
        raise InvalidValue(str(error)) from None


def _check_like(what: str, tensor: Any, like: Tensor, dtype: torch.dtype | None = None) -> None:
    """Refuse what has not the shape of another tensor, and its type unless another one is given."""
    dtype = dtype or like.dtype
    if not isinstance(tensor, Tensor):
        raise InvalidValue(sentence(what, tensor, "a tensor"))
    if tensor.shape != like.shape or tensor.dtype != dtype:
        raise InvalidValue(
            f"{what} must be {dtype} of shape {tuple(like.shape)}; got {tensor.dtype} of shape {tuple(tensor.shape)}."
        )


def _check_optimizer(saved: Any, optimizer: torch.optim.Optimizer) -> None:
    check_object("the optimizer of the checkpoint", saved, ("state", "param_groups"), None)
    groups, own = saved["param_groups"], optimizer.state_dict()["param_groups"]
    if not isinstance(groups, list) or len(groups) != len(own):
        raise InvalidValue(sentence("param_groups of the checkpoint", groups, f"a list of {len(own)} groups"))
    for group, mine in zip(groups, own, strict=True):
        check_object("a group of the optimizer", group, ("params", "lr"), None)
        if group["params"] != mine["params"]:
            raise InvalidValue("the optimizer of the checkpoint has other parameters than the model.")
        _check_scalar("lr of the optimizer", group["lr"])
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not isinstance(saved["state"], dict):
        raise InvalidValue(sentence("the optimizer's state", saved["state"], "an object with a part per parameter"))
    for index, values in saved["state"].items():
        check_whole("the number of a parameter", index, 0, len(parameters) - 1)
        _check_kept(f"parameter {index}", values, parameters[index])


def _check_kept(what: str, values: Any, parameter: Tensor) -> None:
    """Check the tensors that the optimizer keeps for one parameter."""
    if not isinstance(values, dict):
        raise InvalidValue(sentence(f"the optimizer's state of {what}", values, "an object"))
    # Steps on weights in low precision are made in float32, whatever the type of the model.
    dtype = torch.float32 if isinstance(parameter, LowPrecisionTensor) else parameter.dtype
    for name, value in values.items():
        if name in LIKE_PARAMETER and value is not None:
            _check_like(f"{name} of {what}", value, parameter, dtype)
        if name in SQUARES and bool((value < 0).any()):
            raise InvalidValue(f"{name} of {what} has negative elements.")
        if name == "step":
            _check_scalar(f"step of {what}", value)


def _check_scalar(what: str, value: Any) -> None:
    """A number that is not negative, or a tensor of one, as optimizers keep both."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise InvalidValue(f"{what} must be one number; got {tuple(value.shape)}.")
    check_number(what, value.item() if isinstance(value, Tensor) else value, 0)


def _check_scaler(saved: Any, scaler: torch.amp.GradScaler) -> None:
    check_object("the scaler of the checkpoint", saved, list(scaler.state_dict()))
    for name, value in saved.items():
        if check_number(f"{name} of the scaler", value, 0) == 0 and name != "_growth_tracker":
            raise InvalidValue(f"{name} of the scaler must be positive; got 0.")
