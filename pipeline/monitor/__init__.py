"""Seeing a run from outside, and stopping it: its phases, workers, failures and logs."""
