"""Claims as files of one folder, which all workers of an App share."""

from cape_stream.adapters.claims_file.store import FileClaims

__all__ = ["FileClaims"]
