// Resizes an RGB image from the four nearest pixels, as tf.image.resize does without antialiasing.

#include "bilinear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)  // Clang defines __GNUC__ too
#include <immintrin.h>
#define HAS_AVX2_CODE
#endif

static int position_at(double position, int limit, double *fraction) {
  double clamped = position < 0 ? 0 : position > limit - 1 ? limit - 1 : position;
  int whole = (int)clamped;
  *fraction = clamped - whole;
  return whole;
}

static void resize_pixels(const int16_t *blended, int from, int width, const int *columns, const int16_t *weights,
                          uint8_t *out) {
  for (int x = from; x < width; x++)
    for (int c = 0; c < 3; c++) {
      int left = blended[columns[x] + c], right = blended[columns[width + x] + c];
      out[3 * x + c] = (left + (((right - left) * weights[4 * x + c] + (1 << 14)) >> 15) + 64) >> 7;
    }
}

static void resize_row(const uint8_t *restrict upper, const uint8_t *restrict lower, int num_values, int16_t second,
                       int16_t *restrict blended, int width, const int *columns, const int16_t *weights,
                       uint8_t *out) {
  int16_t first = 128 - second;
  for (int i = 0; i < num_values; i++) blended[i] = upper[i] * first + lower[i] * second;
  resize_pixels(blended, 0, width, columns, weights, out);
}

#ifdef HAS_AVX2_CODE
#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i four_pixels(const int16_t *blended, const int *columns) {
  int64_t pixels[4];
  for (int i = 0; i < 4; i++) memcpy(&pixels[i], blended + columns[i], sizeof pixels[i]);
  return _mm256_set_epi64x(pixels[3], pixels[2], pixels[1], pixels[0]);
}

// The same for four pixels at a time.
AVX2 static void resize_row_avx2(const uint8_t *restrict upper, const uint8_t *restrict lower, int num_values,
                                 int16_t second, int16_t *restrict blended, int width, const int *columns,
                                 const int16_t *weights, uint8_t *out) {
  const __m256i half = _mm256_set1_epi16(64);
  const __m128i without_fourth = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  int16_t first = 128 - second;
  for (int i = 0; i < num_values; i++) blended[i] = upper[i] * first + lower[i] * second;
  int x = 0;
  for (; x + 4 <= width; x += 4) {
    __m256i left = four_pixels(blended, columns + x), right = four_pixels(blended, columns + width + x);
    __m256i weight = _mm256_loadu_si256((const __m256i *)(weights + 4 * x));
    __m256i value = _mm256_add_epi16(left, _mm256_mulhrs_epi16(_mm256_sub_epi16(right, left), weight));
    value = _mm256_srli_epi16(_mm256_add_epi16(value, half), 7);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
    bytes = _mm_shuffle_epi8(bytes, without_fourth);
    _mm_storel_epi64((__m128i *)(out + 3 * x), bytes);  // only twelve bytes: the next ones may belong to another thread
    int last = _mm_extract_epi32(bytes, 2);
    memcpy(out + 3 * x + 8, &last, sizeof last);
  }
  resize_pixels(blended, x, width, columns, weights, out);
}
#endif

ResizeRow *best_resize_row(void) {
#ifdef HAS_AVX2_CODE
  if (__builtin_cpu_supports("avx2") && !getenv("IMAGEBEAM_NO_AVX2")) return resize_row_avx2;  // for tests
#endif
  return resize_row;
}

// Copies an image that has the wanted size already, to what resizing would make of it.
static void copy_pixels(const Bilinear *to, const uint8_t *pixels, size_t stride, int flip, uint8_t *out) {
  for (int y = 0; y < to->height; y++, pixels += stride, out += (size_t)3 * to->width) {
    if (!flip) memcpy(out, pixels, (size_t)3 * to->width);
    for (int x = 0; flip && x < to->width; x++) memcpy(out + 3 * x, pixels + 3 * (to->width - 1 - x), 3);
  }
}

// Resizes with half-pixel centers and rounds. Weights have steps of 1/128 vertically, 1/32767 horizontally.
void resize_bilinear(const Bilinear *to, const uint8_t *pixels, size_t stride, int width, int height, int flip,
                     uint8_t *out) {
  double fraction;
  if (width == to->width && height == to->height) {
    copy_pixels(to, pixels, stride, flip, out);
    return;
  }
  for (int x = 0; x < to->width; x++) {
    int column = position_at((x + 0.5) * width / to->width - 0.5, width, &fraction);
    int place = flip ? to->width - 1 - x : x;
    to->columns[place] = 3 * column;
    to->columns[to->width + place] = 3 * (column + 1 < width ? column + 1 : column);
    int16_t weight = (int16_t)lrint(fraction * 32767);
    for (int c = 0; c < 4; c++) to->weights[4 * place + c] = weight;
  }
  for (int y = 0; y < to->height; y++) {
    int row = position_at((y + 0.5) * height / to->height - 0.5, height, &fraction);
    const uint8_t *upper = pixels + row * stride, *lower = upper + (row + 1 < height ? stride : 0);
    to->resize_row(upper, lower, 3 * width, (int16_t)lrint(fraction * 128), to->blended, to->width, to->columns,
                   to->weights, out + (size_t)y * to->width * 3);
  }
}
