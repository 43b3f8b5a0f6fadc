"""A trained run as a model: evaluate it again, embed images with it, rank with it."""
