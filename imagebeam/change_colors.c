// Changes brightness, contrast, saturation and hue of RGB as torchvision's ColorJitter does with floating-point numbers:
// cut off at black and white after each step, and rounded once in the end.

#include "change_colors.h"

#include <math.h>

enum { PIXELS_AT_ONCE = 64 };

static const float GRAY[3] = {0.2989f, 0.587f, 0.114f};  // torchvision's rgb_to_grayscale

static float cut_off(float level) { return level < 0 ? 0 : level > 255 ? 255 : level; }

static float gray_of(const float *pixel) { return GRAY[0] * pixel[0] + GRAY[1] * pixel[1] + GRAY[2] * pixel[2]; }

static void scale_brightness(float *pixels, size_t count, float factor) {
  for (size_t i = 0; i < 3 * count; i++) pixels[i] = cut_off(factor * pixels[i]);
}

static void scale_contrast(float *pixels, size_t count, float factor) {
  double sum = 0;
  for (size_t i = 0; i < count; i++) sum += gray_of(pixels + 3 * i);
  float rest = (1 - factor) * (float)(sum / (double)count);
  for (size_t i = 0; i < 3 * count; i++) pixels[i] = cut_off(factor * pixels[i] + rest);
}

static void scale_saturation(float *pixels, size_t count, float factor) {
  for (size_t i = 0; i < count; i++) {
    float *pixel = pixels + 3 * i, rest = (1 - factor) * gray_of(pixel);
    for (int c = 0; c < 3; c++) pixel[c] = cut_off(factor * pixel[c] + rest);
  }
}

static inline float smaller_of(float a, float b) { return a < b ? a : b; }

static inline float larger_of(float a, float b) { return a > b ? a : b; }

// The level of a color that is `k` sixths of the circle behind the hue; all but `most` is multiplied by the chroma.
static inline float level_at(float most, float chroma, float k) {
  k -= k < 6 * chroma ? 0 : 6 * chroma;
  return most - larger_of(smaller_of(smaller_of(k, 4 * chroma - k), chroma), 0);
}

// Turns the hue by a part of the circle, in HSV as torchvision does. Value and chroma stay as they are, and with them
// gray. A plane for each color, and no branch and division: so compilers use vectors.
static void turn_hue(float *pixels, size_t count, float turn) {
  float shift[3], planes[3][PIXELS_AT_ONCE];
  for (int c = 0; c < 3; c++) shift[c] = fmodf(6 * turn + (float)(5 - 2 * c) + 6, 6);
  for (size_t size; count; count -= size, pixels += 3 * size) {
    size = count < PIXELS_AT_ONCE ? count : PIXELS_AT_ONCE;
    for (size_t i = 0; i < size; i++)
      for (int c = 0; c < 3; c++) planes[c][i] = pixels[3 * i + c];
    for (size_t i = 0; i < size; i++) {
      float red = planes[0][i], green = planes[1][i], blue = planes[2][i];
      float most = larger_of(red, larger_of(green, blue)), chroma = most - smaller_of(red, smaller_of(green, blue));
      float sixths = most == green ? blue - red + 2 * chroma : red - green + 4 * chroma;
      sixths = most == red ? green - blue : sixths;
      for (int c = 0; c < 3; c++) planes[c][i] = level_at(most, chroma, sixths + shift[c] * chroma);
    }
    for (size_t i = 0; i < size; i++)
      for (int c = 0; c < 3; c++) pixels[3 * i + c] = planes[c][i];
  }
}

// `change` has the factors of brightness, contrast and saturation, the turn of the hue, and which of the 24 orders of
// these steps is taken, 0 to 23. `scratch` has room for all values.
void change_colors(uint8_t *levels, size_t num_pixels, const float *change, float *scratch) {
  static void (*const STEPS[4])(float *, size_t, float) = {scale_brightness, scale_contrast, scale_saturation, turn_hue};
  int left[4] = {0, 1, 2, 3}, order = (int)change[4];
  for (size_t i = 0; i < 3 * num_pixels; i++) scratch[i] = levels[i];
  for (int count = 4; count > 0; count--) {
    int at = order % count, step = left[at];
    order /= count;
    for (int i = at; i < count - 1; i++) left[i] = left[i + 1];
    if (change[step] != (step == 3 ? 0.0f : 1.0f)) STEPS[step](scratch, num_pixels, change[step]);
  }
  for (size_t i = 0; i < 3 * num_pixels; i++) levels[i] = (uint8_t)(scratch[i] + 0.5f);
}
