// Scales pixels as Pillow does, to the last bit, with vector instructions.
//
// Source: https://github.com/python-pillow/Pillow/blob/12.3.0/src/libImaging/Resample.c. Sums of weighted pixels are in
// whole numbers, so that their order does not matter.

#include "filter_weights.h"

#include "pillow_pixels.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#include <stdlib.h>
#include <string.h>

#include "planes.h"

enum {
  PILLOW_BITS = 22,  // Pillow's weight of 1 is 1 << 22
  LOW_BITS = 9,  // a weight is high * 512 + low, both of which fit into 16 bits: sums of both parts are exact
};

typedef struct {
  int first, count;
  const int32_t *pairs;  // of two weights: their high parts, then their low parts
} PillowTaps;

// Returns the taps, to be freed, with the weights behind them; NULL if there is no memory.
static PillowTaps *make_pillow_taps(const Side *side) {
  size_t room = room_for_weights(side), count_all = side->result_size;
  PillowTaps *taps = malloc(count_all * (sizeof *taps + room * sizeof(int32_t)) + room * sizeof(double));
  if (!taps) return NULL;
  double *exact = (double *)(taps + count_all);
  int32_t *pairs = (int32_t *)(exact + room);
  for (size_t i = 0; i < count_all; i++, pairs += room) {
    int first, count = weigh_pixels(side, (int)i, &first, exact);
    for (int k = 0; k < count; k += 2) {
      uint16_t high[2] = {0}, low[2] = {0};
      for (int j = 0; j < 2 && k + j < count; j++) {
        double scaled = exact[k + j] * (1 << PILLOW_BITS);
        int32_t weight = (int32_t)(exact[k + j] < 0 ? -0.5 + scaled : 0.5 + scaled);
        high[j] = (uint16_t)(weight >> LOW_BITS);
        low[j] = weight & ((1 << LOW_BITS) - 1);
      }
      pairs[k] = (int32_t)((uint32_t)high[1] << 16 | high[0]);
      pairs[k + 1] = (int32_t)((uint32_t)low[1] << 16 | low[0]);
    }
    taps[i] = (PillowTaps){first, count, pairs};
  }
  return taps;
}

static __m128i round_sums(__m128i high, __m128i low) {
  __m128i sums = _mm_add_epi32(_mm_slli_epi32(high, LOW_BITS), low);
  return _mm_srai_epi32(_mm_add_epi32(sums, _mm_set1_epi32(1 << (PILLOW_BITS - 1))), PILLOW_BITS);
}

static void scale_row(const uint8_t *row, const PillowTaps *taps, int width, uint8_t *to) {
  const __m128i zero = _mm_setzero_si128();
  for (int x = 0; x < width; x++, to += PIXEL_BYTES) {
    const uint8_t *pixel = row + (size_t)PIXEL_BYTES * taps[x].first;
    __m128i high = zero, low = zero;
    for (int k = 0; k < taps[x].count; k += 2, pixel += 2 * PIXEL_BYTES) {
      int32_t last;
      memcpy(&last, pixel, sizeof last);
      __m128i two = k + 1 < taps[x].count ? _mm_loadl_epi64((const __m128i *)pixel) : _mm_cvtsi32_si128(last);
      two = _mm_unpacklo_epi8(_mm_unpacklo_epi8(two, _mm_srli_si128(two, PIXEL_BYTES)), zero);
      high = _mm_add_epi32(high, _mm_madd_epi16(two, _mm_set1_epi32(taps[x].pairs[k])));
      low = _mm_add_epi32(low, _mm_madd_epi16(two, _mm_set1_epi32(taps[x].pairs[k + 1])));
    }
    __m128i rounded = _mm_packs_epi32(round_sums(high, low), zero);
    int32_t result = _mm_cvtsi128_si32(_mm_packus_epi16(rounded, zero));
    memcpy(to, &result, sizeof result);
  }
}

// `stride` of the rows and of `to` is a multiple of 16 bytes.
static void scale_column(const uint8_t *rows, size_t stride, const PillowTaps *taps, uint8_t *to) {
  const __m128i zero = _mm_setzero_si128();
  for (size_t x = 0; x < stride; x += COLUMNS_AT_ONCE) {
    const uint8_t *row = rows + taps->first * stride + x;
    __m128i high[4] = {zero, zero, zero, zero}, low[4] = {zero, zero, zero, zero};
    for (int k = 0; k < taps->count; k += 2, row += 2 * stride) {
      __m128i one = _mm_loadu_si128((const __m128i *)row);
      __m128i two = k + 1 < taps->count ? _mm_loadu_si128((const __m128i *)(row + stride)) : zero;
      __m128i left = _mm_unpacklo_epi8(one, two), right = _mm_unpackhi_epi8(one, two);
      __m128i wide[4] = {_mm_unpacklo_epi8(left, zero), _mm_unpackhi_epi8(left, zero), _mm_unpacklo_epi8(right, zero),
                         _mm_unpackhi_epi8(right, zero)};
      __m128i high_pair = _mm_set1_epi32(taps->pairs[k]), low_pair = _mm_set1_epi32(taps->pairs[k + 1]);
      for (int i = 0; i < 4; i++) {
        high[i] = _mm_add_epi32(high[i], _mm_madd_epi16(wide[i], high_pair));
        low[i] = _mm_add_epi32(low[i], _mm_madd_epi16(wide[i], low_pair));
      }
    }
    __m128i left = _mm_packs_epi32(round_sums(high[0], low[0]), round_sums(high[1], low[1]));
    __m128i right = _mm_packs_epi32(round_sums(high[2], low[2]), round_sums(high[3], low[3]));
    _mm_storeu_si128((__m128i *)(to + x), _mm_packus_epi16(left, right));
  }
}

