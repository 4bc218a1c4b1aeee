"""Where outputs wait that are too large to travel in a record."""

from typing import Protocol


class ClaimStore(Protocol):
    """Keeps values under names that say what is in them. Called from several threads at once.

    Nobody deletes one by one: a value is needed until every lambda that takes it is done, which no
    worker knows. Values that are older than any event may become go by age, by whatever deletes
    things where the store is; `put` makes a value that is there young again, at most a day late.
    """

    @property
    def place(self) -> str:
        """For messages: where it is."""
        ...

    def put(self, name: str, value: bytes) -> None:
        """Keep ``value``, durably and whole, or keep it longer if it is there.

        Args:
            name: 64 hexadecimal digits, the same for the same value.
            value: any bytes.

        Raises:
            Retry: the store is away, full, or refuses us; what it says is in the reason.
        """
        ...

    def get(self, name: str) -> bytes | None:
        """The value, None if there is none. Raises Retry as `put` does."""
        ...

    def close(self) -> None:
        """Free connections."""
        ...
