// Resizes JPEGs, and pictures that Pillow has decoded, without Python's lock.
//
// resize_jpeg decodes a JPEG, scales it and encodes the result. A JPEG holds brightness (Y) and two planes of color (Cb, Cr), the latter mostly at half the size. Each plane is scaled
// from its size in the source to its size in the result. Nothing is converted to RGB and back, and no plane of color is
// enlarged only to be reduced again. Scaling is a weighted sum, so its result in RGB is the same but for rounding.
//
// resize_pixels makes the same pixels as Pillow's resize, to the last bit, with vector instructions.
//
// All arithmetic on pixels is in integers: the result does not depend on the processor.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "filter_weights.h"
#include "pillow_pixels.h"
#include "planes.h"

#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "libjpeg-turbo is needed: other libjpegs write other bytes"
#endif

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define ALGORITHM "resizer 1"  // count up whenever the same JPEG gives other bytes

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

#if JPEG_LIB_VERSION >= 70  // as on Ubuntu; Debian has 62
#define SCALED_BLOCK(component) ((component)->DCT_h_scaled_size)
#define LEAST_SCALED_BLOCK(jpeg) ((jpeg)->min_DCT_h_scaled_size)
#else
#define SCALED_BLOCK(component) ((component)->DCT_scaled_size)
#define LEAST_SCALED_BLOCK(jpeg) ((jpeg)->min_DCT_scaled_size)
#endif

enum {
  MAX_PLANES = 3,
  MAX_SAMPLING = 4,  // T.81, B.2.2
  HEADER_BYTES = 1 << 12,
};

// What one call does. Nothing outlives the call.
typedef struct {
  const uint8_t *data;
  size_t size;
  int full_width, full_height;  // of the whole scaled image, in pixels
  int left, upper, width, height;  // the part of it that is stored
  int reduction;  // 1, 2, 4 or 8: libjpeg decodes at this part of the size
  int filter;
  int quality, sampling_h, sampling_v, is_progressive, is_gray;  // of the result; sampling 0: as in the source
  struct jpeg_decompress_struct source;
  struct jpeg_compress_struct result;
  struct jpeg_error_mgr errors;
  jmp_buf on_error;
  int is_other_kind, is_damaged;
  uint8_t *first_out, *out;  // libjpeg replaces the buffer if it is too small
  unsigned long out_size;
} Resize;

static void on_libjpeg_error(j_common_ptr jpeg) {
  Resize *resize = jpeg->client_data;
  longjmp(resize->on_error, 1);
}

static void on_libjpeg_message(j_common_ptr jpeg, int level) {
  if (level < 0) ((Resize *)jpeg->client_data)->is_damaged = 1;
}

// Memory of libjpeg, so that it is freed however the call ends.
static void *allocate(Resize *resize, size_t size) {
  j_common_ptr jpeg = (j_common_ptr)&resize->source;
  return jpeg->mem->alloc_large(jpeg, JPOOL_PERMANENT, size);
}

static Plane make_plane(Resize *resize, int width, int height, size_t columns, size_t rows) {
  Plane plane = {.stride = round_up(columns, COLUMNS_AT_ONCE), .width = width, .height = height};
  plane.pixels = allocate(resize, plane.stride * round_up(rows, COLUMNS_AT_ONCE));
  return plane;
}

// --- scaling --------------------------------------------------------------------------------------------------------

static Taps *allocate_taps(Resize *resize, const Side *side) {
  size_t room = room_for_weights(side);
  Taps *taps = allocate(resize, side->result_size * sizeof *taps);
  int16_t *weights = allocate(resize, side->result_size * room * sizeof *weights);
  make_taps(side, taps, weights, allocate(resize, room * sizeof(double)));
  return taps;
}

