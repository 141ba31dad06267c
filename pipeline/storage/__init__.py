"""Files on any fsspec file system (whole-object writes, create-if-absent, retries), and the layout of a corpus."""
