"""Gradient audit and leak audit of a study's variants, before any training."""
