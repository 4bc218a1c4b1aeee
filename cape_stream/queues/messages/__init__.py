"""One module a message type: its shape, the producer any role calls, the handler a worker has.

Producer and consumer read the same definition. `cape_stream.queues.fleet` lists them all.
"""
