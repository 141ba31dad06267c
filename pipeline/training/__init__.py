"""Training Large Concept Models on a corpus, and what a trained one is worth."""
