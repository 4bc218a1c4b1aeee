"""Composition roots: the only place where loops meet technologies.

`settings` says what may be set, `backends` opens what the settings name, one module a role puts the
role's loop together, `crew` runs the loops of a process until a signal or a failure, and `run` puts
all roles into one process.
"""
