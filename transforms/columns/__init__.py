"""Columns of a table that tf.Transform computes, with statistics that do not depend on the order of rows."""
