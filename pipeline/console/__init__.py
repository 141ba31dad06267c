"""Output of commands while they work: activity, progress, and the accounting."""
