"""Plans of paragraphs that the inputs bring or a language model writes, and their embeddings."""
