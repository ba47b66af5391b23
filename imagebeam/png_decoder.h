// Decodes PNGs: what `imagebeam._png`, which needs libpng, offers to `imagebeam._native`, which works without it.

#include <stddef.h>
#include <stdint.h>

#define PNG_DECODER "imagebeam._png._decoder"  // a capsule that holds a DecodePng

enum { PNG_MESSAGE_SIZE = 200, PNG_SLACK = 16 };  // PNG_SLACK: bytes after the last pixel

// Pixels in RGB, without gaps. Begin with zeros; free `pixels` in the end.
typedef struct {
  uint8_t *pixels;
  size_t capacity;
  uint32_t width, height;
} PngImage;

// Decodes a PNG, without Python's lock. Returns whether it could; else `message`, PNG_MESSAGE_SIZE bytes, says why not.
typedef int DecodePng(const uint8_t *data, size_t size, PngImage *image, char *message);
