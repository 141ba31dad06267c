"""What is done to a corpus that is there: purge, retry, gc, and a look at the quarantine."""
