"""Processes that must not outlive their parent, and whether a process is still the one we meant.

Standard library only; POSIX, with /proc where there is one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

# Its standard input closes when the parent dies, however it dies: the system does that.
# Not PR_SET_PDEATHSIG, which fires already when the thread ends that started the child.
# $1 process to kill, $2 folder to remove afterwards, or nothing.
_WATCHDOG = """
read -r _
kill -KILL "$1"
[ -n "$2" ] && sleep 1 && rm -rf "$2"
"""


def watch(pid: int, folder: Path | None) -> subprocess.Popen[bytes]:
    """Starts a watchdog that kills `pid` once this process is gone, and then removes `folder`.

    Returns:
        The watchdog; give it to `dismiss` when `pid` has ended in peace.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHDOG, "cape-watchdog", str(pid), str(folder or "")],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C in a terminal must not reach it
    )


def dismiss(watchdog: subprocess.Popen[bytes]) -> None:
    """Ends a watchdog without its biting."""
    watchdog.kill()
    watchdog.communicate()


def is_running(pid: int, mark: str) -> bool:
    """Whether `pid` lives and has `mark` in its command line.

    False for a zombie, and for a stranger that was given the number of a dead process.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return False
        ps = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
        command = subprocess.run(ps, capture_output=True, text=True, check=False).stdout
    return mark in command
