"""What a run would do and why, and what it would cost at another size."""
