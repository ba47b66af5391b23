"""Files that hold arrays: which arrays are in them, their values, and images of any layout as rows of pixels."""
