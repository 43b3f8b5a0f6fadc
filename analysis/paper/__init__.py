"""What the paper inputs, its PDF, and whether it is current."""
