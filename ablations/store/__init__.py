"""Run folders as records: locks, attempts, states, and ending runs."""
