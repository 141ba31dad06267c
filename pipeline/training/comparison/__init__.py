"""Many objectives trained on one corpus and judged by the same numbers: `pipeline compare-objectives`."""
