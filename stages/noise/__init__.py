"""Cheap signals of noise, per sentence and per document: what other curators filter by."""
