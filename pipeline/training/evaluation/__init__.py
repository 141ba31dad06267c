"""What a trained model is worth: metrics on held-out documents, and texts that it continues."""
