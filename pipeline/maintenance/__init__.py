"""Maintenance of an existing corpus: verify, gc, purge, and showing the quarantine."""
