"""Plans of paragraphs that the inputs bring, and their embeddings."""
