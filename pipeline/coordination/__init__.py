"""Many processes, one corpus: the lock, leases with heartbeats, phases, and who works with which code."""