// Returns whether there was memory for it. Like Pillow it scales rows first, and leaves out a side that keeps its size.
int scale_pixels(const uint8_t *from, const Side *across, const Side *down, uint8_t *to) {
  int width = across->result_size;
  size_t row_bytes = (size_t)PIXEL_BYTES * width, stride = round_up(row_bytes, COLUMNS_AT_ONCE);
  PillowTaps *columns = make_pillow_taps(across), *rows = make_pillow_taps(down);
  uint8_t *scaled = malloc(stride * (down->source_size + 1));  // and one row of the result
  int is_done = columns && rows && scaled;
  if (is_done) {
    for (int y = 0; y < down->source_size; y++) {
      const uint8_t *row = from + (size_t)PIXEL_BYTES * across->source_size * y;
      if (width == across->source_size)
        memcpy(scaled + y * stride, row, row_bytes);
      else
        scale_row(row, columns, width, scaled + y * stride);
      memset(scaled + y * stride + row_bytes, 0, stride - row_bytes);
    }
    uint8_t *result = scaled + stride * down->source_size;
    for (int y = 0; y < down->result_size; y++) {
      if (down->result_size == down->source_size)
        result = scaled + y * stride;
      else
        scale_column(scaled, stride, &rows[y], result);
      memcpy(to + y * row_bytes, result, row_bytes);
    }
  }
  free(columns);
  free(rows);
  free(scaled);
  return is_done;
}

// Expands pixels of three bytes to four, and the other way round.
static void expand_pixels(const uint8_t *from, size_t count, uint8_t *to) {
  for (; count; count--, from += 3, to += PIXEL_BYTES) {
    memcpy(to, from, 3);
    to[3] = 0;
  }
}

static void pack_pixels(const uint8_t *from, size_t count, uint8_t *to) {
  for (; count; count--, from += PIXEL_BYTES, to += 3) memcpy(to, from, 3);
}

// Returns whether there was memory for it.
int scale_colors(const uint8_t *from, const Side *across, const Side *down, uint8_t *to) {
  size_t count = (size_t)across->source_size * down->source_size, to_count = (size_t)across->result_size * down->result_size;
  uint8_t *expanded = malloc(PIXEL_BYTES * count), *result = malloc(PIXEL_BYTES * to_count);
  int is_done = expanded && result;
  if (is_done) {
    expand_pixels(from, count, expanded);
    is_done = scale_pixels(expanded, across, down, result);
  }
  if (is_done) pack_pixels(result, to_count, to);
  free(expanded);
  free(result);
  return is_done;
}

static size_t padded(int size) { return round_up(size, COLUMNS_AT_ONCE); }

// The same for pixels of one byte. Columns are scaled alone, since many of them are scaled at once: rows are turned first.
int scale_gray(const uint8_t *from, const Side *across, const Side *down, uint8_t *to) {
  int width = across->source_size, height = down->source_size, to_width = across->result_size;
  PillowTaps *columns = make_pillow_taps(across), *rows = make_pillow_taps(down);
  Plane upright = {.stride = padded(width), .width = width, .height = height};
  Plane turned = {.stride = padded(height), .width = height, .height = width};
  Plane scaled = {.stride = padded(height), .width = height, .height = to_width};
  Plane wanted = {.stride = padded(to_width), .width = to_width, .height = height};
  Plane *planes[] = {&upright, &turned, &scaled, &wanted};
  size_t sizes[4], size = padded(to_width);  // one row of the result
  for (int i = 0; i < 4; i++) size += sizes[i] = planes[i]->stride * padded(planes[i]->height);
  uint8_t *memory = calloc(1, size), *at = memory;
  int is_done = columns && rows && memory;
  if (is_done) {
    for (int i = 0; i < 4; at += sizes[i++]) planes[i]->pixels = at;
    for (int y = 0; y < height; y++) memcpy(upright.pixels + y * upright.stride, from + (size_t)y * width, width);
    if (width != to_width) {
      transpose_plane(&upright, &turned);
      for (int x = 0; x < to_width; x++)
        scale_column(turned.pixels, turned.stride, &columns[x], scaled.pixels + x * scaled.stride);
      transpose_plane(&scaled, &wanted);
    } else {
      wanted = upright;
    }
    for (int y = 0; y < down->result_size; y++) {
      const uint8_t *result = height == down->result_size ? wanted.pixels + y * wanted.stride : at;
      if (result == at) scale_column(wanted.pixels, wanted.stride, &rows[y], at);
      memcpy(to + (size_t)y * to_width, result, to_width);
    }
  }
  free(columns);
  free(rows);
  free(memory);
  return is_done;
}
#endif
