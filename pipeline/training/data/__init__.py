"""Training data: which rows of a corpus are read, in which order, and the batches made of them."""
