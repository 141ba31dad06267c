"""Looking at quality columns before training."""
