"""Many processes agree: one checkpoint, one end."""
