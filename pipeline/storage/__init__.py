"""Files on any fsspec filesystem: whole-object writes, create-if-absent, patience with object stores."""
