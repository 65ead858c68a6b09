"""Coded tensors: a tensor in few bits per element, as a plain value from which it can be made again exactly.

Operators and treatments that quantize give them; products of integers and packets take them.
"""

from .layout import Layout
from .tensor import CodedTensor, Encoded
from .transforms import Folded, Hadamard, Householder, Table, ThreeQuarters, Transform

__all__ = [
    "CodedTensor", "Encoded", "Folded", "Hadamard", "Householder", "Layout", "Table", "ThreeQuarters", "Transform",
]  # fmt: skip
