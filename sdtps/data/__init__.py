"""Data on disk, in batches. Importing this package imports nothing heavy."""
