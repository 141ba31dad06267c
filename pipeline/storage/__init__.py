"""Files on any fsspec file system: whole-object writes, create-if-absent, retries; and a corpus's layout."""
