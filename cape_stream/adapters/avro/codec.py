"""The codec port, put together from one part a record."""

from cape_stream.adapters.avro.cursors import CursorCodec
from cape_stream.adapters.avro.dead_letters import DeadLetterCodec
from cape_stream.adapters.avro.jobs import JobCodec, JobSigner
from cape_stream.adapters.avro.operations import OperationCodec
from cape_stream.adapters.avro.pings import PingCodec
from cape_stream.adapters.avro.registry import FileRegistry
from cape_stream.adapters.avro.statuses import StatusCodec
from cape_stream.ports.codec import Codec


class AvroCodec(
    PingCodec, JobCodec, StatusCodec, CursorCodec, DeadLetterCodec, OperationCodec, Codec
):
    """Values of the model ↔ Avro in Confluent's wire format. Safe to share by threads.

    The parts are parents and not members, so that a call on the hot path is one call.
    """

    def __init__(self, registry: FileRegistry | None = None, sign: JobSigner | None = None) -> None:
        """Tie every part to the registry; None means the schemas that ship with the package.

        ``sign`` makes the tokens of the jobs it writes; None: they have none.

        Raises:
            Fatal: the registry does not hold what this release writes.
        """
        registry = registry or FileRegistry()
        PingCodec.__init__(self, registry)
        JobCodec.__init__(self, registry, sign)
        StatusCodec.__init__(self, registry)
        CursorCodec.__init__(self, registry)
        DeadLetterCodec.__init__(self, registry)
        OperationCodec.__init__(self, registry)
