"""Avro in Confluent's wire format: the bytes on public topics.

``codec`` is the port's implementation, put together from one module a record: ``pings``, ``jobs``
(with ``events``), ``statuses`` (with ``results``), ``cursors``, ``dead_letters``. Each holds a
quick path, written by hand for the version this release writes, and leaves everything that path
does not know to ``framing``: reading strictly by the schema (``strict``), and fastavro's resolution
for records of other versions (``registry`` knows them). ``wire`` and ``fields`` are what all of
them stand on.
"""

from cape_stream.adapters.avro.codec import AvroCodec
from cape_stream.adapters.avro.registry import FileRegistry, SchemaVersion

__all__ = ["AvroCodec", "FileRegistry", "SchemaVersion"]
