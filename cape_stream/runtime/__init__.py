"""The engine: a small Kafka Streams on any log, and the order in which effects are carried out.

It knows ports and the core; no technology. One thread drives it: `Engine.turn`. What is slow (a
commit, a restore, a question to a source) runs in the background and is looked at on a later turn.
"""
