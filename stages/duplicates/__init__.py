"""Duplicates of sentences and documents: hashes part by part, and groups over the whole corpus."""
