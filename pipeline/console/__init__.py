"""What commands print while they work, and the accounting."""
