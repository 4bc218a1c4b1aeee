"""Headers of an event, as foreign code may hand them over."""

from collections.abc import Mapping


def is_text(headers: object) -> bool:
    """True if these are names and values that UTF-8 can spell."""
    if not isinstance(headers, Mapping):
        return False
    for text in (*headers.keys(), *headers.values()):
        if not isinstance(text, str):
            return False
        try:
            text.encode()
        except UnicodeEncodeError:
            return False
    return True
