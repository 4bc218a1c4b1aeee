"""The status gateway: reports a second and latency with 64 clients, token checked, in the log.

The gateway is a process of its own on the embedded log, which syncs as `cape run` does; each client
is a kept connection that sends its next request when the last one was answered. Beside it, how long
the token of one report takes to be checked, and that of one job to be signed.

Usage: make bench-gateway [ARGS="--clients 64 --seconds 10 --batch 20"]
"""

import argparse
import http.client
import json
import multiprocessing
import tempfile
import threading
import time
import timeit
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from cape_stream.adapters.sources.memory import MemoryEventSource
from cape_stream.model.event import Event
from cape_stream.model.job import Job
from cape_stream.realtime.keys import GrantKeys, rotate
from cape_stream.roles.backends import open_backend
from cape_stream.roles.crew import Crew
from cape_stream.roles.gateway import GatewayPart
from cape_stream.roles.gateway_items import status_of
from cape_stream.roles.job_tokens import JobTokens
from cape_stream.roles.settings_loading import load_settings
from cape_stream.roles.topics import topic_specs
from cape_stream.sdk import App, Batch
from tests.bench.figures import yardstick_us

SUBJECTS = 1_000


def main() -> None:
    """Run every phase and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--batch", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys_file = str(Path(folder) / "keys")
        rotate(keys_file)
        tokens = JobTokens("bench", GrantKeys.from_file(keys_file))
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(folder, keys_file, theirs)
        )
        process.start()
        port = ours.recv()
        try:
            figures = {
                "single": _load(tokens, port, process.pid, options, batch=1),
                "batched": _load(tokens, port, process.pid, options, batch=options.batch),
                **_token_costs(tokens),
                "yardstick_us": yardstick_us(),
            }
        finally:
            ours.send("stop")
            process.join(20)
    print(json.dumps(figures))


def _serve(folder: str, keys_file: str, link: Connection) -> None:
    app = App("bench", partitions=4)
    topology = app.domain("orders", source=MemoryEventSource()).topology("prices")
    topology.handler(name="price")(_work)
    flags = {
        "process.data_dir": folder,
        "gateway.port": "0",
        "gateway.keys_file": keys_file,
    }
    settings = load_settings(flags, {})
    with open_backend("embedded", settings, app.name) as backend:
        backend.log.create_topics(topic_specs(app))
        part = GatewayPart(app, backend, settings)
        crew = Crew([part])
        crew.start()
        while not part.port:
            time.sleep(0.01)
        link.send(part.port)
        link.recv()
        crew.stop()


def _work(batch: Batch) -> None:
    pass


def _job(number: int) -> Job:
    subject = f"order-{number % SUBJECTS}"
    names = ("orders", number % 4, subject, "prices", "price", "general")
    now_ms = time.time_ns() // 1_000_000
    return Job(f"0-1-{number}", *names, 1, 1, now_ms, 30_000, [Event(number, b"")])


def _report(tokens: JobTokens, number: int) -> dict[str, object]:
    job = _job(number)
    return {
        **{name: getattr(job, name) for name in ("domain", "partition", "subject", "topology")},
        **{name: getattr(job, name) for name in ("lambda_id", "job_id", "epoch", "attempt")},
        "token": tokens.sign(job),
        "done": [number],
    }


def _load(
    tokens: JobTokens, port: int, pid: int | None, options: argparse.Namespace, *, batch: int
) -> dict[str, float]:
    """Clients in threads; bodies are made before the clock starts."""
    bodies = [
        json.dumps([_report(tokens, at * batch + each) for each in range(batch)]).encode()
        for at in range(200)
    ]
    latencies_ms: list[float] = []
    begin = threading.Barrier(options.clients + 1)
    process = psutil.Process(pid)

    def client(first: int) -> None:
        link = http.client.HTTPConnection("127.0.0.1", port)
        mine: list[float] = []
        begin.wait()
        end_s = time.perf_counter() + options.seconds
        at = first
        while (asked_s := time.perf_counter()) < end_s:
            body = bodies[at % len(bodies)]
            link.request("POST", "/v1/job-statuses", body, {"Content-Type": "application/json"})
            answer = link.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            mine.append((time.perf_counter() - asked_s) * 1_000)
            at += 1
        latencies_ms.extend(mine)
        link.close()

    threads = [threading.Thread(target=client, args=(at,)) for at in range(options.clients)]
    for each in threads:
        each.start()
    begin.wait()
    cpu_s = sum(process.cpu_times()[:2])
    for each in threads:
        each.join()
    cpu_s = sum(process.cpu_times()[:2]) - cpu_s
    latencies_ms.sort()
    count = len(latencies_ms)
    return {
        "statuses_per_s": round(count * batch / options.seconds),
        "requests_per_s": round(count / options.seconds),
        "p50_ms": round(latencies_ms[count // 2], 1),
        "p99_ms": round(latencies_ms[count * 99 // 100], 1),
        "cpu_us_per_status": round(cpu_s / count / batch * 1e6, 1),
    }


def _token_costs(tokens: JobTokens) -> dict[str, float]:
    job = _job(1)
    status, token = status_of(_report(tokens, 1))
    now_ms = job.issued_ms
    assert tokens.fault(token, status, now_ms) is None
    times = 5_000
    sign_s = min(timeit.repeat(lambda: tokens.sign(job), number=times, repeat=5))
    check_s = min(
        timeit.repeat(lambda: tokens.fault(token, status, now_ms), number=times, repeat=5)
    )
    return {
        "sign_us": round(sign_s / times * 1e6, 1),
        "check_us": round(check_s / times * 1e6, 1),
    }


if __name__ == "__main__":
    main()
