// The inner loop of scaling, for resample.c and resize.c: a header, so that each gets it with its own constants.

#include <stdint.h>
#include <string.h>

#include "filter_weights.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { VALUES_AT_ONCE = 16 };

// Writes VALUES_AT_ONCE weighted sums of rows, of which the first `taps` is for begins at `row`, without their last
// `shift` bits. A last row of weight 0 that is not among `num_rows` is not read.
static inline void sum_rows(const uint8_t *row, size_t stride, int num_rows, const Taps *taps, int shift, int16_t *to) {
#if defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128(), half = _mm_set1_epi32(1 << (shift - 1));
  __m128i sums[4] = {half, half, half, half};
  for (int k = 0; k < taps->count; k += 2, row += 2 * stride) {
    int32_t pair;
    memcpy(&pair, taps->weights + k, sizeof pair);
    __m128i weights = _mm_set1_epi32(pair), one = _mm_loadu_si128((const __m128i *)row);
    __m128i two = taps->first + k + 1 < num_rows ? _mm_loadu_si128((const __m128i *)(row + stride)) : zero;
    __m128i low = _mm_unpacklo_epi8(one, two), high = _mm_unpackhi_epi8(one, two);
    sums[0] = _mm_add_epi32(sums[0], _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), weights));
    sums[1] = _mm_add_epi32(sums[1], _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), weights));
    sums[2] = _mm_add_epi32(sums[2], _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), weights));
    sums[3] = _mm_add_epi32(sums[3], _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), weights));
  }
  for (int i = 0; i < 4; i++) sums[i] = _mm_srai_epi32(sums[i], shift);
  _mm_storeu_si128((__m128i *)to, _mm_packs_epi32(sums[0], sums[1]));
  _mm_storeu_si128((__m128i *)(to + 8), _mm_packs_epi32(sums[2], sums[3]));
#else
  int32_t sums[VALUES_AT_ONCE];
  for (int i = 0; i < VALUES_AT_ONCE; i++) sums[i] = 1 << (shift - 1);
  for (int k = 0; k < taps->count && taps->first + k < num_rows; k++, row += stride)
    for (int i = 0; i < VALUES_AT_ONCE; i++) sums[i] += taps->weights[k] * row[i];
  for (int i = 0; i < VALUES_AT_ONCE; i++) to[i] = (int16_t)(sums[i] >> shift);
#endif
}
