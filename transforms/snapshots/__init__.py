"""The states of the images in a snapshot, and their differences from the input. No Beam."""
