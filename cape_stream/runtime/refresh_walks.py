"""The two walks along one source: the news from where we stand, and now and then all of it."""

from collections.abc import Callable

from cape_stream.ports.background import Background
from cape_stream.ports.log import Producer
from cape_stream.ports.source import EventSource
from cape_stream.runtime.refresh_marks import Mark
from cape_stream.runtime.refresh_settings import RefreshSettings
from cape_stream.runtime.refresh_sweep import Sweep


class DomainWalks:
    """Refresh of one domain, while this process leads.

    Args:
        name: of the domain.
        source: whom to ask.
        topic: where its pings go.
        background: where calls to the source run.
        settings: pace and bounds.
        send: see `Sweep`.
    """

    def __init__(
        self,
        name: str,
        source: EventSource,
        topic: str,
        *,
        background: Background,
        settings: RefreshSettings,
        send: Callable[[str, str, int], bool],
    ) -> None:
        self._settings = settings
        self.news = Sweep(name, source, topic, background, settings, send)
        self.full = Sweep(
            f"{name} (full)", source, topic, background, settings, send, settings.full_pause_ms
        )
        self._full_ms = 0
        self._is_first = False
        """True while the news walk itself comes from the very beginning."""
        self._full_runs = False

    @property
    def busy(self) -> bool:
        """True while a turn should come soon."""
        return self.news.busy or self.full.busy

    def mark(self) -> Mark:
        """How far it came; everything up to it is pinged and acknowledged."""
        return Mark(self.news.watermark, self._full_ms)

    def start(self, mark: Mark, now_ms: int) -> None:
        """Go on from where the last leader stopped.

        Its clock may have been ahead of ours by days; the next full sweep must not wait for that.
        """
        self._full_ms = min(mark.full_ms, now_ms)
        self._is_first = mark.watermark is None
        self._full_runs = False
        self.news.start_over(mark.watermark, now_ms)
        self.full.start_over(None, now_ms)

    def stop(self) -> None:
        """Forget what is under way."""
        self.start(Mark(), 0)

    def turn(self, producer: Producer, now_ms: int) -> None:
        """Move both walks on; never waits."""
        if self.news.turn(producer, now_ms) and self._is_first:
            self._is_first = False
            self._full_ms = now_ms
        if self._full_runs:
            if self.full.turn(producer, now_ms):
                self._full_runs = False
                self._full_ms = now_ms
        elif self._is_full_due(now_ms):
            self._full_runs = True
            self.full.start_over(None, now_ms)

    def repeat_round(self, now_ms: int) -> None:
        """The log gave up a ping of this domain."""
        self.news.repeat_round(now_ms)
        self.full.repeat_round(now_ms)

    def _is_full_due(self, now_ms: int) -> bool:
        interval_ms = self._settings.full_interval_ms
        return bool(interval_ms) and not self._is_first and now_ms - self._full_ms >= interval_ms
