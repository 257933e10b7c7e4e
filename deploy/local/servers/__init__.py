"""Servers as plain processes of this machine: for a local cluster and for the tests."""
