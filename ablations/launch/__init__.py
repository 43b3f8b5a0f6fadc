"""Plan a study and dispatch its runs, to SLURM or to slots on this machine."""
