"""The language of conditions on columns: its tokens, its grammar, and its translation to Arrow."""
