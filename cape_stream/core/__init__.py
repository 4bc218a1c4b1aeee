"""Decisions, sans-I/O: no clock, random source, socket, thread or log.

Time is an argument, effects are values, and the same inputs give the same outputs, so that a bug is
a transcript one can read and replay.
"""
