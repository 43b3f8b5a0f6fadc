"""Run folders as records: claims, attempts, states, and ending runs."""
