"""The AWS services of the queues through boto3: SQS, and S3, SES and STS as far as they need them.

boto3 blocks, so every call runs in a thread. Receives have connections and threads of their own:
twenty seconds of waiting must never stand in front of a delete or a heartbeat.

Import from the modules: `settings` needs no boto3, the others do.
"""
