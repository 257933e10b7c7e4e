"""Secrets: encrypted values in the object store, and the keys under which they are encrypted.

Events and configurations have the name of such an object and the digest of its ciphertext, and
never a value (decision 0047).
"""
