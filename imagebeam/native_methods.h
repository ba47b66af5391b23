// What the files of the extension `_native` share.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

extern PyMethodDef record_methods[];  // read_records.c
extern PyMethodDef part_methods[];    // decode_parts.c
extern PyMethodDef whole_methods[];   // decode_whole.c

enum { MESSAGE_SIZE = 200, PIXELS_SLACK = 16 };  // PIXELS_SLACK: bytes after the last pixel that may be read

// Pixels in RGB, without gaps. Begin with zeros; free `pixels` in the end.
typedef struct {
  uint8_t *pixels;
  size_t capacity;
  uint32_t width, height;
} PngImage;

// Decodes a PNG, without Python's lock. Returns whether it could; else `message`, MESSAGE_SIZE bytes, says why not.
int decode_png(const uint8_t *data, size_t size, PngImage *image, char *message);
