"""What is at the address of an input: files, tables, splits, classes and arrays, as the config names them."""
