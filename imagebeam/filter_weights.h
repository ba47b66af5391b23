// Weights of the pixels that make one pixel of a scaled image. See filter_weights.c.

#pragma once

#include <stddef.h>
#include <stdint.h>

enum { FILTER_BOX, FILTER_BILINEAR, FILTER_BICUBIC, FILTER_LANCZOS, NUM_FILTERS };

// One side of an image before and after scaling.
typedef struct {
  int source_size, result_size;
  double start, step;  // in pixels of the source: where the result begins, and how far its pixels are apart
  int filter;
  int is_aliased;  // whether the filter keeps its width when the image is reduced, and so leaves out pixels
} Side;

enum { WEIGHT_BITS = 14 };  // of a weight in whole numbers: 1 is 16,384; bicubic and Lanczos stay below 2

// The weights that make one row or column of the result.
typedef struct {
  int first, count;  // rows or columns of the source; weights[count] is 0 if count is odd
  const int16_t *weights;
} Taps;

size_t round_up(size_t value, size_t step);
size_t count_weights(const Side *side);
size_t room_for_weights(const Side *side);
int weigh_pixels(const Side *side, int i, int *first, double *weights);
void make_taps(const Side *side, Taps *taps, int16_t *weights, double *exact);
