"""Formats against ml_dtypes and gfloat over every code, and against their own definition where nobody else has them."""

import math

import gfloat
import ml_dtypes
import numpy as np
import pytest
from everyday import daily
from gfloat import RoundMode
from gfloat import formats as gfloat_formats
from gfloat.types import Domain, FormatInfo
from hypothesis import given, settings
from hypothesis import strategies as st

from lograd import BlockFormat, FloatFormat, IdealFormat, IntFormat, InvalidType, InvalidValue, parse_format
from lograd.formats import CATALOGUE, ROUNDINGS

ML_DTYPES = {
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3": ml_dtypes.float8_e4m3,
    "e3m4": ml_dtypes.float8_e3m4,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
}
GFLOAT = {
    "e5m2": gfloat_formats.format_info_ocp_e5m2,
    "e4m3fn": gfloat_formats.format_info_ocp_e4m3,
    "e3m2": gfloat_formats.format_info_ocp_e3m2,
    "e2m3": gfloat_formats.format_info_ocp_e2m3,
    "e2m1": gfloat_formats.format_info_ocp_e2m1,
    "e8m0": gfloat_formats.format_info_ocp_e8m0,
}
GFLOAT_ROUNDINGS = {
    "nearest": RoundMode.TiesToEven,
    "nearest_away": RoundMode.TiesToAway,
    "toward_zero": RoundMode.TowardZero,
    "stochastic": RoundMode.StochasticFastest,
}
SMALL_FLOATS = [FloatFormat(e, m) for e in range(1, 7) for m in range(7) if 1 + e + m <= 8]


def same(a, b):
    """Equal as values with sign: NaN equals NaN, 0.0 differs from -0.0."""
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def sweep(values):
    """Inputs where rounding can go wrong: every value, every midpoint, their float32 neighbours, and far beyond."""
    values = np.asarray(values)
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2, values * 1.25, values * 1.5, values * 2])
    points = np.clip(points, -3e38, 3e38).astype(np.float32)
    around = [np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    random = np.random.default_rng(0).standard_normal(500) * np.abs(values).max() / 2
    extremes = [0.0, -0.0, 1e-45, -1e-45, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan]
    return np.unique(np.concatenate([points, *around, random, extremes]).astype(np.float32)).astype(np.float64)


def to_gfloat(format):
    return FormatInfo(
        str(format),
        format.bits,
        format.mantissa + 1,
        bias=format.bias,
        is_signed=format.signed,
        domain=Domain.Extended if format.specials == "ieee" else Domain.Finite,
        has_nz=format.specials != "fnuz",
        num_high_nans={"none": 0, "fnuz": 0, "fn": 1, "ieee": 2**format.mantissa - 1}[format.specials],
        has_subnormals=format.subnormals,
        is_twos_complement=False,
    )


@pytest.mark.parametrize("name", ML_DTYPES)
def test_every_code_equals_ml_dtypes(name):
    format, dtype = CATALOGUE[name], ML_DTYPES[name]
    codes = np.arange(2**format.bits, dtype=np.uint8)
    theirs = codes.view(dtype).astype(np.float64)
    for code, value in zip(codes.tolist(), theirs.tolist(), strict=True):
        assert same(format.decode(code), value), (name, code)
        if not math.isnan(value):
            assert format.encode(value) == code, (name, code)


@pytest.mark.parametrize("name", GFLOAT)
def test_every_code_equals_gfloat(name):
    format = CATALOGUE[name]
    for code in range(2**format.bits):
        assert same(format.decode(code), gfloat.decode_float(GFLOAT[name], code).fval), (name, code)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_nearest_equals_the_cast_of_ml_dtypes(name):
    format = CATALOGUE[name]
    # ml_dtypes sends ties of E8M0 up: its even significand, where we take the even code as gfloat does.
    rounding = "nearest_away" if name == "e8m0" else "nearest"
    for x in sweep(format.values()).tolist():
        if name == "e8m0" and x < 2.0**-126:
            continue  # ml_dtypes says NaN for zero and below, and rounds float32 subnormals up
        if math.isnan(x) and format.specials == "none":
            continue  # FP6 and FP4 have no NaN, and ml_dtypes says -0
        theirs = float(np.float32(x).astype(ML_DTYPES[name]))
        assert same(format.round(x, rounding, saturate=format.specials == "none"), theirs), (name, x)


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    "format",
    [*(f for n, f in CATALOGUE.items() if n in ML_DTYPES), *daily(SMALL_FLOATS, SMALL_FLOATS[::4])],
    ids=str,
)
def test_rounding_equals_gfloat(format, rounding, saturate):
    theirs = to_gfloat(format) if format.signed else GFLOAT["e8m0"]
    for index, x in enumerate(sweep(format.values()).tolist()):
        if not format.signed and x < format.min_positive:
            continue  # gfloat returns numbers below 2^-127 that E8M0 does not have
        if math.isnan(x) and format.specials == "none":
            continue  # no NaN code: gfloat raises, we keep NaN a NaN
        bits = (index * 37) % 256
        try:
            expected = gfloat.round_float(theirs, x, GFLOAT_ROUNDINGS[rounding], saturate, bits, 8)
        except ValueError:
            with pytest.raises(InvalidValue, match="must saturate"):
                format.round(x, rounding, saturate=saturate, uniform=bits / 256)
            continue
        ours = format.round(x, rounding, saturate=saturate, uniform=bits / 256)
        assert same(ours, expected), (str(format), rounding, saturate, x, ours, expected)


