"""Launchers: where the work happens. A launcher takes chunks to segment and parts to visit, and yields events as they
come.
"""
