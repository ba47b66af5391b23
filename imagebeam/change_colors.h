// Changes the colors of an image as torchvision's ColorJitter. See change_colors.c.

#include <stddef.h>
#include <stdint.h>

enum { COLOR_VALUES = 5, NUM_ORDERS = 24 };

void change_colors(uint8_t *levels, size_t num_pixels, const float *change, float *scratch);
