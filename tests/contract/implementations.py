"""How an implementation of a port takes part in its suite, and how it says what it cannot do.

A test names what it needs by ``@needs("full queue")``. An implementation lists what it cannot do
in ``cannot``, with the reason; the test is then expected to fail, strictly: an implementation that
can do it after all fails the suite until its list is corrected, and so does a word in a list that
no test asks for.
"""

from collections.abc import Mapping
from typing import Protocol

import pytest


class Implementation(Protocol):
    """The part that both ports share."""

    @property
    def cannot(self) -> Mapping[str, str]:
        """Word of a `needs` mark → why this implementation cannot do that."""
        ...


def needs(word: str) -> pytest.MarkDecorator:
    """Mark a test with what it asks of an implementation beyond the plain contract."""
    return pytest.mark.needs(word)


def expect_what_is_declared(request: pytest.FixtureRequest, implementation: Implementation) -> None:
    """Turn the implementation's declaration into a strict expectation for this test."""
    for mark in request.node.iter_markers("needs"):
        reason = implementation.cannot.get(mark.args[0])
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
