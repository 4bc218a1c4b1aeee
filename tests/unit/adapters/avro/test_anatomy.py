"""The dissection the mutation tests rely on is right itself: it accounts for every byte."""

import json

import pytest

from cape_stream.adapters.avro import AvroCodec
from cape_stream.shipped import shipped
from tests.unit.adapters.avro.anatomy import parts
from tests.unit.adapters.avro.samples import SAMPLES, Sample


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_parts_cover_a_body_without_gaps(sample: Sample) -> None:
    schema = json.loads((shipped("schemas") / f"{sample.record}.avsc").read_text())
    body = sample.encode(AvroCodec(), sample.value)[5:]

    found = list(parts(schema, body))

    assert [part.start for part in found] == [0, *(part.end for part in found[:-1])]
    assert found[-1].end == len(body)