// Writes one row: the weighted sum of rows of `from`, COLUMNS_AT_ONCE by COLUMNS_AT_ONCE.
static void sum_rows(const Plane *from, const Taps *taps, uint8_t *to) {
  const uint8_t *start = from->pixels + taps->first * from->stride;
  for (size_t x = 0; x < from->stride; x += COLUMNS_AT_ONCE) {
    const uint8_t *row = start + x;
#if defined(__SSE2__)
    const __m128i zero = _mm_setzero_si128(), half = _mm_set1_epi32(1 << (WEIGHT_BITS - 1));
    __m128i sums[4] = {half, half, half, half};
    for (int k = 0; k < taps->count; k += 2, row += 2 * from->stride) {
      int32_t pair = (int32_t)((uint32_t)(uint16_t)taps->weights[k + 1] << 16 | (uint16_t)taps->weights[k]);
      __m128i weights = _mm_set1_epi32(pair);
      __m128i one = _mm_loadu_si128((const __m128i *)row);
      __m128i two = k + 1 < taps->count ? _mm_loadu_si128((const __m128i *)(row + from->stride)) : zero;
      __m128i low = _mm_unpacklo_epi8(one, two), high = _mm_unpackhi_epi8(one, two);
      sums[0] = _mm_add_epi32(sums[0], _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), weights));
      sums[1] = _mm_add_epi32(sums[1], _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), weights));
      sums[2] = _mm_add_epi32(sums[2], _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), weights));
      sums[3] = _mm_add_epi32(sums[3], _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), weights));
    }
    for (int i = 0; i < 4; i++) sums[i] = _mm_srai_epi32(sums[i], WEIGHT_BITS);
    __m128i low = _mm_packs_epi32(sums[0], sums[1]), high = _mm_packs_epi32(sums[2], sums[3]);
    _mm_storeu_si128((__m128i *)(to + x), _mm_packus_epi16(low, high));
#else
    int32_t sums[COLUMNS_AT_ONCE];
    for (int i = 0; i < COLUMNS_AT_ONCE; i++) sums[i] = 1 << (WEIGHT_BITS - 1);
    for (int k = 0; k < taps->count; k++, row += from->stride)
      for (int i = 0; i < COLUMNS_AT_ONCE; i++) sums[i] += taps->weights[k] * row[i];
    for (int i = 0; i < COLUMNS_AT_ONCE; i++) {
      int32_t value = sums[i] >> WEIGHT_BITS;
      to[x + i] = value < 0 ? 0 : value > 255 ? 255 : value;
    }
#endif
  }
}

static Plane transpose(Resize *resize, const Plane *from) {
  Plane to = make_plane(resize, from->height, from->width, from->height, from->width);
  transpose_plane(from, &to);
  return to;
}

static Plane scale_rows(Resize *resize, const Plane *from, int height, double start, double step) {
  Plane to = make_plane(resize, from->width, height, from->stride, height);
  const Taps *taps = allocate_taps(resize, &(Side){from->height, height, start, step, resize->filter});
  for (int y = 0; y < height; y++) sum_rows(from, &taps[y], to.pixels + y * to.stride);
  return to;
}

// --- images ---------------------------------------------------------------------------------------------------------

static int has_sampling(const struct jpeg_decompress_struct *jpeg, int h, int v) {
  const jpeg_component_info *component = jpeg->comp_info;
  return component[0].h_samp_factor == h && component[0].v_samp_factor == v && component[1].h_samp_factor == 1 &&
         component[1].v_samp_factor == 1 && component[2].h_samp_factor == 1 && component[2].v_samp_factor == 1;
}

