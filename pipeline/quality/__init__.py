"""Judges a corpus before training: inspect, report, compare segmenters."""
