"""What one lambda gives is what the next one gets, whatever it is made of."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.sdk.outputs import decode_output, encode_output

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(JSON | st.binary())
def test_output_comes_back_as_it_was_given(value: Any) -> None:
    assert decode_output(encode_output(value)) == value
