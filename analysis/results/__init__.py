"""What the runs of a study came to: values, statistics, costs."""
