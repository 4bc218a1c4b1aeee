"""Acquire, expire, renew, release and write, interleaved at random, with lost scripts between."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cape_stream.coordination.fencing import FencedValues
from cape_stream.coordination.lock_scripts import EXCLUSIVE, LOCK, LockKind
from cape_stream.coordination.locks import LockDesk
from cape_stream.coordination.store import Store
from tests.valkey import World

PARTIES = 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "renew", "release", "write", "expire", "forget", "unload"]),
        st.integers(0, PARTIES - 1),
    ),
    max_size=40,
)


class Party:
    """One that wants the lock, and what it believes."""

    def __init__(self, store: Store, kind: LockKind) -> None:
        self.desk = LockDesk(store.keys("lock"), kind, "job", 60_000)
        self.fence = 0


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, kind=st.sampled_from([LOCK, EXCLUSIVE]))
def test_one_holds_it_and_only_its_own_release_frees_it(
    store: Store, valkey: World, steps: list[tuple[str, int]], kind: LockKind
) -> None:
    key = f"{valkey.prefix}:lock:{{job}}:"
    ask = valkey.server.ask
    ask("DEL", *(key + part for part in ("held", "fence", "wake", "readers", "intent")))
    ask("DEL", f"{valkey.prefix}:fenced:{{job}}:value")
    world = LockWorld(store, valkey, kind, key)
    for verb, number in steps:
        getattr(world, verb)(world.parties[number])


class LockWorld:
    """The lock, and what is true of it."""

    def __init__(self, store: Store, valkey: World, kind: LockKind, key: str) -> None:
        self.parties = [Party(store, kind) for _ in range(PARTIES)]
        self._store = store
        self._ask = valkey.server.ask
        self._key = key
        self._guarded = FencedValues(store)
        self._holder: Party | None = None
        self._highest = self._written = 0

    def acquire(self, party: Party) -> None:
        won = self._store.run(party.desk.acquire())
        assert isinstance(won, tuple) == (self._holder in {None, party})
        if isinstance(won, tuple):
            is_again = self._holder is party and won[0] == party.fence
            assert is_again or won[0] > self._highest
            self._highest = max(self._highest, won[0])
            self._holder, party.fence = party, won[0]

    def renew(self, party: Party) -> None:
        is_ours = self._store.run(party.desk.renew(party.fence, urgent=False))
        assert is_ours == (self._holder is party)

    def release(self, party: Party) -> None:
        was = self._holder
        freed = self._store.run(party.desk.release(party.fence))
        if was is party:
            assert freed
            self._holder = None
        elif was is not None:
            assert not freed
        assert self._ask("EXISTS", self._key + "held") == (self._holder is not None)

    def write(self, party: Party) -> None:
        if party.fence:
            is_written = self._guarded.put("job", party.fence, b"x")
            assert is_written == (party.fence >= self._written)
            self._written = max(self._written, party.fence)

    def expire(self, party: Party) -> None:
        self._ask("DEL", self._key + "held")
        self._holder = None

    def forget(self, party: Party) -> None:
        self._ask("DEL", self._key + "fence")

    def unload(self, party: Party) -> None:
        self._ask("SCRIPT", "FLUSH")
