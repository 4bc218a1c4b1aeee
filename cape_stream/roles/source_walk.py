"""All subjects that a source tells of, from the beginning of its time."""

from collections.abc import Iterator

from cape_stream.ports.source import EventSource

SUBJECTS_PAGE = 1_000
"""Subjects asked of a source at a time."""


def subjects_of(source: EventSource) -> Iterator[tuple[str, int]]:
    """(subject, newest sequence id told with it); a subject may come again, as its source tells it.

    Raises whatever the source raises.
    """
    watermark: str | None = None
    while True:
        page = source.changed_since(watermark, SUBJECTS_PAGE)
        yield from page.subjects
        watermark = page.watermark
        if not page.more:
            return
