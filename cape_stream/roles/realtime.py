"""`cape realtime` and `cape ws`: stream servers on Valkey."""

import sys
from collections.abc import Callable
from pathlib import Path

from cape_stream.coordination.async_store import AsyncStore
from cape_stream.coordination.credentials import AsyncValkeyHookTokens
from cape_stream.coordination.settings import ValkeySettings
from cape_stream.errors import Fatal
from cape_stream.ports.channels import ChannelFeed
from cape_stream.realtime.calls import CallServer
from cape_stream.realtime.keys import GrantKeys, rotate
from cape_stream.realtime.server import StreamServer
from cape_stream.realtime.serving import serve
from cape_stream.realtime.settings import RealtimeSettings
from cape_stream.realtime.valkey_feed import ValkeyChannelFeed
from cape_stream.roles.contexts import store_url

WORKER_TOKEN_CHARACTERS_MIN = 32
DESCRIPTORS_BESIDE = 64
"""Files a process has open beside its connections."""


def serve_streams(settings: RealtimeSettings) -> None:
    """Run `cape realtime` until a signal.

    Raises:
        Fatal: the keys or the port cannot be had, or a part of it died.
    """
    store_url(settings)
    server = StreamServer(
        lambda: _feed(settings), GrantKeys.from_file(settings.keys_file), settings
    )
    allow_connections(settings.connections_max)
    serve(server, settings, settings.port, _say("streams"))


def serve_platform(settings: RealtimeSettings) -> None:
    """Run `cape ws` until a signal.

    Raises:
        Fatal: the keys, the workers' secret or the port cannot be had, or a part of it died.
    """
    store = AsyncStore(ValkeySettings(url=store_url(settings)))
    calls = CallServer(
        AsyncValkeyHookTokens(store), worker_token(settings.worker_token_file), settings
    )
    server = StreamServer(
        lambda: _feed(settings),
        GrantKeys.from_file(settings.keys_file),
        settings,
        more_routes=calls.routes,
    )
    allow_connections(settings.connections_max)
    serve(server, settings, settings.ws_port, _say("sockets"), settings.call_bytes_max)


def rotate_keys(settings: RealtimeSettings) -> str:
    """Put a new key first, and say what that means.

    Raises:
        Fatal: the file is not named, or cannot be read or written.
    """
    if not settings.keys_file:
        raise Fatal("name the file: `cape realtime rotate-keys --keys-file FILE`")
    name = rotate(settings.keys_file)
    return (
        f"{settings.keys_file}: {name} signs from now on, two older keys still verify;"
        " rotate at most once an hour, and give the file to every machine that mints or streams"
    )


def worker_token(path: str) -> str:
    """The secret that workers show; empty if no file is named.

    Raises:
        Fatal: the file cannot be read, or holds less than a secret.
    """
    if not path:
        return ""
    try:
        found = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Fatal(f"realtime.worker_token_file {path} cannot be read: {error}") from error
    if len(found) < WORKER_TOKEN_CHARACTERS_MIN:
        raise Fatal(
            f"realtime.worker_token_file {path} holds fewer than {WORKER_TOKEN_CHARACTERS_MIN}"
            " characters; `openssl rand -hex 32` makes a good one"
        )
    return found


def allow_connections(count: int) -> None:
    """Raise this process's limit of open files to what so many connections need, if it may.

    Raises:
        Fatal: it may not.
    """
    try:
        import resource
    except ImportError:  # not on every system
        return
    wanted = count + DESCRIPTORS_BESIDE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Fatal(
            f"realtime.connections_max is {count}, but this process may open only {hard} files:"
            f" run `ulimit -n {wanted}` before, or set fewer connections"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _feed(settings: RealtimeSettings) -> ChannelFeed:
    return ValkeyChannelFeed(store_url(settings), settings.retention, settings.store_timeout_ms)


def _say(what: str) -> Callable[[str, int], None]:
    def say(host: str, port: int) -> None:
        sys.stderr.write(f"cape: {what} on {host}:{port}; SIGTERM drains, Ctrl-C too\n")
        sys.stderr.flush()

    return say
