"""Catalogs and indexes of TFRecord files that other tools wrote, for `imagebeam index`."""
