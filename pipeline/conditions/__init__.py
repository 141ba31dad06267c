"""Conditions on columns, as text: their words, their grammar, what they become."""
