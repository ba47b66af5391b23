"""What `plan --input FOLDER` and `init FOLDER` look for: signs of data sets in an unknown folder, within bounds."""
