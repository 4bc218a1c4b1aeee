"""The peers of `bench_sqs`: a celery and a dramatiq worker on the same queue server.

Runs under the peers' own interpreter, see `make bench-sqs`. Usage:

    python tests/bench/sqs_peers.py celery|dramatiq enqueue|work ENDPOINT QUEUE SLEEP_MS THREADS
"""

import sys
import time
from typing import Any


def celery_app(endpoint: str, queue: str) -> Any:
    """A celery app whose only queue lies on the server."""
    from celery import Celery

    app = Celery("bench", broker=endpoint.replace("http://", "sqs://testing:testing@"))
    app.conf.update(
        task_default_queue=queue,
        broker_transport_options={
            "region": "us-east-1",
            "is_secure": False,
            "visibility_timeout": 600,
            "wait_time_seconds": 10,
            "polling_interval": 0.0,
            "predefined_queues": {queue: {"url": f"{endpoint}/000000000000/{queue}"}},
        },
        worker_prefetch_multiplier=2,
        task_acks_late=True,
        task_ignore_result=True,
        worker_hijack_root_logger=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
    )

    @app.task(name="bench.work")  # type: ignore[untyped-decorator]  # celery has no annotations
    def work(sleep_ms: int) -> None:
        if sleep_ms:
            time.sleep(sleep_ms / 1_000)

    return app


def celery(action: str, endpoint: str, queue: str, sleep_ms: int, threads: int) -> None:
    """Enqueue one task, or work until killed."""
    app = celery_app(endpoint, queue)
    if action == "enqueue":
        app.send_task("bench.work", args=[sleep_ms])
        return
    app.worker_main(
        [
            *("worker", "--pool=threads", f"--concurrency={threads}", f"--queues={queue}"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"),
        ]
    )


def dramatiq(action: str, endpoint: str, queue: str, sleep_ms: int, threads: int) -> None:
    """Enqueue one message, or work until killed."""
    import dramatiq as peer
    from dramatiq.middleware import Callbacks, Retries
    from dramatiq_sqs import SQSBroker

    broker = SQSBroker(
        namespace="",
        middleware=[Retries(), Callbacks()],
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    peer.set_broker(broker)

    @peer.actor(queue_name=queue)  # type: ignore[untyped-decorator]  # nor has dramatiq
    def work(sleep_ms: int) -> None:
        if sleep_ms:
            time.sleep(sleep_ms / 1_000)

    if action == "enqueue":
        work.send(sleep_ms)
        return
    worker = peer.Worker(broker, worker_threads=threads)
    worker.start()
    while True:
        time.sleep(3_600)


if __name__ == "__main__":
    system, action, endpoint, queue, sleep_ms, threads = sys.argv[1:]
    chosen = {"celery": celery, "dramatiq": dramatiq}[system]
    chosen(action, endpoint, queue, int(sleep_ms), int(threads))
