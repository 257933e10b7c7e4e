"""Rendezvous of ranks: addresses, ports, environment variables of the frameworks."""
