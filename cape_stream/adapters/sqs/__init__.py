"""The AWS services of the queues through boto3: SQS, and S3, SES and STS as far as they need them.

boto3 blocks, so every call runs in a thread. Receives have connections and threads of their own:
twenty seconds of waiting must never stand in front of a delete or a heartbeat.
"""

from cape_stream.adapters.sqs.identity import StsIdentity
from cape_stream.adapters.sqs.mailer import SesMailer
from cape_stream.adapters.sqs.object_store import S3ObjectStore
from cape_stream.adapters.sqs.server import SqsServer
from cape_stream.adapters.sqs.settings import SqsSettings

__all__ = ["S3ObjectStore", "SesMailer", "SqsServer", "SqsSettings", "StsIdentity"]