// Decodes the planes as they are stored: `planes` of the first components.
static void read_planes(Resize *resize, Plane *planes) {
  struct jpeg_decompress_struct *source = &resize->source;
  JSAMPROW rows[MAX_PLANES][MAX_SAMPLING * DCTSIZE];
  JSAMPARRAY arrays[MAX_PLANES] = {rows[0], rows[1], rows[2]};
  source->raw_data_out = TRUE;
  source->out_color_space = source->jpeg_color_space;
  source->scale_num = 1;
  source->scale_denom = resize->reduction;
  jpeg_start_decompress(source);
  int rows_at_once = source->max_v_samp_factor * LEAST_SCALED_BLOCK(source);
  size_t times = (source->output_height + rows_at_once - 1) / rows_at_once;
  for (int c = 0; c < source->num_components; c++) {
    const jpeg_component_info *component = &source->comp_info[c];
    size_t block = SCALED_BLOCK(component);
    size_t columns = round_up(component->width_in_blocks, component->h_samp_factor) * block;
    planes[c] = make_plane(resize, component->downsampled_width, component->downsampled_height, columns,
                           times * component->v_samp_factor * block);
  }
  for (size_t time = 0; source->output_scanline < source->output_height; time++) {
    for (int c = 0; c < source->num_components; c++) {
      const jpeg_component_info *component = &source->comp_info[c];
      int count = component->v_samp_factor * SCALED_BLOCK(component);
      for (int i = 0; i < count; i++) rows[c][i] = planes[c].pixels + (time * count + i) * planes[c].stride;
    }
    jpeg_read_raw_data(source, arrays, rows_at_once);
  }
}

static Plane scale_plane(Resize *resize, const Plane *from, int c) {
  const struct jpeg_decompress_struct *source = &resize->source;
  const jpeg_component_info *component = &source->comp_info[c], *target = &resize->result.comp_info[c];
  const jpeg_component_info *finest = &resize->result.comp_info[0];
  double across = (double)finest->h_samp_factor / target->h_samp_factor;
  double down = (double)finest->v_samp_factor / target->v_samp_factor;
  int width = (int)ceil(resize->width / across), height = (int)ceil(resize->height / down);
  // Decoded pixels of the component for each pixel of the image, then for each pixel of the scaled image.
  double part = (double)SCALED_BLOCK(component) / DCTSIZE;
  double step_x = part * component->h_samp_factor / source->max_h_samp_factor * source->image_width / resize->full_width;
  double step_y = part * component->v_samp_factor / source->max_v_samp_factor * source->image_height / resize->full_height;
  Plane rows = scale_rows(resize, from, height, resize->upper * step_y, step_y * down);
  Plane turned = transpose(resize, &rows);
  Plane columns = scale_rows(resize, &turned, width, resize->left * step_x, step_x * across);
  return transpose(resize, &columns);
}

static void set_up_result(Resize *resize) {
  struct jpeg_compress_struct *result = &resize->result;
  int is_gray = resize->is_gray || resize->source.num_components == 1;
  result->image_width = resize->width;
  result->image_height = resize->height;
  result->input_components = is_gray ? 1 : 3;
  result->in_color_space = is_gray ? JCS_GRAYSCALE : JCS_YCbCr;
  jpeg_set_defaults(result);
  jpeg_set_colorspace(result, result->in_color_space);
  jpeg_set_quality(result, resize->quality, TRUE);
  if (resize->is_progressive) jpeg_simple_progression(result);
  result->raw_data_in = TRUE;
  int h = resize->sampling_h, v = resize->sampling_v;
  if (!h) {
    h = is_gray || has_sampling(&resize->source, 1, 1) ? 1 : 2;
    v = h == 1 || has_sampling(&resize->source, 2, 1) ? 1 : 2;
  }
  result->comp_info[0].h_samp_factor = is_gray ? 1 : h;
  result->comp_info[0].v_samp_factor = is_gray ? 1 : v;
}

// The last blocks reach beyond the image: they repeat its last pixels, as libjpeg does with pixels in RGB.
static void repeat_last_columns(const Plane *plane) {
  for (int y = 0; y < plane->height; y++) {
    uint8_t *row = plane->pixels + y * plane->stride;
    memset(row + plane->width, row[plane->width - 1], plane->stride - plane->width);
  }
}

