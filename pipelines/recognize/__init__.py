"""Signs of data sets in an unknown folder, for `plan --input FOLDER` and `init FOLDER`."""
