"""Fixtures of the tests of training."""

from tests.pipeline.train.corpora import corpus, finished

__all__ = ["corpus", "finished"]
