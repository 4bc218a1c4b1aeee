"""Hook tokens in the memory of one process: for `cape run`, which needs no services."""

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable

from cape_stream.coordination.breaker import monotonic_ms
from cape_stream.coordination.scopes import (
    HOOK_LIFETIME_MAX_MS,
    TOKENS_PER_HOLDER_MAX,
    checked_names,
)
from cape_stream.errors import Fenced, Reject
from cape_stream.ports.credentials import Scope

_Holder = tuple[str, str, str]


class MemoryHookTokens:
    """See `cape_stream.ports.credentials.HookTokens`; a restart ends every token.

    Args:
        clock_ms: a steady clock.
    """

    def __init__(self, clock_ms: Callable[[], float] = monotonic_ms) -> None:
        self._clock_ms = clock_ms
        self._offset_ms = time.time() * 1_000 - clock_ms()
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[bytes, float, list[str]]] = {}
        self._ended: dict[_Holder, float] = {}

    def mint(
        self, environment: str, app: str, execution: str, subject: str, lifetime_ms: int
    ) -> str:
        """See `HookTokens.mint`."""
        names = checked_names(environment, app, execution, subject)
        if not 0 < lifetime_ms <= HOOK_LIFETIME_MAX_MS:
            raise Reject(f"a hook may live 1 to {HOOK_LIFETIME_MAX_MS} ms, not {lifetime_ms} ms")
        token_id, now_ms = secrets.token_urlsafe(9), self._clock_ms()
        token = f"hook1.memory.{token_id}.{secrets.token_urlsafe(32)}"
        with self._lock:
            self._forget(now_ms)
            if (environment, app, execution) in self._ended:
                raise Fenced("the execution has ended, so it gets no more tokens")
            if len(self._of((environment, app, execution))) >= TOKENS_PER_HOLDER_MAX:
                raise Reject(f"a holder has at most {TOKENS_PER_HOLDER_MAX} live tokens")
            self._rows[token_id] = (_digest(token), now_ms + lifetime_ms, names)
        return token

    def check(self, token: str) -> Scope | None:
        """See `HookTokens.check`."""
        with self._lock:
            now_ms = self._clock_ms()
            self._forget(now_ms)
            token_id = self._known(token)
            if token_id is None:
                return None
            _, until_ms, (environment, app, execution, subject) = self._rows[token_id]
        expires_ms, remaining_ms = int(until_ms + self._offset_ms), max(1, int(until_ms - now_ms))
        return Scope(environment, app, execution, subject, expires_ms, remaining_ms, token_id)

    def revoke(self, token: str) -> bool:
        """See `HookTokens.revoke`."""
        with self._lock:
            self._forget(self._clock_ms())
            token_id = self._known(token)
            return token_id is not None and self._rows.pop(token_id, None) is not None

    def end_execution(self, environment: str, app: str, execution: str) -> int:
        """See `HookTokens.end_execution`."""
        holder = (environment, app, execution)
        checked_names(*holder, "")
        with self._lock:
            now_ms = self._clock_ms()
            self._forget(now_ms)
            found = self._of(holder)
            for token_id in found:
                del self._rows[token_id]
            self._ended[holder] = now_ms + HOOK_LIFETIME_MAX_MS
        return len(found)

    def _known(self, token: str) -> str | None:
        parts = token.split(".")
        row = self._rows.get(parts[2]) if len(parts) == 4 else None
        if row is None or not hmac.compare_digest(row[0], _digest(token)):
            return None
        return parts[2]

    def _of(self, holder: _Holder) -> list[str]:
        return [each for each, row in self._rows.items() if tuple(row[2][:3]) == holder]

    def _forget(self, now_ms: float) -> None:
        for token_id in [each for each, row in self._rows.items() if row[1] <= now_ms]:
            del self._rows[token_id]
        for holder in [each for each, until_ms in self._ended.items() if until_ms <= now_ms]:
            del self._ended[holder]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()
