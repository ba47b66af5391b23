// Resizes a part of an RGB image with a filter, without Python's lock.
//
// The result has the pixels of TensorFlow's ScaleAndTranslate and of Pillow's resize, but for rounding: a row is the
// weighted sum of rows, kept with a fraction of 6 bits, and its pixels are weighted sums of pixels. All arithmetic on
// pixels is in whole numbers: the result does not depend on the processor. Filters with two weights, which readers use
// by default, have a faster path to the same pixels.

#include "resample.h"

#include "native_methods.h"

#include <stdlib.h>
#include <string.h>

#include "sum_rows.h"

enum {
  FRACTION_BITS = 6,  // of the values of a row: 255 and what bicubic adds to it fit into 16 bits
  DOWN_SHIFT = WEIGHT_BITS - FRACTION_BITS,
  ACROSS_SHIFT = WEIGHT_BITS + FRACTION_BITS,
  CHANNELS = 3,
  WIDE = 4,  // values of a pixel while it is blended, of which the last is unused
};

// Writes one pixel: the weighted sum of pixels of a row. Reads one value behind the last pixel.
static void sum_pixels(const int16_t *row, const Taps *taps, uint8_t *to) {
  const int16_t *pixel = row + CHANNELS * taps->first;
#if defined(__SSE2__)
  __m128i sum = _mm_set1_epi32(1 << (ACROSS_SHIFT - 1));
  for (int k = 0; k < taps->count; k += 2, pixel += 2 * CHANNELS) {
    int32_t pair;
    memcpy(&pair, taps->weights + k, sizeof pair);
    __m128i one = _mm_loadl_epi64((const __m128i *)pixel), two = _mm_loadl_epi64((const __m128i *)(pixel + CHANNELS));
    sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_unpacklo_epi16(one, two), _mm_set1_epi32(pair)));
  }
  sum = _mm_srai_epi32(sum, ACROSS_SHIFT);
  sum = _mm_packs_epi32(sum, sum);
  int32_t values = _mm_cvtsi128_si32(_mm_packus_epi16(sum, sum));
  memcpy(to, &values, CHANNELS);
#else
  for (int c = 0; c < CHANNELS; c++) {
    int32_t sum = 1 << (ACROSS_SHIFT - 1);
    for (int k = 0; k < taps->count; k++) sum += taps->weights[k] * pixel[CHANNELS * k + c];
    sum >>= ACROSS_SHIFT;
    to[c] = sum < 0 ? 0 : sum > 255 ? 255 : (uint8_t)sum;
  }
#endif
}

// With vectors of 32 bytes where the processor has them. The arithmetic is the same.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__)
#define WITH_LONG_VECTORS __attribute__((target_clones("avx2", "default")))
#else
#define WITH_LONG_VECTORS
#endif

// As sum_rows() of two rows, with 16 bits. `weight` is that of the second one.
WITH_LONG_VECTORS static void blend_rows(const uint8_t *restrict first, const uint8_t *restrict second, size_t num_values,
                                         int16_t weight, int16_t *restrict row) {
  for (size_t i = 0; i < num_values; i++) {
    int16_t change = (int16_t)((second[i] - first[i]) * 128);
    row[i] = (int16_t)((first[i] << FRACTION_BITS) + (((change * weight >> 14) + 1) >> 1));
  }
}

// As sum_pixels() of two pixels beside each other, for a whole row. `weights` has twice the second one's, WIDE times.
// `first` and `second` have no `restrict`: with it, GCC reads the pixels more slowly.
WITH_LONG_VECTORS static void blend_pixels(const int16_t *const *pixels, const int16_t *restrict weights, size_t width,
                                           int16_t *first, int16_t *second, uint8_t *restrict blended) {
  for (size_t x = 0; x < width; x++) {
    memcpy(first + WIDE * x, pixels[x], WIDE * sizeof *first);
    memcpy(second + WIDE * x, pixels[x] + CHANNELS, WIDE * sizeof *second);
  }
  for (size_t i = 0; i < WIDE * width; i++) {
    int16_t change = (int16_t)(2 * (second[i] - first[i]));
    int16_t sum = (int16_t)(first[i] + (change * weights[i] >> 16) + (1 << (FRACTION_BITS - 1)));
    blended[i] = (uint8_t)(sum >> FRACTION_BITS);
  }
}

