"""What one run will write: decided from the settings, the listed images and the output before any image is read."""
