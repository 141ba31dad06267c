"""Fixtures of the tests of training."""

from tests.pipeline.training.corpora import corpus, finished

__all__ = ["corpus", "finished"]
