"""corpus.yaml, checked: its sections, and what a corpus has decided about them."""
