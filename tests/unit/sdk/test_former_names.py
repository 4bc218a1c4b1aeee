"""A topology that had another name before."""

import pytest

from cape_stream.sdk.app import App
from cape_stream.sdk.declaration import DeclarationError
from tests.unit.sdk.apps import flights
from tests.unit.sdk.test_app import work


def test_topology_says_what_it_was_called_before() -> None:
    app = App("flight-ops")
    domain = flights(app)
    domain.topology("delays", start="latest", formerly="lateness").handler(work)

    [spec] = app.domain_specs()[0].topologies

    assert (spec.formerly, spec.from_latest, spec.start) == (("lateness",), True, 0)


@pytest.mark.parametrize("other", ["lateness", "rotations"])
def test_former_name_has_one_heir(other: str) -> None:
    app = App("flight-ops")
    domain = flights(app)
    domain.topology("delays", formerly=["lateness"]).handler(work)
    domain.topology(other, formerly=["lateness"] if other == "rotations" else []).handler(work)

    with pytest.raises(DeclarationError, match="formerly 'lateness'"):
        app.domain_specs()
