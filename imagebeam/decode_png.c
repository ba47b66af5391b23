// Decodes PNGs with libpng, to the pixels of TensorFlow's decode_png with three channels.

#include "native_methods.h"

#ifdef HAVE_PNG
#include <png.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
  const uint8_t *data;
  size_t size;
  char *message;
} Input;

static void on_error(png_structp png, png_const_charp text) {
  Input *input = png_get_error_ptr(png);
  snprintf(input->message, MESSAGE_SIZE, "%s", text);
  longjmp(png_jmpbuf(png), 1);
}

static void on_warning(png_structp png, png_const_charp text) {}  // libpng would print it

static void read_bytes(png_structp png, png_bytep to, size_t count) {
  Input *input = png_get_io_ptr(png);
  if (count > input->size) png_error(png, "the file is cut short");
  memcpy(to, input->data, count);
  input->data += count;
  input->size -= count;
}

// As TensorFlow: gray becomes RGB, transparency is dropped, of 16 bits the upper 8 count.
// Source: https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/core/lib/png/png_io.cc, CommonInitDecode.
static void ask_for_rgb(png_structp png, png_infop header) {
  int kind = png_get_color_type(png, header), is_gray = !(kind & PNG_COLOR_MASK_COLOR);
  if (kind == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png);
  if (is_gray && png_get_bit_depth(png, header) < 8) png_set_expand_gray_1_2_4_to_8(png);
  if (is_gray) png_set_gray_to_rgb(png);
  if (png_get_bit_depth(png, header) == 16) png_set_strip_16(png);
  if ((kind & PNG_COLOR_MASK_ALPHA) || png_get_valid(png, header, PNG_INFO_tRNS)) png_set_strip_alpha(png);
}

static void read_image(png_structp png, png_infop header, PngImage *image) {
  png_read_info(png, header);
  ask_for_rgb(png, header);
  int num_passes = png_set_interlace_handling(png);
  png_read_update_info(png, header);
  image->width = png_get_image_width(png, header);
  image->height = png_get_image_height(png, header);
  size_t stride = png_get_rowbytes(png, header);
  if (stride != (size_t)image->width * 3) png_error(png, "the pixels are not of 3 bytes");
  size_t needed = stride * image->height + PIXELS_SLACK;  // libpng limits both sides to a million
  if (needed > image->capacity) {
    free(image->pixels);
    image->pixels = malloc(needed);
    image->capacity = image->pixels ? needed : 0;
    if (!image->pixels) png_error(png, "out of memory");
  }
  for (int pass = 0; pass < num_passes; pass++)
    for (uint32_t y = 0; y < image->height; y++) png_read_row(png, image->pixels + y * stride, NULL);
  png_read_end(png, header);  // damage after the last row is damage, too
}

int decode_png(const uint8_t *data, size_t size, PngImage *image, char *message) {
  Input input = {data, size, message};
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &input, on_error, on_warning);
  png_infop header = png ? png_create_info_struct(png) : NULL;
  volatile int is_done = 0;
  if (!header)
    snprintf(message, MESSAGE_SIZE, "out of memory");
  else if (!setjmp(png_jmpbuf(png))) {
    png_set_read_fn(png, &input, read_bytes);
    // Color profiles change no pixel here, and checking them takes longer than decoding a small image.
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, (png_const_bytep) "iCCP", 1);
    read_image(png, header, image);
    is_done = 1;
  }
  png_destroy_read_struct(&png, &header, NULL);
  return is_done;
}
#endif
