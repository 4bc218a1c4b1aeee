"""The worker fleet on SQS: message contracts, and the processor that loses and strands nothing.

`messages/` has one module a message type: its shape, the producer every role uses, the handler the
worker registers. `processor` runs them; what it decides is in `slots`, `wheel`, `ledger` and
`backoff`, which read no clock. `publishing` fills queues from job topics.
"""