static void write_planes(Resize *resize, const Plane *planes) {
  struct jpeg_compress_struct *result = &resize->result;
  JSAMPROW rows[MAX_PLANES][MAX_SAMPLING * DCTSIZE];
  JSAMPARRAY arrays[MAX_PLANES] = {rows[0], rows[1], rows[2]};
  for (int c = 0; c < result->num_components; c++) repeat_last_columns(&planes[c]);
  jpeg_start_compress(result, TRUE);
  int rows_at_once = result->max_v_samp_factor * DCTSIZE;
  for (int time = 0; result->next_scanline < result->image_height; time++) {
    for (int c = 0; c < result->num_components; c++) {
      int count = result->comp_info[c].v_samp_factor * DCTSIZE;
      for (int i = 0; i < count; i++) {
        int y = time * count + i, last = planes[c].height - 1;
        rows[c][i] = planes[c].pixels + (y < last ? y : last) * planes[c].stride;
      }
    }
    jpeg_write_raw_data(result, arrays, rows_at_once);
  }
  jpeg_finish_compress(result);
}

static void read_and_write(Resize *resize) {
  struct jpeg_decompress_struct *source = &resize->source;
  Plane planes[MAX_PLANES];
  jpeg_mem_src(source, resize->data, resize->size);
  jpeg_read_header(source, TRUE);
  int is_color = source->jpeg_color_space == JCS_YCbCr && source->num_components == 3;
  int is_gray = source->jpeg_color_space == JCS_GRAYSCALE && source->num_components == 1;
  resize->is_other_kind = source->data_precision != 8 || !(is_color || is_gray);
  if (resize->is_other_kind) return;
  read_planes(resize, planes);
  set_up_result(resize);
  resize->out_size = HEADER_BYTES + (unsigned long)3 * resize->width * resize->height;
  resize->first_out = resize->out = allocate(resize, resize->out_size);
  jpeg_mem_dest(&resize->result, &resize->out, &resize->out_size);
  for (int c = 0; c < resize->result.num_components; c++) planes[c] = scale_plane(resize, &planes[c], c);
  jpeg_finish_decompress(source);  // only now: it frees the descriptions of the components
  if (!resize->is_damaged) write_planes(resize, planes);
}

// Returns whether there was no error. The memory stays until `end_resizing`.
static int resize_image(Resize *resize) {
  resize->source.err = resize->result.err = jpeg_std_error(&resize->errors);
  resize->errors.error_exit = on_libjpeg_error;
  resize->errors.emit_message = on_libjpeg_message;
  resize->source.client_data = resize->result.client_data = resize;
  if (setjmp(resize->on_error)) return 0;
  jpeg_create_decompress(&resize->source);
  jpeg_create_compress(&resize->result);
  read_and_write(resize);
  return 1;
}

static void end_resizing(Resize *resize) {
  if (resize->out != resize->first_out) free(resize->out);
  jpeg_destroy_compress(&resize->result);
  jpeg_destroy_decompress(&resize->source);
}

PyDoc_STRVAR(resize_jpeg_doc,
             "resize_jpeg(data, full_size, part, reduction, filter, quality, sampling, is_progressive, is_gray)\n"
             "    -> bytes | None\n\n"
             "Returns a JPEG scaled and encoded as JPEG; other Python threads go on meanwhile.\n\n"
             "Args:\n    data: bytes of a JPEG.\n"
             "    full_size: width and height in pixels to which the whole image is scaled.\n"
             "    part: left, upper, width, height of what is stored of it, in pixels.\n"
             "    reduction: 1, 2, 4 or 8: libjpeg decodes at this part of the size, which is fast.\n"
             "    filter: 0 box, 1 bilinear, 2 bicubic, 3 Lanczos; all antialiased.\n"
             "    quality: 1 to 100.\n"
             "    sampling: horizontal and vertical sampling factor of Y, (1, 1), (2, 1) or (2, 2); (0, 0): as in the\n"
             "        source, or (2, 2) if the source has another one.\n"
             "    is_progressive: of the result.\n"
             "    is_gray: whether Y alone is stored.\n\n"
             "Returns:\n    None if it is no JPEG of 8 bits in gray or YCbCr, or is damaged in any way that libjpeg notices.\n\n"
             "Raises:\n    ValueError: if an argument is out of range.");

