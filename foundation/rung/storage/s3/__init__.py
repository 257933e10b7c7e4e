"""Objects in S3, or in anything that speaks its protocol.

`settings` can be imported without the `minio` client; everything else here wants it.
"""
