"""Free ports on this machine, and whether a Kafka broker answers on one. Standard library only."""

from __future__ import annotations

import random
import socket
import struct

PORTS = range(15_000, 32_000)
"""Below the range from which systems draw the ports of outgoing connections (32768 on Linux): a
client that keeps knocking at a stopped broker could else be given that very port, and hold it."""


def free_ports(count: int) -> list[int]:
    """Returns different ports nobody listens on now; nothing keeps them free until they are used.

    Raises:
        OSError: fewer than `count` are free.
    """
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"fewer than {count} free ports between {PORTS.start} and {PORTS.stop}")


def kafka_answers(port: int, *, wait_s: float) -> bool:
    """Whether a Kafka broker on `port` answers an ApiVersions request within `wait_s`.

    A broker accepts connections before it serves them, so an open port alone says little.
    Source: the Kafka protocol guide, ApiVersions version 0.
    """
    api_versions, version, correlation_id, client = 18, 0, 7, b"health"
    request = struct.pack(">hhih", api_versions, version, correlation_id, len(client)) + client
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=wait_s) as link:
            link.sendall(struct.pack(">i", len(request)) + request)
            with link.makefile("rb") as answer:
                head = answer.read(10)
    except OSError:
        return False
    if len(head) < 10:
        return False
    _size, correlated, error = struct.unpack(">iih", head)
    return bool(correlated == correlation_id and error == 0)
