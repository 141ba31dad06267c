"""Coordinates many processes on one corpus: the lock, leases with heartbeats, and the identity of nodes."""
