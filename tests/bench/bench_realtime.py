"""The realtime channel beside Centrifugo: connections, fan-out, latency, and renewals.

Both serve event streams, keep 500 messages a channel in the same Valkey, and feed the same
subscribers, one after the other. The peer is one process with threads on all processors; ours is
measured as one process, which uses one processor, and as one a processor.

connections  resident memory a connection, of 5,000 that are open and hear one channel
saturated    always 8 messages under way to everybody: deliveries a second, CPU of the server
paced        about 5,000 deliveries a second: latency from before the publish to the subscriber
renewals     streams that end and resume with new grants under publishing without a pause

Usage: make bench-realtime [ARGS="--subscribers 1000,5000 --seconds 6 --renewals 1000"]
"""

import argparse
import json
import os
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

from tests.bench.figures import yardstick_us
from tests.bench.stream_load import Load
from tests.bench.stream_servers import (
    CHANNEL,
    REALM,
    Cape,
    Centrifugo,
    Server,
    centrifugo_program,
)
from tests.integration.realtime.kit import OPEN, SseClient
from tests.valkey import LocalValkey

UNDER_WAY = 8
PACED_DELIVERIES_PER_S = 5_000
WARM_UP = 20


def main() -> None:
    """Run every phase and print the figures."""
    options = _options()
    counts = [int(each) for each in options.subscribers.split(",")]
    valkey = LocalValkey()
    figures: dict[str, Any] = {}
    try:
        program = None if options.alone else centrifugo_program()
        if program is not None:
            peer = Centrifugo(program, valkey.url)
            figures |= _measured("centrifugo_", peer, counts, options.seconds)
            valkey.ask("FLUSHALL")
        for processes in (options.processes, 1) if options.processes > 1 else (1,):
            name = "" if processes == 1 else f"processes_{processes}_"
            figures |= _measured(name, Cape(valkey.url, processes), counts, options.seconds)
            valkey.ask("FLUSHALL")
        cape = Cape(valkey.url)
        figures |= _renewals(cape, options.renewals)
        cape.close()
    finally:
        valkey.close()
    figures.setdefault("centrifugo_deliveries_per_s", None)
    print(json.dumps({**figures, "yardstick_us": yardstick_us()}))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--subscribers", default="1000,5000", help="how many, by comma")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each phase")
    parser.add_argument("--renewals", type=int, default=1_000)
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="measure so many on one port, too, for the peer uses every processor; 1: leave it out",
    )
    parser.add_argument("--alone", action="store_true", help="without the peer")
    return parser.parse_args()


def _measured(name: str, server: Server, counts: list[int], seconds: float) -> dict[str, Any]:
    """Figures of a server, the largest crowd's last, which stand without its size."""
    figures: dict[str, Any] = {}
    try:
        for count in counts:
            before_bytes = _held_bytes(server)
            load = Load(server.target, count)
            held_bytes = _held_bytes(server) - before_bytes
            found = {
                "connections": count,
                "kb_per_connection": round(held_bytes / count / 1_024, 1),
                "opened_per_s": round(count / load.opened_s),
                **_saturate(server, load, count, seconds),
                **_pace(server, load, count, seconds),
            }
            load.close()
            print(f"{name or 'cape_'}{count}: {json.dumps(found)}", flush=True)
            figures |= {f"{name}{key}_{count}": value for key, value in found.items()}
            figures |= {f"{name}{key}": value for key, value in found.items()}
    finally:
        server.close()
    return figures


def _saturate(server: Server, load: Load, count: int, seconds: float) -> dict[str, Any]:
    """Rounds of as many messages as may be under way, each when the last one is everywhere."""
    for _ in range(WARM_UP):
        server.publish(time.monotonic_ns())
    load.expect(WARM_UP * count)
    rounds, began_s, cpu_s = 0, time.monotonic(), _cpu_s(server)
    ended_s = began_s
    while ended_s - began_s < seconds:
        load.begin(UNDER_WAY * count)
        for _ in range(UNDER_WAY):
            server.publish(time.monotonic_ns())
        ended_s, _ = load.finish()
        rounds += 1
    deliveries = rounds * UNDER_WAY * count
    return {
        "deliveries_per_s": round(deliveries / (ended_s - began_s)),
        "cpu_us_per_delivery": round((_cpu_s(server) - cpu_s) / deliveries * 1e6, 2),
    }


def _pace(server: Server, load: Load, count: int, seconds: float) -> dict[str, Any]:
    interval_s = count / PACED_DELIVERIES_PER_S
    messages = max(5, int(seconds / interval_s))
    load.begin(messages * count)
    cpu_s, due_s = _cpu_s(server), time.monotonic()
    for _ in range(messages):
        time.sleep(max(0.0, due_s - time.monotonic()))
        # From when it was due: a publisher that is held up hides nothing.
        server.publish(int(due_s * 1e9))
        due_s += interval_s
    _, latencies_ms = load.finish()
    latencies_ms.sort()
    cpu_us = (_cpu_s(server) - cpu_s) / (messages * count) * 1e6
    return {
        "paced_cpu_us_per_delivery": round(cpu_us, 2),
        "p50_ms": round(latencies_ms[len(latencies_ms) // 2], 1),
        "p99_ms": round(latencies_ms[int(len(latencies_ms) * 0.99)], 1),
    }


def _cpu_s(server: Server) -> float:
    times = [each.cpu_times() for each in server.processes]
    return float(sum(each.user + each.system for each in times))


def _held_bytes(server: Server) -> int:
    return sum(each.memory_info().rss for each in server.processes)


@dataclass
class Publishing:
    """Somebody who never stops publishing numbers."""

    cape: Cape
    told: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Publish until it is over."""
        from cape_stream.realtime.framing import message_body

        while not self.is_over.is_set():
            body = message_body(CHANNEL, "message", self.told, 4_096)
            self.cape.writer.publish(REALM, CHANNEL, body)
            self.told += 1
            time.sleep(0.002)


def _renewals(cape: Cape, count: int) -> dict[str, Any]:
    """Half of the streams are left by their client, half end by expiry; all resume."""
    client = SseClient(cape.port, cape.token())
    client.until_event("ready")
    publishing = Publishing(cape)
    thread = threading.Thread(target=publishing.run, daemon=True)
    thread.start()
    heard: list[int] = []
    resets, began_s = 0, time.monotonic()
    for number in range(count):
        if number % 2:
            client.until_over()
        else:
            client.until_messages(1)
        resets += _take(client, heard)
        life = timedelta(milliseconds=60) if number % 2 == 0 else timedelta(seconds=60)
        token = cape.token(int(life.total_seconds() * 1_000))
        client = SseClient(cape.port, token, client.last_id)
    publishing.is_over.set()
    thread.join()
    client.until(lambda: bool(client.messages) and client.messages[-1]["data"] == _last(publishing))
    resets += _take(client, heard)
    expected = publishing.told - heard[0]
    return {
        "renewals": count,
        "renewals_per_s": round(count / (time.monotonic() - began_s), 1),
        "gaps": expected - len(set(heard)),
        "duplicates": len(heard) - len(set(heard)),
        "disorders": sum(1 for one, two in pairwise(heard) if two < one),
        "resets": resets,
    }


def _last(publishing: Publishing) -> int:
    return publishing.told - 1


def _take(client: SseClient, heard: list[int]) -> int:
    """Move what a client heard to the list; how many resets it was told."""
    heard += [each["data"] for each in client.messages]
    client.close()
    OPEN.remove(client)
    return client.names.count("reset")


if __name__ == "__main__":
    main()
