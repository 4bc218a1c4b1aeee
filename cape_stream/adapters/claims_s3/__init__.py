"""Claims as objects of an S3 bucket."""

from cape_stream.adapters.claims_s3.store import S3Claims

__all__ = ["S3Claims"]
