"""The queues: contracts, and the processor in virtual time against the strict queue."""
