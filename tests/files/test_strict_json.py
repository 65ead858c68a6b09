"""The one reader of JSON: what it takes, and the sentence for what it does not."""

import json
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import REFUSED, attempt, nested

from lograd import InvalidValue
from lograd.files.strict_json import DEEPEST, depth, parse

WHOLE = st.integers(-(2**63), 2**63 - 1)
PLAIN = nested(st.none() | st.booleans() | WHOLE | st.floats(allow_nan=False, allow_infinity=False) | st.text())


@given(PLAIN, st.booleans())
def test_what_python_writes_is_read_back(value, ascii_only):
    assert parse(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=60) | st.text('{}[]",:\\u0123dtrue ', max_size=60).map(str.encode))
@settings(max_examples=300)
def test_any_bytes_are_values_or_a_sentence(content):
    """What is taken, the standard reader takes as well and with the same result."""
    value = attempt(lambda: parse(content))
    if value is not REFUSED:
        assert value == json.loads(content.decode("utf-8-sig"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[NaN]", "NaN is no number of JSON"),
        (b"-Infinity", "-Infinity is no number of JSON"),
        (b"1e999", "1e999 is beyond float64"),
        (b"[1" + b"0" * 400 + b"]", "10000000000000000000... of 401 digits does not fit 64 bits"),
        (str(2**63).encode(), "does not fit 64 bits"),
        (b"9" * 5000, "of 5000 digits does not fit 64 bits"),
        (b"0." + b"9" * 5000, "is beyond float64"),
        (b'{"a": 1, "b": 2, "a": 3}', "the name 'a' stands twice in one object"),
        (b'"\\ud800"', "not UTF-8"),
        (b'\xff{"a": 1}', "not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b"[" * 200_000, "nested more than 64 levels deep"),
        (b'{"a":' * 200_000, "nested more than 64 levels deep"),
        (b"[" * 100 + b"]" * 100, "nested more than 64 levels deep"),
        (b"", "Expecting value"),
        (b'{"a": 1} trailing', "Extra data"),
        (b"\x00" * 20, "Expecting value"),
    ],
)
def test_what_is_refused(content, words):
    with pytest.raises(InvalidValue, match=words) as caught:
        parse(content)
    assert str(caught.value).startswith("it is not JSON: ")
    assert len(str(caught.value)) < 200


def test_brackets_in_strings_do_not_count():
    text = json.dumps(["[[[[", '"]]{{\\', {"{": "}"}])
    assert depth(text) == 2
    assert parse(text.encode()) == json.loads(text)
    nested = "[" * DEEPEST + "]" * DEEPEST
    assert depth(nested) == DEEPEST
    assert parse(nested.encode()) == json.loads(nested)


def test_a_string_without_an_end_takes_no_longer_than_it_is():
    """Were each quote inside it tried as a beginning, a megabyte would take hours."""
    start = time.monotonic()
    with pytest.raises(InvalidValue, match="Unterminated string"):
        parse(b'"' + b'\\"[' * 300_000)
    assert time.monotonic() - start < 60


def test_a_mark_at_the_beginning_is_skipped():
    assert parse(b'\xef\xbb\xbf{"a": 0.5}') == {"a": 0.5}
    assert math.copysign(1, parse(b"-0.0")) == -1
