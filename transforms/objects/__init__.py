"""Objects in images: their boxes and classes, as annotation files state them and as records store them."""
