"""The training loop and what it needs: tasks, optimiser, checkpoints, processes."""
