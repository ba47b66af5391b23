"""The names of classes and labels, the files that list them, and the shares of classes in the splits."""
