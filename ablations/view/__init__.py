"""Plans, states and logs as text."""
