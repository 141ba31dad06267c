"""Helpers that know nothing of corpora: errors, formats, parallel reads, sampling, signals and warnings."""
