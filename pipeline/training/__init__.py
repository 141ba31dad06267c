"""Trains Large Concept Models on a corpus, and evaluates them."""
