"""What knows nothing of corpora: errors, formats, parallel reads, samples, signals, warnings."""
