"""Readers that stop, beside others that read: memory, latency, and when the dead are noticed.

One process, defaults. Clients of one channel, half of them event streams, half WebSockets; some of
both never read. Messages of 1 KB at a steady rate; then one client vanishes without a word.

alone     those who read, without anybody who has stopped
beside    the same beside those who have stopped: memory every second, who was cut off, and why
vanished  from the moment a client's host is gone to the moment the server lets go of it

Usage: make bench-realtime-slow [ARGS="--reading 200 --stopped 1000 --per-s 500 --seconds 60"]
"""

import argparse
import json
import socket
import time
from contextlib import suppress
from typing import Any

from cape_stream.roles.realtime import allow_connections
from tests.bench.figures import yardstick_us
from tests.bench.stream_load import Load, Target
from tests.bench.stream_servers import Cape
from tests.integration.realtime.processes import figures_of
from tests.integration.realtime.test_slow_readers import TCP_REPAIR, stopped_reader
from tests.valkey import LocalValkey

MESSAGE_BYTES = 1_000
GIVE_UP_S = 120


def main() -> None:
    """Run every phase and print the figures."""
    options = _options()
    allow_connections(options.stopped + options.reading)
    valkey = LocalValkey()
    cape = Cape(valkey.url)
    try:
        half = options.reading // 2
        loads = [Load(cape.target, half), Load(_websockets(cape), half)]
        figures = {f"alone_{key}": each for key, each in _run(cape, loads, half, options).items()}
        stopped = _stop(cape, options.stopped)
        figures |= _run(cape, loads, half, options)
        figures |= _told(cape, 2 * half)
        for load in loads:
            load.close()
        for sock in stopped:
            sock.close()
        figures["vanished_noticed_s"] = _vanish(cape)
    finally:
        cape.close()
        valkey.close()
    print(json.dumps({**figures, "stopped": options.stopped, "yardstick_us": yardstick_us()}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--reading", type=int, default=200)
    parser.add_argument("--stopped", type=int, default=1_000)
    parser.add_argument("--per-s", type=int, default=500, help="messages a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each phase")
    return parser.parse_args()


def _websockets(cape: Cape) -> Target:
    request = (
        f"GET /v1/stream?grant={cape.token()} HTTP/1.1\r\nHost: bench\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    return Target(cape.port, request.encode(), b"expires_in_ms")


def _stop(cape: Cape, count: int) -> list[socket.socket]:
    token = cape.token()
    return [
        stopped_reader(cape.port, token, as_websocket=bool(number % 2)) for number in range(count)
    ]


def _run(cape: Cape, loads: list[Load], half: int, options: argparse.Namespace) -> dict[str, Any]:
    """Publish at the rate; what those who read have seen of it, and what the server held."""
    messages = int(options.seconds * options.per_s)
    for load in loads:
        load.begin(messages * half)
    (process,) = cape.processes
    before_bytes = worst_bytes = process.memory_info().rss
    due_s = time.monotonic()
    for number in range(messages):
        time.sleep(max(0.0, due_s - time.monotonic()))
        cape.publish(int(due_s * 1e9), MESSAGE_BYTES)
        due_s += 1 / options.per_s
        if number % options.per_s == 0:
            worst_bytes = max(worst_bytes, process.memory_info().rss)
    latencies_ms = sorted(each for load in loads for each in load.finish()[1])
    return {
        "growth_mb": round((worst_bytes - before_bytes) / (1 << 20), 1),
        "p50_ms": round(latencies_ms[len(latencies_ms) // 2], 1),
        "p99_ms": round(latencies_ms[int(len(latencies_ms) * 0.99)], 1),
    }


def _told(cape: Cape, reading: int) -> dict[str, int]:
    """Why streams ended, once nobody is left but those who read."""
    _wait_for(cape, reading)
    found = figures_of(cape.port)
    return {name.replace(" ", "_"): found[name] for name in found if name.startswith("ended ")}


def _vanish(cape: Cape) -> float | None:
    """Seconds until a client is missed whose host sent no last word; None where that is no right
    of ours to stage."""
    _wait_for(cape, 0)
    gone = stopped_reader(cape.port, cape.token())
    _wait_for(cape, 1)
    with suppress(PermissionError):
        gone.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        began_s = time.monotonic()
        gone.close()
        _wait_for(cape, 0)
        return round(time.monotonic() - began_s, 1)
    gone.close()
    return None


def _wait_for(cape: Cape, streams: int) -> None:
    give_up_s = time.monotonic() + GIVE_UP_S
    while figures_of(cape.port)["streams"] != streams:
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"{figures_of(cape.port)['streams']} streams, not {streams}")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
