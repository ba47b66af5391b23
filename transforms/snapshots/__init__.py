"""What a snapshot holds: the states of its images, and how they differ from the input. No Beam."""
