// Weights of the pixels that make one pixel of a scaled image: for the converter and for the reader.

#include "filter_weights.h"

#include <math.h>

static double box(double x) { return x > -0.5 && x <= 0.5; }

static double triangle(double x) { return fabs(x) < 1 ? 1 - fabs(x) : 0; }

static double cubic(double x) {
  const double a = -0.5;
  x = fabs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static double sinc(double x) { return x == 0 ? 1 : sin(M_PI * x) / (M_PI * x); }

static double lanczos(double x) { return fabs(x) < 3 ? sinc(x) * sinc(x / 3) : 0; }

// Pillow's filters, by the number that the caller passes.
static const struct {
  double (*weigh)(double);
  double support;  // beyond it the weight is 0
} FILTERS[NUM_FILTERS] = {{box, 0.5}, {triangle, 1}, {cubic, 2}, {lanczos, 3}};

static double widening_of(const Side *side) { return side->step > 1 && !side->is_aliased ? side->step : 1; }

// Returns the largest number of weights of one pixel.
size_t count_weights(const Side *side) {
  return 2 * (size_t)ceil(FILTERS[side->filter].support * widening_of(side)) + 1;
}

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Returns how many weights of a pixel there are at most, and one more where that is odd.
size_t room_for_weights(const Side *side) { return round_up(count_weights(side), 2); }

// Computes the weights of pixel i of the result and returns their number. When an image is reduced, the filter is widened
// by the same factor, which is what avoids aliasing. Each operation is the one of Pillow, in the same order, so that
// the last bit is the same.
// Source: https://github.com/python-pillow/Pillow/blob/12.3.0/src/libImaging/Resample.c, precompute_coeffs.
int weigh_pixels(const Side *side, int i, int *first, double *weights) {
  double widening = widening_of(side), support = FILTERS[side->filter].support * widening, inverse = 1.0 / widening;
  double center = side->start + (i + 0.5) * side->step, total = 0;
  int begin = (int)(center - support + 0.5), end = (int)(center + support + 0.5);
  if (begin < 0) begin = 0;
  if (begin > side->source_size - 1) begin = side->source_size - 1;
  if (end > side->source_size) end = side->source_size;
  int count = end > begin ? end - begin : 1;
  for (int k = 0; k < count; k++) {
    weights[k] = FILTERS[side->filter].weigh((k + begin - center + 0.5) * inverse);
    total += weights[k];
  }
  if (total == 0) weights[0] = total = 1;  // past the last pixel by rounding
  for (int k = 0; k < count; k++) weights[k] /= total;
  *first = begin;
  return count;
}

// Fills `taps` for each pixel of the result. Their weights go to `weights`, which has room_for_weights() for each;
// `exact` has it for one.
void make_taps(const Side *side, Taps *taps, int16_t *weights, double *exact) {
  size_t room = room_for_weights(side);
  for (int i = 0; i < side->result_size; i++, weights += room) {
    int first, count = weigh_pixels(side, i, &first, exact), before = 0;
    double sum = 0;
    for (int k = 0; k < count; k++) {  // sums are rounded, so that they end at 1: a plain area keeps its value
      sum += exact[k];
      int until = (int)floor(sum * (1 << WEIGHT_BITS) + 0.5);
      weights[k] = (int16_t)(until - before);
      before = until;
    }
    if (count & 1) weights[count] = 0;
    taps[i] = (Taps){first, count, weights};
  }
}
