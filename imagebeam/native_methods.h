// The functions of `imagebeam._native`, which _native.c makes a module of.

#include <Python.h>

#include "png_decoder.h"

extern PyMethodDef record_methods[];  // read_records.c
extern PyMethodDef part_methods[];    // decode_parts.c
extern PyMethodDef whole_methods[];   // decode_whole.c

extern DecodePng *decode_png;  // NULL if imagebeam was built without libpng
