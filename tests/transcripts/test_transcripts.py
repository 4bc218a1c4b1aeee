"""Replays the transcripts beside it and compares what is said; `REWRITE=1` writes them anew.

After a rewrite read the difference: it is the change of behaviour.
"""

import os
from pathlib import Path

import pytest

from tests.transcripts.dialogue import Dialogue

FOLDER = Path(__file__).parent
TRANSCRIPTS = sorted(path.stem for path in FOLDER.glob("*.txt"))
SAID = "  "


def replay(text: str) -> str:
    """The transcript with what is said now in place of what was said."""
    dialogue = Dialogue()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(SAID):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [SAID + said for said in dialogue.play(line)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_transcript_goes_as_it_is_written(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    written = path.read_text(encoding="utf-8")
    played = replay(written)
    if os.environ.get("REWRITE"):
        path.write_text(played, encoding="utf-8")

    assert played == written


def test_replay_sees_a_difference() -> None:
    text = "topology T1\nping S 1\n  ask S from 7, at most 10\n"

    assert replay(text) == "topology T1\nping S 1\n  S begins\n  ask S from 0, at most 10\n"
    assert len(TRANSCRIPTS) >= 10
