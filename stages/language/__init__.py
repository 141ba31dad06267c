"""Which language a text is in, and whether that is the one that was stated."""
