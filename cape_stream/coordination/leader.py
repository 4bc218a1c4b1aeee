"""A leader lease: one of the candidates leads, and knows when it does no longer."""

import threading
from collections.abc import Callable
from contextlib import suppress

from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.keys import Name
from cape_stream.coordination.leases import LOGGER, Lease
from cape_stream.coordination.locks import Locks
from cape_stream.errors import CapeError, Fenced, Retry

LEAD_TTL_MS = 15_000
LEAD_HOLD_MAX_MS = 365 * 24 * 3_600_000
STAND_BY_MS = 1_000
RETRY_MS = 500


class Candidate:
    """Stands for the lead in a thread of its own, and runs ``duty`` in it while it leads.

    Without the server nobody is elected; who leads stops at the deadline of its lease.

    Args:
        locks: where the lease is.
        name: of the office.
        duty: called again and again while we lead, with the lease; shall return soon (a second),
            or call `Lease.check` before each thing it does.
        ttl_ms: how soon another one leads after the leader died.
    """

    def __init__(
        self, locks: Locks, name: Name, duty: Callable[[Lease], None], ttl_ms: int = LEAD_TTL_MS
    ) -> None:
        self._locks = locks
        self._name = name
        self._duty = duty
        self._ttl_ms = ttl_ms
        self._stopping = threading.Event()
        self._lease: Lease | None = None
        self._thread = threading.Thread(target=self._run, name="cape-candidate", daemon=True)

    @property
    def is_leading(self) -> bool:
        """True while the lease is ours, by the steady clock of this machine."""
        lease = self._lease
        return lease is not None and lease.is_held()

    def start(self) -> None:
        """Stand for the lead."""
        self._thread.start()

    def close(self) -> None:
        """Stop the duty, then give the lead back, so that the next one leads at once."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                lease = self._locks.acquire(
                    self._name,
                    wait_ms=STAND_BY_MS,
                    ttl_ms=self._ttl_ms,
                    hold_max_ms=LEAD_HOLD_MAX_MS,
                )
            except Retry as error:
                self._stopping.wait((error.after_ms or RETRY_MS) / 1_000)
                continue
            except CapeError:
                LOGGER.exception("nobody can stand for %r", self._name)
                self._stopping.wait(RETRY_MS / 1_000)
                continue
            if lease is not None:
                self._lead(lease)

    def _lead(self, lease: Lease) -> None:
        self._lease = lease
        LOGGER.info("leads %s under fence %d", lease.name, lease.fence)
        try:
            while not self._stopping.is_set() and lease.is_held():
                began_ms = monotonic_ms()
                self._do_duty(lease)
                if monotonic_ms() - began_ms < 1:
                    self._stopping.wait(0.01)  # a duty with nothing to do shall not spin
        finally:
            self._lease = None
            with suppress(CapeError):
                lease.release()

    def _do_duty(self, lease: Lease) -> None:
        try:
            self._duty(lease)
        except Fenced:
            LOGGER.warning("no longer leads %s", lease.name)
        except Exception:  # noqa: BLE001  # the boundary of user code: logged, and tried again
            LOGGER.exception("the duty of %s failed; it is tried again", lease.name)
            self._stopping.wait(RETRY_MS / 1_000)
