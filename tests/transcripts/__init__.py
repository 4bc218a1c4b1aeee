"""Dialogues with a scheduler, in words a support engineer reads."""
