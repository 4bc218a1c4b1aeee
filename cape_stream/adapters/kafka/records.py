"""Turns the client's messages into records; the hot path of everything that reads."""

from confluent_kafka import Message

from cape_stream.ports.log import Record


def records_of(messages: list[Message]) -> list[Record]:
    """Records of those messages that are not errors.

    Measured: 0.8 us a record, of which the client's six getters are most; ``Record(...)`` in
    place of ``tuple.__new__`` costs 0.4 us more.
    """
    new, kind = tuple.__new__, Record
    return [
        new(kind, (m.topic(), m.partition(), m.offset(), m.timestamp()[1], m.key(), m.value()))
        for m in messages
        if m.error() is None
    ]
