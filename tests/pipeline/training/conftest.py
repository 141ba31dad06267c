"""Fixtures of the tests of training."""

from tests.pipeline.training.corpora import corpus, finished
from tests.support.trainings import made_corpus, training_corpus

__all__ = ["corpus", "finished", "made_corpus", "training_corpus"]