@pytest.mark.parametrize(
    ("format", "dtype"),
    [(IntFormat(4), ml_dtypes.int4), (IntFormat(4, signed=False), ml_dtypes.uint4), (IntFormat(2), ml_dtypes.int2)]
    + [(IntFormat(8), np.int8), (IntFormat(8, signed=False), np.uint8)],
    ids=str,
)
def test_every_integer_code(format, dtype):
    info = ml_dtypes.iinfo(dtype)
    assert format.values().tolist() == list(range(info.min, info.max + 1))
    for value in range(info.min, info.max + 1):
        code = format.encode(value)
        assert format.decode(code) == value
        assert np.array(value).astype(dtype).view(np.uint8).item() % 2**format.bits == code


def test_integer_rounding_equals_numpy():
    x = np.arange(-20, 20, 0.125)
    for format in (IntFormat(4), IntFormat(5, symmetric=True), IntFormat(3, signed=False)):
        expected = np.clip(np.rint(x), format.min, format.max)
        assert [format.round(v) for v in x.tolist()] == expected.tolist()
        assert [format.round(v, "toward_zero") for v in x.tolist()] == np.clip(
            np.trunc(x), format.min, format.max
        ).tolist()
    assert IntFormat(4, symmetric=True).values().tolist() == list(range(-7, 8))
    assert math.isnan(IntFormat(4, symmetric=True).decode(8))


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("mxfp8-e5m2", gfloat_formats.format_info_mxfp8_e5m2),
        ("mxfp8", gfloat_formats.format_info_mxfp8_e4m3),
        ("mxfp6", gfloat_formats.format_info_mxfp6_e3m2),
        ("mxfp6-e2m3", gfloat_formats.format_info_mxfp6_e2m3),
        ("mxfp4", gfloat_formats.format_info_mxfp4_e2m1),
    ],
)
def test_mx_blocks_equal_gfloat(name, theirs):
    format = CATALOGUE[name]
    rng = np.random.default_rng(1)
    blocks = [
        rng.lognormal(mu, sigma, 32) * rng.choice([-1, 1], 32) for mu in (-60, -20, 0, 30) for sigma in (0.1, 2, 5)
    ]
    for block in [*blocks, np.zeros(32), np.eye(32)[3] * 1e-30, np.full(32, 6.0)]:
        for rounding in ("nearest", "nearest_away", "toward_zero"):
            expected = gfloat.quantize_block(theirs, block, gfloat.compute_scale_amax, GFLOAT_ROUNDINGS[rounding])
            assert format.round(block.tolist(), rounding) == expected.tolist(), (name, rounding)
        scale, codes = format.encode(block.tolist())
        assert format.decode(scale, codes) == list(gfloat.decode_block(theirs, [scale, *codes]))


def test_nvfp4_block_equals_ml_dtypes():
    format = CATALOGUE["nvfp4"]
    rng = np.random.default_rng(2)
    for sigma in (0.1, 1.0, 3.0):
        block = rng.lognormal(-1, sigma, 16).astype(np.float32).astype(np.float64) * rng.choice([-1, 1], 16)
        scale = float(np.float64(np.abs(block).max() / 6).astype(ml_dtypes.float8_e4m3fn))
        expected = (block / scale).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * scale
        assert format.round(block.tolist()) == expected.tolist()
    assert format.bits_per_element == 4.5


def test_block_with_nan_or_infinity_is_nan_throughout():
    for bad in (math.nan, math.inf):
        assert all(map(math.isnan, CATALOGUE["mxfp4"].round([1.0, bad, 0.0])))


