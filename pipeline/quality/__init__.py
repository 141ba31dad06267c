"""Looking at a corpus before training: inspect, report, compare segmenters."""
