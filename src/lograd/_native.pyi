BINS_PER_OCTAVE: int
KERNELS: tuple[str, ...]

def compiler() -> str: ...
def cpu_features() -> list[str]: ...
def isa_level() -> str: ...
def log_histogram(type: int, x: int, count: int, stride: int, threads: int, out: int, /) -> None: ...
def kth_magnitude(type: int, x: int, count: int, k: int, threads: int, out: int, /) -> None: ...
def use_isa(name: str) -> bool: ...
def stochastic_prune(
    type: int, x: int, y: int, count: int, threshold: int, key: int, threads: int, counts: int, /
) -> None: ...
def threshold_prune(type: int, x: int, y: int, count: int, threshold: int, threads: int, counts: int, /) -> None: ...
def dither(type: int, x: int, y: int, count: int, step: int, key: int, threads: int, counts: int, /) -> None: ...
def quantize(
    type: int,
    x: int,
    y: int,
    count: int,
    scale: int,
    integer: bool,
    mantissa: int,
    smallest: int,
    odd_up: bool,
    largest: float,
    largest_negative: float,
    stochastic: bool,
    key: int,
    threads: int,
    counts: int,
    /,
) -> None: ...
def row_ranges(type: int, x: int, rows: int, columns: int, out: int, threads: int, /) -> None: ...
def quantize_rows(
    type: int,
    x: int,
    rows: int,
    columns: int,
    y: int,
    parameters: int,
    bins: int,
    stochastic: bool,
    codes: bool,
    key: int,
    threads: int,
    counts: int,
    /,
) -> None: ...
def quantize_samples(
    type: int,
    x: int,
    rows: int,
    columns: int,
    y: int,
    ranges: int,
    parameters: int,
    bins: int,
    stochastic: bool,
    codes: bool,
    key: int,
    threads: int,
    counts: int,
    /,
) -> None: ...
def dequantize_rows(
    type: int, codes: int, rows: int, columns: int, y: int, parameters: int, bins: int, threads: int, /
) -> None: ...
def reflect_rows(
    inverse: bool,
    type: int,
    x: int,
    y: int,
    rows: int,
    columns: int,
    order: int,
    first: int,
    stretch: int,
    share: int,
    bounds: int,
    threads: int,
    counts: int,
    /,
) -> None: ...

class Coding:
    def __init__(
        self,
        integer: bool,
        mantissa: int,
        smallest: int,
        odd_up: bool,
        most: float,
        most_negative: float,
        largest: int,
        largest_negative: int,
        negative_base: int,
        negative_step: int,
        negative_zero: int,
        nan: int,
        values: list[float],
        /,
    ) -> None: ...

class BlockCoding:
    def __init__(
        self,
        element: Coding,
        scale: Coding,
        size: int,
        power_of_two: bool,
        element_emax: int,
        scale_emin: int,
        scale_emax: int,
        /,
    ) -> None: ...

def quantize_codes(
    type: int,
    x: int,
    codes: int,
    count: int,
    scale: int,
    coding: Coding,
    stochastic: bool,
    key: int,
    threads: int,
    counts: int,
    /,
) -> None: ...
def dequantize_codes(
    codes: int, type: int, y: int, count: int, scale: int, coding: Coding, threads: int, /
) -> None: ...
def pack_nibbles(codes: int, packed: int, rows: int, columns: int, threads: int, /) -> bool: ...
def unpack_nibbles(packed: int, codes: int, rows: int, columns: int, threads: int, /) -> None: ...
def quantize_blocks(
    coding: BlockCoding,
    type: int,
    x: int,
    y: int,
    codes: int,
    scales: int,
    rows: int,
    columns: int,
    tensor_scale: int,
    largest: float,
    stochastic: bool,
    unbiased: bool,
    key: int,
    threads: int,
    counts: int,
    /,
) -> None: ...
def dequantize_blocks(
    coding: BlockCoding,
    codes: int,
    scales: int,
    type: int,
    y: int,
    rows: int,
    columns: int,
    tensor_scale: int,
    largest: float,
    unbiased: bool,
    threads: int,
    /,
) -> None: ...
def hadamard(
    type: int, x: int, y: int, rows: int, columns: int, block: int, seed: int, inverse: bool, threads: int, /
) -> None: ...
