"""Object stores in S3, or any server with its API.

All modules but `settings` need the `minio` client.
"""
