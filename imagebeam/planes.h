// Planes of pixels of one byte. See planes.c.

#include <stddef.h>
#include <stdint.h>

enum { COLUMNS_AT_ONCE = 16 };

// One plane of pixels; rows have room for whole COLUMNS_AT_ONCE, and there are whole COLUMNS_AT_ONCE of them.
typedef struct {
  uint8_t *pixels;
  size_t stride;
  int width, height;
} Plane;

void transpose_plane(const Plane *from, Plane *to);
