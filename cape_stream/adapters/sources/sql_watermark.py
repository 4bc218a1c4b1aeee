"""Where a sweep stopped, as the opaque text that the refresh leader keeps between calls."""

import json
from dataclasses import dataclass

VERSION = 1

Place = tuple[int | float | str, ...]
"""Column values of the last row a sweep has passed; empty before the first row."""


@dataclass(slots=True, frozen=True)
class Sweep:
    """Names one way of sweeping one table; a watermark of another one means nothing to it."""

    table: str
    columns: tuple[str, ...]
    """The columns whose order is followed; a place has a value for each."""

    def encode(self, place: Place) -> str:
        """Return the watermark of a place."""
        return json.dumps({**self._identity(), "after": place})

    def _identity(self) -> dict[str, object]:
        return {"version": VERSION, "table": self.table, "columns": list(self.columns)}

    def decode(self, watermark: str | None) -> Place:
        """Return the place of a watermark; that before the first row when it is not ours.

        Starting over reports subjects once more, which is harmless; resuming in the wrong place
        would skip some. So a table or column that was renamed, and a watermark that cannot be
        read, start over.
        """
        try:
            read = json.loads(watermark or "null")
        except ValueError:
            return ()
        if not isinstance(read, dict) or any(
            read.get(key) != value for key, value in self._identity().items()
        ):
            return ()
        after = read.get("after")
        if not isinstance(after, list) or any(
            type(each) not in (int, float, str) for each in after
        ):
            return ()
        return tuple(after) if len(after) == len(self.columns) else ()
