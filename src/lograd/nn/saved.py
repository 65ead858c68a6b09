"""Activations that other layers keep for the backward, in fewer bits: BatchNorm, ReLU, LayerNorm, GELU and so on.

Layers in integers keep codes of their own.  What lies between them keeps float32 tensors, most of the memory of a
training step.  Here PyTorch is asked to keep 4- to 8-bit codes of these instead: each sample has its own range, and is
rounded stochastically, so gradients that are linear in what was kept are unbiased (Chen et al., ActNN, ICML 2021).

Only what is known to bear it is kept so: `rules` says what, by the node of the graph that keeps a tensor.  PyTorch's
hook gets the tensor but not the node, which nothing points to before its result exists.  So the hook keeps the tensor
as it is, under the number of the node that is being made.  The next tensors that arrive were computed from results of
earlier nodes: from theirs the graph is followed backwards, and what known nodes keep is replaced.  That is about one
operator late.  A tensor whose node is never found stays as it is.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from .. import native
from ..formats.values import check_width
from ..ops import pack_integers
from ..ops.coded import CodedTensor
from ..ops.contracts import FLOATS
from .rules import SavedForm, rules_of
from .running import RunningHandle, WhileRunning

SMALLEST = 2**16
"""Tensors with fewer elements are kept as they are."""


def saved_activations(model: nn.Module, bits: int = 8, seed: int = 0) -> SavedHandle:
    """Keep codes and masks of activations for the backward of a model, from the next forward on.

        handle = lograd.nn.saved_activations(model, bits=8)
        ...
        handle.remove()

    As a context it is removed at the end.  Tensors that are not known to bear it are kept as they are: see `rules`.

    Args:
        model: any module; what its forward computes is unchanged.
        bits: 2 to 8; two codes share a byte where they have at most 4 bits.  Masks of ReLU and the like have one bit.
        seed: of the rounding.
    """
    check_width("bits", bits, 2, 8)
    return SavedHandle(model, bits, seed)


@final
class SavedHandle(RunningHandle):
    """Activations kept in fewer bits; `remove` makes the model what it was."""

    def __init__(self, model: nn.Module, bits: int, seed: int) -> None:
        super().__init__(model)
        self.bits = bits
        self.before, self.after = 0, 0
        """Bytes of all tensors that were kept in fewer bits, and of their codes and masks."""
        self._model = model
        self._seed, self._drawn = seed, 0
        self._running = WhileRunning(model, self._hooks)

    def __repr__(self) -> str:
        share = f", {self.after / self.before:.0%} of the bytes" if self.before else ""
        return f"SavedHandle({self.bits} bits{share})"

    def words(self) -> str:
        """Return what is kept in fewer bits, for people."""
        share = f", {self.after / self.before:.0%} of the bytes that they were" if self.before else ""
        return f"{self.bits}-bit codes or masks of tensors from {SMALLEST:,} elements on{share}"

    def remove(self) -> None:
        """Let PyTorch keep tensors as they are again."""
        self._running.remove()

    def _hooks(self) -> AbstractContextManager[Any]:
        if torch._C._current_graph_task_id() != -1 and torch._C._autograd._top_saved_tensors_default_hooks(True):
            return nullcontext()  # activation checkpointing runs this again, and its own hooks must get the tensors
        parts = (*self._model.parameters(), *self._model.buffers())
        return _Forward(self, {native.storage(each) for each in parts})

    def round(self, rows: Tensor) -> CodedTensor:
        """Return codes of a matrix, each row in a range of its own."""
        coded: CodedTensor = pack_integers(
            rows, self.bits, per="channel", rounding="stochastic", seed=self._seed, offset=self._drawn
        )
        self._drawn += rows.numel()
        return coded.in_nibbles() if self.bits <= 4 else coded


class _Kept:
    """A tensor that autograd keeps, as it is until there is another form of it."""

    __slots__ = ("__weakref__", "value", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.value: Tensor | SavedForm = tensor.detach()  # the tensor itself would hold its node, which holds this
        self.version = tensor._version

    def unchanged(self) -> bool:
        return not isinstance(self.value, Tensor) or self.value._version == self.version


@final
class _Forward:
    """The hooks in force in one forward of a model, and the tensors whose nodes are not known yet."""

    def __init__(self, handle: SavedHandle, own: set[int]) -> None:
        self._handle, self._own = handle, own
        self._waiting: dict[int, list[weakref.ref[_Kept]]] = {}
        """By the number of the node."""
        self._visited: set[int] = set()
        self._whole: dict[int, weakref.ref[_Kept]] = {}
        """Tensors that stay as they are, by their memory."""
        self._read: list[Any] | None = None
        """What `unpack` was asked for while a node is looked at."""
        self._context = saved_tensors_hooks(self.pack, self.unpack)

    def __enter__(self) -> _Forward:
        self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)
        self._waiting.clear()
        self._visited.clear()
        self._whole.clear()

    def finish(self, output: Any) -> None:
        """Look at the last nodes, with the output of the model; those of compiled code have no rules."""
        if torch.compiler.is_compiling():
            return
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                self._follow(leaf.grad_fn, torch._C._autograd._get_sequence_nr())

    def pack(self, tensor: Tensor) -> Any:
        """Return what autograd keeps in the place of a tensor."""
        if type(tensor) not in (Tensor, nn.Parameter) or torch.compiler.is_compiling():
            return tensor
        kept = _Kept(tensor)
        number = torch._C._autograd._get_sequence_nr() - 1
        node = tensor.grad_fn
        if node is not None:
            if node.name() == "CloneBackward0" and node._sequence_nr() == number:
                number -= 1  # a function in place has copied its input, after its own node was made
            self._follow(node, number)
        large = type(tensor) is Tensor and tensor.numel() >= SMALLEST and tensor.dtype in FLOATS
        if large and tensor.layout is torch.strided and native.storage(tensor) not in self._own:
            self._waiting.setdefault(number, []).append(weakref.ref(kept))
        return kept

    def unpack(self, kept: Any) -> Any:
        """Return a tensor for the backward."""
        if self._read is not None:
            self._read.append(kept)
        if not isinstance(kept, _Kept):
            return kept
        if not kept.unchanged() and self._read is None:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"a tensor of shape {list(kept.value.shape)} is at version {kept.value._version}; expected version "  # type: ignore[union-attr]
                f"{kept.version} instead."
            )
        return kept.value if isinstance(kept.value, Tensor) else kept.value.decode()

    def _follow(self, start: Any, end: int) -> None:
        """Look at all nodes before number `end` from which a node was computed, and which keep tensors that wait."""
        if not self._waiting:
            return
        first, found, ahead = min(self._waiting), {}, [start]
        while ahead:
            node = ahead.pop()
            number = node._sequence_nr()  # nodes were made after those that they follow
            if number < first or number in found or number in self._visited:
                continue
            if number < end:
                found[number] = node
            ahead += [following for following, _ in node.next_functions if following is not None]
        self._visited.update(found)
        with torch.no_grad():
            for number in sorted(found):
                if number in self._waiting:
                    self._look_at(found[number], self._waiting.pop(number))

    def _look_at(self, node: Any, waiting: list[weakref.ref[_Kept]]) -> None:
        """Replace what a node keeps by smaller forms where there are rules for it."""
        keeps = {id(kept): kept for one in waiting if (kept := one()) is not None}
        found = [(keeps.get(id(self._kept_at(node, place))), rule) for place, rule in rules_of(node).items()]
        for kept, rule in found:
            if kept is None or not kept.unchanged() or not isinstance(kept.value, Tensor):
                continue
            whole = self._whole.get(native.storage(kept.value))
            if whole is not None and whole() is not None:
                continue  # that memory stays anyway, so codes would come on top of it
            form = rule(node, kept.value, self._handle.round)
            if form is not None:
                self._handle.before += kept.value.numel() * kept.value.element_size()
                self._handle.after += form.nbytes
                kept.value = form
        for kept in keeps.values():
            if isinstance(kept.value, Tensor):
                self._whole[native.storage(kept.value)] = weakref.ref(kept)

    def _kept_at(self, node: Any, place: str | int) -> Any:
        """Return what autograd keeps for a node at an attribute, or at a place among its saved tensors."""
        read: list[Any] = []
        self._read = read
        try:
            if isinstance(place, str):
                getattr(node, place)
                return read[0] if read else None
            saved = node.saved_tensors
            if place >= len(saved) or saved[place] is None:
                return None
            return read[sum(each is not None for each in saved[:place])]
        except RuntimeError:  # the backward has run already, and nothing is kept
            return None
        finally:
            self._read = None