static PyObject *resize_jpeg(PyObject *module, PyObject *arguments) {
  PyObject *data;
  Resize *resize = PyMem_Calloc(1, sizeof *resize);
  if (!resize) return PyErr_NoMemory();
  if (!PyArg_ParseTuple(arguments, "S(ii)(iiii)iii(ii)pp:resize_jpeg", &data, &resize->full_width, &resize->full_height,
                        &resize->left, &resize->upper, &resize->width, &resize->height, &resize->reduction,
                        &resize->filter, &resize->quality, &resize->sampling_h, &resize->sampling_v,
                        &resize->is_progressive, &resize->is_gray)) {
    PyMem_Free(resize);
    return NULL;
  }
  int h = resize->sampling_h, v = resize->sampling_v, reduction = resize->reduction;
  int is_inside = resize->left >= 0 && resize->upper >= 0 && resize->width >= 1 && resize->height >= 1 &&
                  resize->width <= resize->full_width - resize->left && resize->full_width <= JPEG_MAX_DIMENSION &&
                  resize->height <= resize->full_height - resize->upper && resize->full_height <= JPEG_MAX_DIMENSION;
  int is_known = resize->filter >= 0 && resize->filter < NUM_FILTERS && h >= v && h - v <= 1 && h <= 2 && v >= 0 &&
                 (v || !h) && (reduction == 1 || reduction == 2 || reduction == 4 || reduction == 8);
  if (!is_inside || !is_known) {
    PyMem_Free(resize);
    PyErr_SetString(PyExc_ValueError, "size, part, reduction, filter or sampling is out of range");
    return NULL;
  }
  resize->data = (const uint8_t *)PyBytes_AS_STRING(data);
  resize->size = PyBytes_GET_SIZE(data);
  int is_done;
  Py_BEGIN_ALLOW_THREADS;
  is_done = resize_image(resize);
  Py_END_ALLOW_THREADS;
  PyObject *result = NULL;
  if (!is_done || resize->is_other_kind || resize->is_damaged)
    result = Py_NewRef(Py_None);
  else
    result = PyBytes_FromStringAndSize((const char *)resize->out, resize->out_size);
  end_resizing(resize);
  PyMem_Free(resize);
  return result;
}

// --- pixels of Pillow -----------------------------------------------------------------------------------------------

#if defined(__x86_64__)
// https://arrow.apache.org/docs/format/CDataInterface.html
struct ArrowArray {
  int64_t length, null_count, offset, n_buffers, n_children;
  const void **buffers;
  struct ArrowArray **children;
  struct ArrowArray *dictionary;
  void (*release)(struct ArrowArray *);
  void *private_data;
};

// Returns the pixels of an exported picture in RGB: lists of four bytes, one for each pixel. NULL with an error set.
static const uint8_t *pixels_of(PyObject *capsule, int64_t num_pixels) {
  const struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
  if (!array) return NULL;
  const struct ArrowArray *values = array->n_children == 1 ? array->children[0] : NULL;
  if (!values || array->length != num_pixels || array->offset || values->offset || values->n_buffers != 2 ||
      values->length != num_pixels * PIXEL_BYTES || !values->buffers[1]) {
    PyErr_SetString(PyExc_ValueError, "the array has not four bytes for each of the pixels");
    return NULL;
  }
  return values->buffers[1];
}
#endif

PyDoc_STRVAR(resize_pixels_doc,
             "resize_pixels(array, size, target, filter) -> bytes | None\n\n"
             "Returns the pixels that Pillow makes, to the last bit, in a third of the time.\n\n"
             "Args:\n    array: capsule `arrow_array` of a picture of Pillow in RGB.\n"
             "    size: its width and height in pixels.\n    target: those of the result.\n"
             "    filter: 0 box, 1 bilinear, 2 bicubic, 3 Lanczos; all antialiased.\n\n"
             "Returns:\n    Four bytes for each pixel, the fourth without a meaning. None except on x86-64.\n\n"
             "Raises:\n    ValueError: if an argument is out of range.");

