"""What is loaded into an engine: one small module, with nothing of ours beside it."""
