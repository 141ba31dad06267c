"""A corpus at another size, on paper."""
