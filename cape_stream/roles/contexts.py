"""Contexts for executions: what a handler publishes and grants with."""

import os
from collections.abc import Callable

from cape_stream.ports.credentials import HookTokens
from cape_stream.realtime.context import RealtimeContext
from cape_stream.realtime.keys import GrantKeys
from cape_stream.realtime.settings import DEFAULT_URL, RealtimeSettings
from cape_stream.realtime.valkey_writer import ValkeyChannelWriter, client_url

URL_VARIABLE = "CAPE_VALKEY_URL"


def store_url(settings: RealtimeSettings) -> str:
    """Where histories are: as set, else as the environment says, else this machine.

    Raises:
        Fatal: it is no address the channel store can have.
    """
    found = settings.valkey_url or os.environ.get(URL_VARIABLE, "") or DEFAULT_URL
    client_url(found)
    return found


class Contexts:
    """Gives each execution its context, by its hook token; one writer serves them all.

    Args:
        settings: where channels are, and the keys.
        tokens: checks hook tokens; stays open.

    Raises:
        Fatal: the keys cannot be had, or the address is none.
    """

    def __init__(self, settings: RealtimeSettings, tokens: HookTokens) -> None:
        self._settings = settings
        self._tokens = tokens
        self._keys = GrantKeys.from_file(settings.keys_file)
        self._writer = ValkeyChannelWriter(
            store_url(settings), settings.retention, settings.store_timeout_ms
        )

    def of(self, hook_token: str | Callable[[], str]) -> RealtimeContext:
        """The context of one execution; see `RealtimeContext`."""
        return RealtimeContext(hook_token, self._tokens, self._writer, self._keys, self._settings)

    def close(self) -> None:
        """Free connections."""
        self._writer.close()
