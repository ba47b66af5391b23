// Decodes whole JPEGs with libjpeg's accurate method, for single examples: a function of `imagebeam._native`.

#include "native_methods.h"

#include <setjmp.h>
#include <stdio.h>

#include <jpeglib.h>

enum { ROWS_AT_ONCE = 16 };

typedef struct {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  jmp_buf on_error;
} Whole;

static void on_error(j_common_ptr jpeg) { longjmp(((Whole *)jpeg->client_data)->on_error, 1); }

// Another decoder words what is wrong: a warning, whose level is negative, ends this one like an error.
static void on_message(j_common_ptr jpeg, int level) {
  if (level < 0) on_error(jpeg);
}

// A JPEG that is decoded as it is: only one whose pixels do not depend on how colors are converted.
static int begin_whole(Whole *whole, const Py_buffer *data) {
  struct jpeg_decompress_struct *jpeg = &whole->jpeg;
  if (setjmp(whole->on_error)) return 0;
  jpeg_create_decompress(jpeg);
  jpeg_mem_src(jpeg, data->buf, data->len);
  jpeg_read_header(jpeg, TRUE);
  int is_color = jpeg->num_components == 3 &&
                 (jpeg->jpeg_color_space == JCS_YCbCr || jpeg->jpeg_color_space == JCS_RGB);
  int is_gray = jpeg->num_components == 1 && jpeg->jpeg_color_space == JCS_GRAYSCALE;
  return jpeg->data_precision == 8 && (is_color || is_gray);
}

static int read_whole(Whole *whole, uint8_t *out) {
  struct jpeg_decompress_struct *jpeg = &whole->jpeg;
  if (setjmp(whole->on_error)) return 0;
  jpeg->out_color_space = JCS_RGB;
  jpeg->dct_method = JDCT_ISLOW;
  jpeg_start_decompress(jpeg);
  while (jpeg->output_scanline < jpeg->output_height) {
    JSAMPROW rows[ROWS_AT_ONCE];
    for (int i = 0; i < ROWS_AT_ONCE; i++) {
      size_t y = jpeg->output_scanline + i < jpeg->output_height ? jpeg->output_scanline + i : jpeg->output_scanline;
      rows[i] = out + y * jpeg->output_width * 3;
    }
    JDIMENSION left = jpeg->output_height - jpeg->output_scanline;
    jpeg_read_scanlines(jpeg, rows, left < ROWS_AT_ONCE ? left : ROWS_AT_ONCE);
  }
  jpeg_finish_decompress(jpeg);
  return 1;
}

// decode_whole(image, max_pixels, height=0, width=0) -> tuple[bytearray, int, int] | None
//
// Decodes a whole JPEG with libjpeg's accurate method; other Python threads go on meanwhile.
//
// Args:
//     image: bytes or a memoryview.
//     max_pixels: of an image that is decoded.
//     height, width: that it must have; 0 allows any.
//
// Returns:
//     uint8 [height * width * 3], RGB; height; width. None for all but JPEGs of 8 bits in gray, YCbCr
//     or RGB of the expected size of which libjpeg warns nothing.
static PyObject *decode_whole(PyObject *module, PyObject *arguments) {
  Py_buffer data;
  long long max_pixels, wanted_height = 0, wanted_width = 0;
  if (!PyArg_ParseTuple(arguments, "y*L|LL:decode_whole", &data, &max_pixels, &wanted_height, &wanted_width)) return NULL;
  PyObject *pixels = NULL;
  Whole whole = {0};
  whole.jpeg.err = jpeg_std_error(&whole.errors);
  whole.jpeg.client_data = &whole;
  whole.errors.error_exit = on_error;
  whole.errors.emit_message = on_message;
  int is_done = begin_whole(&whole, &data);
  long long height = whole.jpeg.image_height, width = whole.jpeg.image_width;
  int is_expected = (!wanted_height && !wanted_width) || (height == wanted_height && width == wanted_width);
  is_done = is_done && is_expected && height * width <= max_pixels;
  if (is_done) pixels = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(height * width * 3));
  if (pixels) {
    uint8_t *out = (uint8_t *)PyByteArray_AS_STRING(pixels);
    Py_BEGIN_ALLOW_THREADS;
    is_done = read_whole(&whole, out);
    Py_END_ALLOW_THREADS;
  }
  jpeg_destroy_decompress(&whole.jpeg);
  PyBuffer_Release(&data);
  if (is_done) return pixels ? Py_BuildValue("(NLL)", pixels, height, width) : NULL;
  Py_XDECREF(pixels);
  Py_RETURN_NONE;
}

PyMethodDef whole_methods[] = {
    {"decode_whole", decode_whole, METH_VARARGS, "Decodes a whole JPEG with libjpeg's accurate method."},
    {NULL, NULL, 0, NULL},
};