// Writes pixels of WIDE values. Each overwrites the last value of the one before.
static void write_pixels(const uint8_t *pixel, int width, int flip, uint8_t *to) {
  int step = flip ? -WIDE : WIDE;
  if (flip) pixel += WIDE * (width - 1);
  for (int x = 0; x < width - 1; x++, pixel += step, to += CHANNELS) memcpy(to, pixel, WIDE);
  memcpy(to, pixel, CHANNELS);
}

static int is_same(const Side *side) {
  return side->start == 0 && side->step == 1 && side->source_size == side->result_size;
}

static void copy_pixels(const uint8_t *pixels, size_t stride, int width, int height, int flip, uint8_t *out) {
  size_t row_bytes = (size_t)CHANNELS * width;
  for (int y = 0; y < height; y++, pixels += stride, out += row_bytes) {
    if (!flip) memcpy(out, pixels, row_bytes);
    for (int x = 0; flip && x < width; x++) memcpy(out + CHANNELS * x, pixels + CHANNELS * (width - 1 - x), CHANNELS);
  }
}

// Resizes a part of an image, and mirrors it if `flip` is set. Pixels outside of the part count nothing.
//
// `pixels` is the first pixel of the part; its rows are `stride` bytes apart, and PIXELS_SLACK bytes follow the last
// one. Returns whether there was memory for it.
int resample_rgb(const uint8_t *pixels, size_t stride, const Side *across, const Side *down, int flip, uint8_t *out,
                 Scratch *scratch) {
  int width = across->result_size;
  if (is_same(across) && is_same(down)) {
    copy_pixels(pixels, stride, width, down->result_size, flip, out);
    return 1;
  }
  size_t num_values = (size_t)CHANNELS * across->source_size;
  size_t room_across = room_for_weights(across), room_down = room_for_weights(down);
  size_t num_taps = (size_t)across->result_size + down->result_size;
  size_t num_weights = across->result_size * room_across + down->result_size * room_down;
  // The row is longer than its values: whole VALUES_AT_ONCE, and a pixel of weight 0 with one value behind it.
  size_t row_size = round_up(num_values, VALUES_AT_ONCE) + 2 * CHANNELS + 2;
  size_t num_exact = room_across > room_down ? room_across : room_down;
  size_t num_blended = (size_t)WIDE * width;
  size_t size = num_taps * sizeof(Taps) + width * sizeof(int16_t *) + num_exact * sizeof(double) +
                (num_weights + row_size + 2 * num_blended) * sizeof(int16_t) + num_blended;
  if (size > scratch->size) {
    free(scratch->at);
    scratch->at = malloc(size);
    scratch->size = scratch->at ? size : 0;
    if (!scratch->at) return 0;
  }
  Taps *columns = scratch->at, *rows = columns + across->result_size;
  const int16_t **first_pixels = (const int16_t **)(rows + down->result_size);
  double *exact = (double *)(first_pixels + width);
  int16_t *weights = (int16_t *)(exact + num_exact), *row = weights + num_weights;
  make_taps(across, columns, weights, exact);
  make_taps(down, rows, weights + across->result_size * room_across, exact);
  int16_t *first = row + row_size, *second = first + num_blended;
  uint8_t *blended = (uint8_t *)(second + num_blended);
  memset(row, 0, row_size * sizeof *row);
  int is_pair = room_across == WIDE && room_down == WIDE;  // bilinear of the nearest: two weights at most
  for (int x = 0; is_pair && x < width; x++) {
    int16_t weight = columns[x].weights[1];
    first_pixels[x] = row + CHANNELS * columns[x].first;
    if (weight == 1 << WEIGHT_BITS) first_pixels[x] += CHANNELS, weight = 0;  // twice of it is too large
    for (int i = 0; i < WIDE; i++) weights[WIDE * x + i] = 2 * weight;
  }
  for (int y = 0; y < down->result_size; y++) {
    const uint8_t *from = pixels + (size_t)rows[y].first * stride;
    uint8_t *to = out + (size_t)CHANNELS * width * y;
    if (is_pair) {
      int16_t weight = rows[y].weights[1];
      blend_rows(from, from + (weight ? stride : 0), num_values, weight, row);
      blend_pixels(first_pixels, weights, width, first, second, blended);
      write_pixels(blended, width, flip, to);
      continue;
    }
    for (size_t x = 0; x < num_values; x += VALUES_AT_ONCE)
      sum_rows(from + x, stride, down->source_size, &rows[y], DOWN_SHIFT, row + x);
    for (int x = 0; x < width; x++) sum_pixels(row, &columns[x], to + CHANNELS * (flip ? width - 1 - x : x));
  }
  return 1;
}
