"""Weights & Biases and MLflow beside a training: a process for each, which the training never waits for."""
