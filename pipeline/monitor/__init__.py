"""Observes a run from outside, and stops it: its phases, workers, failures and logs."""
