"""What `pipeline run` does: pilot, fits and main pass; the tasks that workers do."""
