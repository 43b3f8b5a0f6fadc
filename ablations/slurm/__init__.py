"""All that knows SLURM."""
