// Entry points of a JPEG: places in its entropy-coded data where a decoder can begin. See entry_points.c.

#include <stddef.h>
#include <stdint.h>

// A part of an image, in pixels.
typedef struct {
  int32_t top, left, height, width;
} Part;

// A JPEG with fewer rows and columns than its source. Begin with zeros; free `data` in the end.
typedef struct {
  uint8_t *data;
  size_t size, capacity;
  Part part;  // where the wanted part is in it
  int source_height, source_width;  // in pixels
} CutJpeg;

uint8_t *find_entry_points(const uint8_t *data, size_t size, size_t *found_size);
int cut_jpeg(const uint8_t *data, size_t size, const uint8_t *points, size_t points_size, Part part, CutJpeg *cut);
