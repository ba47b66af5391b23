// Weights of the pixels that make one pixel of a scaled image. See filter_weights.c.

#include <stddef.h>

enum { FILTER_BOX, FILTER_BILINEAR, FILTER_BICUBIC, FILTER_LANCZOS, NUM_FILTERS };

// One side of an image before and after scaling.
typedef struct {
  int source_size, result_size;
  double start, step;  // in pixels of the source: where the result begins, and how far its pixels are apart
  int filter;
  int is_aliased;  // whether the filter keeps its width when the image is reduced, and so leaves out pixels
} Side;

size_t count_weights(const Side *side);
int weigh_pixels(const Side *side, int i, int *first, double *weights);
