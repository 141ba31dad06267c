"""Implements `pipeline run`: pilot, fits and main pass, and the tasks that workers do."""
