"""What is done to a corpus that is there: verify, gc, purge, and a look at the quarantine."""
