// Resizes an RGB image from the four nearest pixels. See bilinear.c.

#include <stddef.h>
#include <stdint.h>

// Makes one row of the result: blends two rows, then pairs of pixels. A pixel is handled as four values.
typedef void ResizeRow(const uint8_t *upper, const uint8_t *lower, int num_values, int16_t second, int16_t *blended,
                       int width, const int *columns, const int16_t *weights, uint8_t *out);

// The result, and memory that is used again.
typedef struct {
  int height, width;
  ResizeRow *resize_row;
  int16_t *blended;  // a row blended from two rows: one value more than 3 for each pixel of the source
  int *columns;      // 2 for each column of the result: offsets in `blended` of the left and of the right pixel
  int16_t *weights;  // of the right pixels: four equal values for each
} Bilinear;

ResizeRow *best_resize_row(void);
void resize_bilinear(const Bilinear *to, const uint8_t *pixels, size_t stride, int width, int height, int flip,
                     uint8_t *out);
