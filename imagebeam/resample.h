// Resizes a part of an RGB image with a filter. See resample.c.

#include <stddef.h>
#include <stdint.h>

#include "filter_weights.h"

// Memory that is used again. Begin with zeros; free `at` in the end.
typedef struct {
  void *at;
  size_t size;
} Scratch;

int resample_rgb(const uint8_t *pixels, size_t stride, const Side *across, const Side *down, int flip, uint8_t *out,
                 Scratch *scratch);
