"""Many processes, one corpus: the lock, leases with heartbeats, and who works with which code."""
