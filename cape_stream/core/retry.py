"""When to try again: exponential backoff with full jitter.

Source: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015. The jitter is drawn from a
hash of what is retried, not from a random source: equal inputs give equal waits, and different
subjects still spread.
"""

from zlib import crc32

from cape_stream.model.topology import RetrySpec

_CRC_RANGE = 2**32


def backoff_ms(spec: RetrySpec, failures: int, salt: str) -> int:
    """Milliseconds to wait after the ``failures``-th failure (>= 1) of what ``salt`` names."""
    ceiling = min(spec.max_ms, spec.first_ms << min(failures - 1, 40))
    drawn = crc32(f"{salt}#{failures}".encode()) * (ceiling + 1) // _CRC_RANGE
    return max(spec.floor_ms, drawn)
