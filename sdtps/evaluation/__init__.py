"""Rankings and recalls from features and similarities."""
