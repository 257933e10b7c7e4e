"""Assignment: which partitions of a service a replica works on."""
