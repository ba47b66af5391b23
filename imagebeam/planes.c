// Turns planes of pixels: rows become columns.

#include "planes.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

static void transpose_block(const uint8_t *from, size_t from_stride, uint8_t *to, size_t to_stride) {
#if defined(__SSE2__)
  __m128i rows[8], pairs[4], fours[4];
  for (int i = 0; i < 8; i++) rows[i] = _mm_loadl_epi64((const __m128i *)(from + i * from_stride));
  for (int i = 0; i < 4; i++) pairs[i] = _mm_unpacklo_epi8(rows[2 * i], rows[2 * i + 1]);
  for (int i = 0; i < 2; i++) {
    fours[2 * i] = _mm_unpacklo_epi16(pairs[2 * i], pairs[2 * i + 1]);
    fours[2 * i + 1] = _mm_unpackhi_epi16(pairs[2 * i], pairs[2 * i + 1]);
  }
  for (int i = 0; i < 2; i++) {
    __m128i low = _mm_unpacklo_epi32(fours[i], fours[i + 2]), high = _mm_unpackhi_epi32(fours[i], fours[i + 2]);
    uint8_t *at = to + 4 * i * to_stride;
    _mm_storel_epi64((__m128i *)at, low);
    _mm_storel_epi64((__m128i *)(at + to_stride), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64((__m128i *)(at + 2 * to_stride), high);
    _mm_storel_epi64((__m128i *)(at + 3 * to_stride), _mm_unpackhi_epi64(high, high));
  }
#else
  for (int y = 0; y < 8; y++)
    for (int x = 0; x < 8; x++) to[x * to_stride + y] = from[y * from_stride + x];
#endif
}

// `to` has room for a whole COLUMNS_AT_ONCE of rows, as `from`.
void transpose_plane(const Plane *from, Plane *to) {
  for (int y = 0; y < from->height; y += 8)
    for (int x = 0; x < from->width; x += 8)
      transpose_block(from->pixels + y * from->stride + x, from->stride, to->pixels + x * to->stride + y, to->stride);
}
