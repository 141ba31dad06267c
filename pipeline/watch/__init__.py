"""Seeing a run from outside: its phases, workers, failures and logs."""
