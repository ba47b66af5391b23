"""The folder of a dataset: its addresses, the files in it, and the records of what it was made of."""