@st.composite
def float_formats(draw):
    specials = draw(st.sampled_from(["none", "ieee", "fn", "fnuz"]))
    signed = specials == "fnuz" or draw(st.booleans())
    subnormals = draw(st.booleans())
    zero = subnormals or specials == "fnuz" or draw(st.booleans())
    options = {"specials": specials, "signed": signed, "subnormals": subnormals, "zero": zero}
    exponent, mantissa = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    if (exponent, mantissa) == (1, 0) and specials in ("ieee", "fn"):
        exponent = 2  # the special codes would leave nothing but zero
    return FloatFormat(exponent, mantissa, bias=draw(st.none() | st.integers(-9, 20)), **options)


formats = st.one_of(
    float_formats(),
    st.builds(IntFormat, st.integers(2, 8)),
    st.builds(IntFormat, st.integers(2, 8), symmetric=st.just(True)),
    st.builds(IntFormat, st.integers(2, 8), signed=st.just(False)),
)


@given(formats)
def test_a_format_is_a_value(format):
    assert parse_format(str(format)) == format
    assert hash(parse_format(str(format))) == hash(format)
    values = format.values()
    assert len(values) <= 2**format.bits
    assert (np.diff(values) > 0).all()
    assert values[-1] == format.max
    for code in range(2**format.bits):
        value = format.decode(code)
        if math.isfinite(value):
            assert format.decode(format.encode(value)) == value


@given(formats, st.floats(allow_nan=False, allow_infinity=False, width=32), st.floats(0, 1, exclude_max=True))
@settings(max_examples=400)
def test_rounding_lands_on_the_right_value(format, x, uniform):
    values = format.values()
    clipped = min(max(x, values[0]), values[-1])
    lower, upper = values[values <= clipped][-1], values[values >= clipped][0]
    nearest = format.round(x)
    assert nearest in (lower, upper)
    assert abs(nearest - clipped) == min(abs(lower - clipped), abs(upper - clipped))
    inward, outward = sorted((lower, upper), key=abs)
    if 0 in values or abs(x) >= np.abs(values).min():
        assert format.round(x, "toward_zero") == inward
    stochastic = format.round(x, "stochastic", uniform=uniform)
    assert stochastic in (lower, upper)
    if lower < upper and (0 in values or abs(x) >= np.abs(values).min()):
        fraction = (abs(clipped) - abs(inward)) / (abs(outward) - abs(inward))
        assert stochastic == (outward if uniform >= 1 - fraction else inward)


