"""Which transactions' rows are settled, decided from sightings alone."""

import random

from hypothesis import given
from hypothesis import strategies as st

from cape_stream.adapters.sources.settling import (
    PENDING_MAX,
    XIDS,
    Horizon,
    Sighting,
    full_xid,
    parse_snapshot,
)


def see(horizon: Horizon, oldest: int, following: int, *writers: str) -> int:
    """One sighting, begun and complete before the next."""
    return horizon.observe(horizon.begin(), Sighting(oldest, following, frozenset(writers)))


def test_snapshot_is_read_with_and_without_running_transactions() -> None:
    assert parse_snapshot("755:755:") == (755, 755)
    assert parse_snapshot("10:4294967400:10,4294967399") == (10, 4294967400)


def test_horizon_settles_everything_when_nobody_writes() -> None:
    assert see(Horizon(), 100, 100) == 100


def test_horizon_stops_at_the_oldest_transaction_of_another_table() -> None:
    horizon = Horizon()

    assert see(horizon, 90, 100) == 90
    assert see(horizon, 90, 120) == 90
    assert see(horizon, 125, 125) == 125


def test_horizon_waits_for_writers_even_when_their_id_is_higher() -> None:
    """The row of 100 is there; writer 101 may hold a lower sequence id."""
    horizon = Horizon()

    assert see(horizon, 101, 102, "a") == 0
    assert see(horizon, 101, 102, "a") == 0
    assert see(horizon, 102, 102) == 102


def test_horizon_waits_for_a_writer_that_has_no_id_yet() -> None:
    horizon = Horizon()

    assert see(horizon, 100, 100, "drew an id") == 0
    assert see(horizon, 100, 101, "drew an id") == 0
    assert see(horizon, 101, 101) == 101


def test_horizon_rises_although_there_is_always_some_writer() -> None:
    horizon = Horizon()

    boundaries = [see(horizon, 100 + n, 102 + n, f"w{n}", f"w{n + 1}") for n in range(50)]

    assert boundaries[2] == 100
    assert boundaries == sorted(boundaries)
    assert boundaries[-1] == 147


def test_horizon_keeps_what_was_settled_before_a_long_writer_began() -> None:
    horizon = Horizon()
    see(horizon, 100, 100)

    assert see(horizon, 101, 102, "long") == 100
    assert see(horizon, 101, 500, "long") == 100
    assert see(horizon, 500, 500) == 500


def test_horizon_takes_no_proof_from_a_sighting_begun_before() -> None:
    """A slow statement read the writers before this one had begun to write."""
    horizon = Horizon()
    slow = horizon.begin()
    see(horizon, 100, 101, "w")

    assert horizon.observe(slow, Sighting(100, 100, frozenset({"other"}))) == 0
    assert see(horizon, 100, 101, "other") == 100


def test_horizon_starts_over_when_the_ids_went_back() -> None:
    """Another server, or one restored from an older copy."""
    horizon = Horizon()
    see(horizon, 5_000, 5_000)

    assert see(horizon, 100, 101, "w") == 0
    assert see(horizon, 101, 101) == 101


def test_horizon_keeps_its_boundary_when_an_old_sighting_comes_late() -> None:
    horizon = Horizon()
    slow = horizon.begin()
    see(horizon, 5_000, 5_000)

    assert horizon.observe(slow, Sighting(100, 100, frozenset())) == 5_000


def test_horizon_remembers_a_bounded_number_of_sightings() -> None:
    horizon = Horizon()
    for number in range(100 * PENDING_MAX):
        see(horizon, 100 + number, 200 + number, "long", f"w{number}")

    assert len(horizon._pending) == PENDING_MAX
    assert see(horizon, 10_000, 10_000, "new") == 99 + 100 * PENDING_MAX


@given(st.integers(3, 2**40), st.integers(1, XIDS - 1))
def test_full_xid_is_exact_for_any_transaction_of_the_last_four_billion(
    xid: int, later: int
) -> None:
    following = xid + later

    assert full_xid(xid % XIDS, following) == xid


@given(st.integers(3, 2**40), st.integers(XIDS, 2**45))
def test_full_xid_never_makes_a_transaction_older_than_it_is(xid: int, later: int) -> None:
    following = xid + later

    assert xid <= full_xid(xid % XIDS, following) <= following


@given(st.integers(0, 2**32))
def test_horizon_never_passes_a_gap_that_a_transaction_still_fills(seed: int) -> None:
    """Random transactions on one subject: whatever lies below the boundary has no gap before it.

    Each gets its transaction id, its lock and its sequence ids at moments of its own choice, but
    the lock before the first sequence id, as PostgreSQL does.
    """
    world = World(random.Random(seed))
    for _ in range(60):
        world.step()
        world.check()


class World:
    """Transactions of one table, in the order in which PostgreSQL does things."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.horizon = Horizon()
        self.next_xid = 100
        self.next_sequence = 1
        self.names = 0
        self.open: dict[str, int | None] = {}
        self.locked: set[str] = set()
        self.drawn: dict[str, list[int]] = {}
        self.visible: dict[int, int] = {}
        """Sequence id → transaction id of rows that are there."""

    def step(self) -> None:
        moves = [self.begin, self.write_elsewhere, self.draw, self.draw, self.commit, self.abort]
        self.chance.choice(moves)()

    def begin(self) -> None:
        self.names += 1
        self.open[f"t{self.names}"] = None

    def pick(self) -> str | None:
        return self.chance.choice(sorted(self.open)) if self.open else None

    def give_id(self, name: str) -> int:
        xid = self.open[name]
        if xid is None:
            xid, self.next_xid = self.next_xid, self.next_xid + 1
            self.open[name] = xid
        return xid

    def write_elsewhere(self) -> None:
        if (name := self.pick()) is not None:
            self.give_id(name)

    def draw(self) -> None:
        if (name := self.pick()) is not None:
            self.locked.add(name)
            self.drawn.setdefault(name, []).append(self.next_sequence)
            self.next_sequence += 1

    def end(self, name: str) -> list[int]:
        del self.open[name]
        self.locked.discard(name)
        return self.drawn.pop(name, [])

    def commit(self) -> None:
        if (name := self.pick()) is not None:
            xid = self.give_id(name)
            self.visible.update(dict.fromkeys(self.end(name), xid))

    def abort(self) -> None:
        if (name := self.pick()) is not None:
            self.end(name)

    def check(self) -> None:
        running = [xid for xid in self.open.values() if xid is not None]
        oldest = min(running, default=self.next_xid)
        turn = self.horizon.begin()
        sighting = Sighting(oldest, self.next_xid, frozenset(self.locked))
        boundary = self.horizon.observe(turn, sighting)
        settled = [number for number, xid in self.visible.items() if xid < boundary]
        pending = [number for numbers in self.drawn.values() for number in numbers]
        assert not settled or not pending or max(settled) < min(pending)
