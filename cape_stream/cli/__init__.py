"""The `cape` command: reads its arguments and hands them to a role; nothing else.

`arguments` says what can be written, `commands` calls what it means. Whatever is heavy is imported
by the command that needs it, so `cape --help` answers at once.
"""

from cape_stream.cli.commands import main

__all__ = ["main"]