@given(formats, st.floats(0, 1e6), st.sampled_from(["nearest", "nearest_away", "toward_zero"]))
@settings(max_examples=300)
def test_cells_say_what_round_does(format, x, rounding):
    cells = format.cells(rounding)[0]
    if x in cells.edges:
        return  # a tie belongs to either cell; its probability under a density is zero
    point = cells.points[np.searchsorted(cells.edges, x, side="right") - 1]
    if rounding == "toward_zero" and x < cells.points[0]:
        return  # a format without zero: everything below its smallest value becomes that value
    assert format.round(x, rounding) == point


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_every_code_of_the_16_bit_formats(name, dtype):
    codes = np.arange(2**16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        theirs = codes.view(dtype).astype(np.float64)
    ours = np.array([CATALOGUE[name].decode(code) for code in codes.tolist()])
    assert np.array_equal(ours, theirs, equal_nan=True)
    assert np.array_equal(np.signbit(ours[~np.isnan(ours)]), np.signbit(theirs[~np.isnan(theirs)]))


def test_options_in_any_order_and_numpy_integers():
    e8m0 = CATALOGUE["e8m0"]
    assert parse_format("0-8-0:nozero:fn") == parse_format("0-8-0:fn:nozero:nosubnormals") == e8m0
    assert FloatFormat(np.int32(4), np.int64(1)) == FloatFormat(4, 1)
    assert IntFormat(np.int64(4)) == IntFormat(4)
    for format in (FloatFormat(4, 1), IntFormat(8), IdealFormat(3, 1), e8m0):
        assert format.min_positive == format.values()[format.values() > 0][0]


def test_default_formats_spend_every_code():
    assert FloatFormat(3, 0).values()[7:].tolist() == [0, 0.25, 0.5, 1, 2, 4, 8, 16]
    for format in SMALL_FLOATS:
        assert len(format.values()) == 2**format.bits - 1  # all codes but -0


def test_zero_mantissa_ties_go_to_the_even_code():
    format = FloatFormat(3, 0)
    for code in range(1, 7):
        low, high = format.decode(code), format.decode(code + 1)
        even = high if code % 2 else low
        assert format.round((low + high) / 2) == even
        assert format.round((low + high) / 2, "nearest_away") == high
    assert format.round(format.decode(1) / 2) == 0


def test_equation_2_quantizer():
    format = IdealFormat(3, 1)
    assert format.max == 16
    assert format.round(2.0**-4) == 2.0**-4
    assert format.round(2.0**-4 * 0.999) == 0  # dropped, though 2^-4 is nearer
    assert format.round(15.9) == 16
    assert format.round(1.2) == 1
    assert parse_format(str(format)) == format
    # More values than an N-bit code can name: the reason why it is only a model.
    assert len(format.values()) > 2**format.bits
    x = np.random.default_rng(3).lognormal(0, 3, 2000)
    cells = format.cells()[0]
    assert [format.round(v) for v in x] == cells.points[np.searchsorted(cells.edges, x, side="right") - 1].tolist()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FloatFormat(0, 3), "exponent bits must be a whole number from 1 to 11; got 0"),
        (lambda: FloatFormat(4, -1), "mantissa bits must be"),
        (lambda: FloatFormat(4, 1.5), "mantissa bits must be"),
        (lambda: FloatFormat(4, 3, specials="nan"), "specials must be one of"),
        (lambda: FloatFormat(4, 3, zero=False), "zero=False needs subnormals=False"),
        (lambda: FloatFormat(11, 52, bias=-1000), "beyond float64"),
        (lambda: IntFormat(1), "bits of an integer format must be a whole number from 2 to 32; got 1"),
        (lambda: IntFormat(4, symmetric=True, signed=False), "symmetric=True needs signed=True"),
        (lambda: parse_format("1-4"), "'1-4' is not a format; write 1-EXPONENT-MANTISSA"),
        (lambda: parse_format("mxpf4"), "Did you mean 'mxfp4'"),
        (lambda: parse_format("1-4-3:in"), "option 'in' is not one of ieee, fn"),
        (lambda: parse_format("1-0-3"), "'1-0-3' is not a format: exponent bits must be"),
        (lambda: parse_format("1-2-1/x/e8m0"), "block size 'x' is not a whole number"),
        (lambda: FloatFormat(4, 3).decode(256), "a code of 1-4-3 must be a whole number from 0 to 255; got 256"),
        (lambda: FloatFormat(4, 3).encode(0.3), "0.3 is not a value of 1-4-3"),
        (lambda: FloatFormat(4, 3).encode(math.nan), "nan is not a value of 1-4-3"),
        (lambda: FloatFormat(4, 3).round(1.0, "up"), "rounding must be one of 'nearest'"),
        (lambda: FloatFormat(4, 3).round(1e9, saturate=False), "has neither infinity nor NaN"),
        (lambda: FloatFormat(8, 23).values(), r"2\*\*32 codes"),
        (lambda: IdealFormat(3, 1).encode(1.0), "has no codes"),
        (lambda: CATALOGUE["mxfp4"].round([0.0] * 33), "at most 32 elements"),
        (lambda: CATALOGUE["mxfp4"].round([0.3], "stochastic"), "needs uniforms=, 1 draws"),
        (lambda: CATALOGUE["mxfp4"].round([0.3, 1.0], "stochastic", uniforms=[0.1]), "got 1 for 2"),
        (lambda: FloatFormat(4, 3).round(0.3, "stochastic"), "uniform must be a draw from"),
        (lambda: IntFormat(4).round(0.3, "stochastic", uniform=7.0), "uniform must be a draw from"),
        (lambda: parse_format("1-4-3:ieee:fn"), "option 'fn' says again what 'ieee' has said"),
        (lambda: parse_format("1-4-3:bias=1:bias=2"), "option 'bias=2' says again"),
    ],
)
def test_bad_input_gets_one_sentence(build, message):
    with pytest.raises(InvalidValue, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_bad_types_get_type_errors():
    with pytest.raises(InvalidType, match="must be a string such as '1-4-1'"):
        parse_format(4)
    with pytest.raises(InvalidType, match="element of a block format must be"):
        BlockFormat("fp4", 32, FloatFormat(4, 3))
    with pytest.raises(TypeError, match="scale of a block format must be"):
        BlockFormat(FloatFormat(2, 1), 32, IntFormat(8))


def test_nan_stays_nan_and_infinity_saturates():
    for format in (FloatFormat(4, 3), IntFormat(4), IdealFormat(3, 1)):
        assert math.isnan(format.round(math.nan))
        assert format.round(math.inf) == format.max
        assert format.round(-math.inf) == format.values()[0]
