"""A run on disk and what made it. No torch is imported here."""
