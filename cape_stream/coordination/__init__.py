"""Coordination on Valkey: locks, caches, credentials, pools and limits that a fleet shares.

Nothing here is a system of record. Every call has a timeout, every service says what it does while
the server is away, and an empty server costs speed, never a job, a cursor or an event.

A service decides in small Lua scripts, each within one hash slot, and each carrying an id that the
caller chose: a repeated script is the same operation, so a call that was cut is simply repeated.
"""
