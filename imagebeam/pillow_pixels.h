// Scales pixels as Pillow does, to the last bit. See pillow_pixels.c. Include filter_weights.h first.

#include <stdint.h>

enum { PIXEL_BYTES = 4 };  // of RGB in Pillow's memory: the fourth byte has no meaning

#if defined(__x86_64__)  // elsewhere compilers may fuse operations on weights in Pillow, and other vectors are needed
// Pixels of PIXEL_BYTES, of three bytes, and of one byte. They return whether there was memory for it.
int scale_pixels(const uint8_t *from, const Side *across, const Side *down, uint8_t *to);
int scale_colors(const uint8_t *from, const Side *across, const Side *down, uint8_t *to);
int scale_gray(const uint8_t *from, const Side *across, const Side *down, uint8_t *to);
#endif
