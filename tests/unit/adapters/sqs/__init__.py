"""The SQS adapter, as far as it needs no server."""
