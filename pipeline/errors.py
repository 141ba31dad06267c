"""Errors written for the person who can mend them: what is wrong, the value, what is allowed, what to do."""

from __future__ import annotations


class PipelineError(Exception):
    """Any failure that the command line reports in words, without a traceback."""


class ConfigError(PipelineError):
    """corpus.yaml or the command line asks for something impossible (exit code 2)."""


class CorpusError(PipelineError):
    """What lies on disk is missing, damaged or does not balance (exit code 1)."""


class StorageError(CorpusError):
    """The corpus cannot be written to: a full disk, no permission. Whatever is tried next fails too, so a run stops."""
