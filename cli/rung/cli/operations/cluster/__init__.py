"""`rung cluster`: topics, access rights, status and upgrade of an installation on Kafka."""
