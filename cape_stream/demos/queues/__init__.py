"""Objects put into S3 are scanned by an SQS worker, and a topology gets every verdict.

    S3 put ─▶ notification ─▶ queue file-scan ─▶ scanners ─▶ ping ─▶ dispatcher ─▶ topology

S3 and SQS are moto's, in this process; everything else is the product. The worker is stopped and
replaced in the middle, and its report shown. ``scanning`` is what a user would write.
"""
