"""Questions of an ablation: which change did it, how many seeds, is it the published number."""
