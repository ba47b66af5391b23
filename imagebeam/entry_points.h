// Entry points of a JPEG: places in its entropy-coded data where a decoder can begin. See entry_points.c.

#include <stddef.h>
#include <stdint.h>

// A part of an image, in pixels.
typedef struct {
  int32_t top, left, height, width;
} Part;

// Whether a part is inside of an image, with sides of `least` or more.
static inline int is_inside(Part part, int least, int64_t height, int64_t width) {
  return part.top >= 0 && part.left >= 0 && part.height >= least && part.width >= least &&
         (int64_t)part.top + part.height <= height && (int64_t)part.left + part.width <= width;
}

// A JPEG with fewer rows and columns than its source. Begin with zeros; free `data` in the end.
typedef struct {
  uint8_t *data;
  size_t size, capacity;
  Part part;  // where the wanted part is in it
  int source_height, source_width;  // in pixels
} CutJpeg;

uint8_t *find_entry_points(const uint8_t *data, size_t size, size_t *found_size);
int cut_jpeg(const uint8_t *data, size_t size, const uint8_t *points, size_t points_size, Part part, CutJpeg *cut);
