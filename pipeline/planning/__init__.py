"""Plans a run: what it would do and why, and what it would cost at another size."""
