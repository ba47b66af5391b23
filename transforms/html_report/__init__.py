"""`report.html`: what is in a dataset, as one page that opens without a network."""