static PyObject *resize_pixels(PyObject *module, PyObject *arguments) {
  PyObject *array;
  int source_width, source_height, width, height, filter;
  if (!PyArg_ParseTuple(arguments, "O(ii)(ii)i:resize_pixels", &array, &source_width, &source_height, &width, &height,
                        &filter))
    return NULL;
  if (source_width < 1 || source_height < 1 || width < 1 || height < 1 || filter < 0 || filter >= NUM_FILTERS) {
    PyErr_SetString(PyExc_ValueError, "size, target or filter is out of range");
    return NULL;
  }
#if defined(__x86_64__)
  const uint8_t *from = pixels_of(array, (int64_t)source_width * source_height);
  if (!from) return NULL;
  PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)PIXEL_BYTES * width * height);
  if (!result) return NULL;
  Side across = {source_width, width, 0, (double)source_width / width, filter};
  Side down = {source_height, height, 0, (double)source_height / height, filter};
  uint8_t *to = (uint8_t *)PyBytes_AS_STRING(result);
  int is_done;
  Py_BEGIN_ALLOW_THREADS;
  is_done = scale_pixels(from, &across, &down, to);
  Py_END_ALLOW_THREADS;
  if (is_done) return result;
  Py_DECREF(result);
  return PyErr_NoMemory();
#else
  return Py_NewRef(Py_None);
#endif
}

PyDoc_STRVAR(resize_bytes_doc,
             "resize_bytes(data, channels, size, target, filter) -> bytes | None\n\n"
             "Returns bare pixels scaled to those that Pillow makes, to the last bit.\n\n"
             "Args:\n    data: rows of pixels of `channels` bytes.\n    channels: 1 or 3, without alpha.\n"
             "    size: width and height in pixels.\n    target: those of the result.\n"
             "    filter: 0 box, 1 bilinear, 2 bicubic, 3 Lanczos; all antialiased.\n\n"
             "Returns:\n    Bare pixels. None except on x86-64.\n\n"
             "Raises:\n    ValueError: if an argument is out of range, or does not fit the number of bytes.");

static PyObject *resize_bytes(PyObject *module, PyObject *arguments) {
  PyObject *data;
  int channels, source_width, source_height, width, height, filter;
  if (!PyArg_ParseTuple(arguments, "Si(ii)(ii)i:resize_bytes", &data, &channels, &source_width, &source_height, &width,
                        &height, &filter))
    return NULL;
  if ((channels != 1 && channels != 3) || source_width < 1 || source_height < 1 || width < 1 || height < 1 || filter < 0 ||
      filter >= NUM_FILTERS || PyBytes_GET_SIZE(data) != (Py_ssize_t)channels * source_width * source_height) {
    PyErr_SetString(PyExc_ValueError, "channels, size, target or filter is out of range, or the bytes are of another size");
    return NULL;
  }
#if defined(__x86_64__)
  PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)channels * width * height);
  if (!result) return NULL;
  Side across = {source_width, width, 0, (double)source_width / width, filter};
  Side down = {source_height, height, 0, (double)source_height / height, filter};
  const uint8_t *from = (const uint8_t *)PyBytes_AS_STRING(data);
  uint8_t *to = (uint8_t *)PyBytes_AS_STRING(result);
  int is_done;
  Py_BEGIN_ALLOW_THREADS;
  is_done = channels == 1 ? scale_gray(from, &across, &down, to) : scale_colors(from, &across, &down, to);
  Py_END_ALLOW_THREADS;
  if (is_done) return result;
  Py_DECREF(result);
  return PyErr_NoMemory();
#else
  return Py_NewRef(Py_None);
#endif
}

static PyMethodDef methods[] = {
    {"resize_bytes", resize_bytes, METH_VARARGS, resize_bytes_doc},
    {"resize_jpeg", resize_jpeg, METH_VARARGS, resize_jpeg_doc},
    {"resize_pixels", resize_pixels, METH_VARARGS, resize_pixels_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_resize", "Resizes JPEGs and pictures of Pillow, in C.", 0, methods,
};

PyMODINIT_FUNC PyInit__resize(void) {
  PyObject *module = PyModule_Create(&definition);
  const char *library = ALGORITHM ", libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION);
  if (module && PyModule_AddStringConstant(module, "LIBRARY", library)) Py_CLEAR(module);
  return module;
}
