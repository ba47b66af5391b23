// Resizes JPEGs and bare pixels without Python's lock: functions of `imagebeam._writer`.
//
// A JPEG holds brightness (Y) and two planes of color (Cb, Cr), the latter mostly at half the size. Each plane is scaled
// from its size in the source to its size in the result. Nothing is converted to RGB and back, and no plane of color is
// enlarged only to be reduced again. Scaling is a weighted sum, so its result in RGB is the same but for rounding.
//
// All arithmetic on pixels is in integers: the result does not depend on the processor.

#include "writer_methods.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "sum_rows.h"

#ifdef HAVE_JPEG
#include <stdio.h>

#include <jpeglib.h>
#endif

enum { MAX_SIDE_PX = 1 << 24 };

// One plane of pixels. Rows of planes that are made here have room for whole VALUES_AT_ONCE, and there are whole
// VALUES_AT_ONCE of them.
typedef struct {
  uint8_t *pixels;
  size_t stride;
  int width, height;
} Plane;

// Memory that is freed together, however the work ends.
typedef struct Block {
  struct Block *before;
  uint64_t unused;  // keeps what follows aligned
} Block;

typedef struct {
  Block *last;
  jmp_buf on_error;
} Memory;

static void *allocate(Memory *memory, size_t size) {
  Block *block = malloc(sizeof *block + size);
  if (!block) longjmp(memory->on_error, 1);
  block->before = memory->last;
  memory->last = block;
  return block + 1;
}

static void free_until(Memory *memory, const Block *kept) {
  while (memory->last != kept) {
    Block *before = memory->last->before;
    free(memory->last);
    memory->last = before;
  }
}

static Plane make_plane(Memory *memory, int width, int height, size_t columns, size_t rows) {
  Plane plane = {.stride = round_up(columns, VALUES_AT_ONCE), .width = width, .height = height};
  plane.pixels = allocate(memory, plane.stride * round_up(rows, VALUES_AT_ONCE));
  return plane;
}

// --- scaling --------------------------------------------------------------------------------------------------------

static void sum_pixels(const Plane *from, const Taps *taps, int x, uint8_t *to) {
  int16_t sums[VALUES_AT_ONCE];
  sum_rows(from->pixels + taps->first * from->stride + x, from->stride, from->height, taps, WEIGHT_BITS, sums);
#if defined(__SSE2__)
  const __m128i *halves = (const __m128i *)sums;
  _mm_storeu_si128((__m128i *)(to + x), _mm_packus_epi16(_mm_loadu_si128(halves), _mm_loadu_si128(halves + 1)));
#else
  for (int i = 0; i < VALUES_AT_ONCE; i++) to[x + i] = sums[i] < 0 ? 0 : sums[i] > 255 ? 255 : (uint8_t)sums[i];
#endif
}

// Scales the height. `from` has rows of at least VALUES_AT_ONCE bytes.
static Plane scale_rows(Memory *memory, const Plane *from, int height, double start, double step, int filter) {
  Plane to = make_plane(memory, from->width, height, from->width, height);
  Side side = {from->height, height, start, step, filter, 0};
  size_t room = room_for_weights(&side);
  Taps *taps = allocate(memory, height * sizeof *taps);
  int16_t *weights = allocate(memory, height * room * sizeof *weights);
  make_taps(&side, taps, weights, allocate(memory, room * sizeof(double)));
  int last = from->stride < to.stride ? from->width - VALUES_AT_ONCE : (int)to.stride - VALUES_AT_ONCE;
  for (int y = 0; y < height; y++) {
    uint8_t *row = to.pixels + y * to.stride;
    for (int x = 0; x <= last; x += VALUES_AT_ONCE) sum_pixels(from, &taps[y], x, row);
    if (last % VALUES_AT_ONCE) sum_pixels(from, &taps[y], last, row);
  }
  return to;
}

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

static Plane transpose(Memory *memory, const Plane *from) {
  Plane to = make_plane(memory, from->height, from->width, from->height, from->width);
  for (int y = 0; y < from->height; y += 8)
    for (int x = 0; x < from->width; x += 8)
      transpose_block(from->pixels + y * from->stride + x, from->stride, to.pixels + x * to.stride + y, to.stride);
  return to;
}

// Scales the width.
static Plane scale_columns(Memory *memory, const Plane *from, int width, double start, double step, int filter) {
  Plane turned = transpose(memory, from);
  Plane columns = scale_rows(memory, &turned, width, start, step, filter);
  return transpose(memory, &columns);
}

// --- bare pixels ----------------------------------------------------------------------------------------------------

typedef struct {
  const uint8_t *data;
  uint8_t *out;
  int channels, source_width, source_height, width, height, filter;
  Memory memory;
} Pixels;

// The height is scaled first, with all channels as one plane: what is left has less to be copied.
static int scale_pixels(Pixels *task) {
  Memory *memory = &task->memory;
  if (setjmp(memory->on_error)) return 0;
  int row_bytes = task->channels * task->source_width;
  Plane all = {(uint8_t *)task->data, row_bytes, row_bytes, task->source_height};
  if (row_bytes < VALUES_AT_ONCE) {  // rows are read in wholes
    all = make_plane(memory, row_bytes, task->source_height, row_bytes, task->source_height);
    for (int y = 0; y < all.height; y++) memcpy(all.pixels + y * all.stride, task->data + (size_t)y * row_bytes, row_bytes);
  }
  if (task->height != task->source_height)
    all = scale_rows(memory, &all, task->height, 0, (double)task->source_height / task->height, task->filter);
  Block *kept = memory->last;
  for (int c = 0; c < task->channels; c++) {
    Plane plane = make_plane(memory, task->source_width, task->height, task->source_width, task->height);
    for (int y = 0; y < task->height; y++)
      for (int x = 0; x < task->source_width; x++)
        plane.pixels[y * plane.stride + x] = all.pixels[y * all.stride + (size_t)task->channels * x + c];
    if (task->width != task->source_width)
      plane = scale_columns(memory, &plane, task->width, 0, (double)task->source_width / task->width, task->filter);
    for (int y = 0; y < task->height; y++)
      for (int x = 0; x < task->width; x++)
        task->out[((size_t)y * task->width + x) * task->channels + c] = plane.pixels[y * plane.stride + x];
    free_until(memory, kept);
  }
  return 1;
}

// resize_pixels(data, channels, size, target, filter) -> bytes
//
// Returns bare pixels scaled; other Python threads go on meanwhile.
//
// Args:
//     data: rows of pixels of `channels` bytes.
//     channels: 1 to 4.
//     size: width and height in pixels.
//     target: those of the result.
//     filter: 0 box, 1 bilinear, 2 bicubic, 3 Lanczos; all antialiased.
//
// Raises:
//     ValueError: if an argument is out of range, or does not fit the number of bytes.
PyObject *resize_pixels(PyObject *module, PyObject *arguments) {
  PyObject *data;
  Pixels task = {0};
  if (!PyArg_ParseTuple(arguments, "Si(ii)(ii)i:resize_pixels", &data, &task.channels, &task.source_width,
                        &task.source_height, &task.width, &task.height, &task.filter))
    return NULL;
  int is_done, is_known = task.channels >= 1 && task.channels <= 4 && task.filter >= 0 && task.filter < NUM_FILTERS;
  if (!is_known || task.source_width < 1 || task.source_height < 1 || task.width < 1 || task.height < 1 ||
      task.source_width > MAX_SIDE_PX || task.source_height > MAX_SIDE_PX || task.width > MAX_SIDE_PX || task.height > MAX_SIDE_PX ||
      PyBytes_GET_SIZE(data) != (Py_ssize_t)task.channels * task.source_width * task.source_height)
    return PyErr_Format(PyExc_ValueError, "channels, size, target or filter is out of range, or the bytes are of another size");
  PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)task.channels * task.width * task.height);
  if (!result) return NULL;
  task.data = (const uint8_t *)PyBytes_AS_STRING(data);
  task.out = (uint8_t *)PyBytes_AS_STRING(result);
  Py_BEGIN_ALLOW_THREADS;
  is_done = scale_pixels(&task);
  free_until(&task.memory, NULL);
  Py_END_ALLOW_THREADS;
  if (is_done) return result;
  Py_DECREF(result);
  return PyErr_NoMemory();
}

#ifdef HAVE_JPEG
// --- JPEGs ----------------------------------------------------------------------------------------------------------

#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "libjpeg-turbo is needed: other libjpegs write other bytes"
#endif

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
  FIRST_OUT_BYTES = 1 << 16,
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
  struct jpeg_destination_mgr destination;
  Memory memory;
  int is_other_kind, is_damaged;
  uint8_t *out;
  size_t out_size, out_capacity;
} Resize;

static void on_libjpeg_error(j_common_ptr jpeg) { longjmp(((Resize *)jpeg->client_data)->memory.on_error, 1); }

static void on_libjpeg_message(j_common_ptr jpeg, int level) {
  if (level < 0) ((Resize *)jpeg->client_data)->is_damaged = 1;
}

// libjpeg's own output would be lost with an error while it grows.
static void start_output(j_compress_ptr jpeg) {
  Resize *resize = jpeg->client_data;
  resize->destination.next_output_byte = resize->out;
  resize->destination.free_in_buffer = resize->out_capacity;
}

static boolean grow_output(j_compress_ptr jpeg) {
  Resize *resize = jpeg->client_data;
  size_t used = resize->out_capacity;  // libjpeg.txt, "Compressed data handling": the counters are to be ignored here
  uint8_t *grown = realloc(resize->out, 2 * used);
  if (!grown) on_libjpeg_error((j_common_ptr)jpeg);
  resize->out = grown;
  resize->out_capacity = 2 * used;
  resize->destination.next_output_byte = grown + used;
  resize->destination.free_in_buffer = used;
  return TRUE;
}

static void end_output(j_compress_ptr jpeg) {
  Resize *resize = jpeg->client_data;
  resize->out_size = resize->out_capacity - resize->destination.free_in_buffer;
}

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
    planes[c] = make_plane(&resize->memory, component->downsampled_width, component->downsampled_height, columns,
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
  Memory *memory = &resize->memory;
  Plane rows = scale_rows(memory, from, height, resize->upper * step_y, step_y * down, resize->filter);
  return scale_columns(memory, &rows, width, resize->left * step_x, step_x * across, resize->filter);
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
  for (int c = 0; c < resize->result.num_components; c++) planes[c] = scale_plane(resize, &planes[c], c);
  jpeg_finish_decompress(source);  // only now: it frees the descriptions of the components
  if (!resize->is_damaged) write_planes(resize, planes);
}

// Returns whether there was no error. The result stays until `end_resizing`.
static int resize_image(Resize *resize) {
  resize->source.err = resize->result.err = jpeg_std_error(&resize->errors);
  resize->errors.error_exit = on_libjpeg_error;
  resize->errors.emit_message = on_libjpeg_message;
  resize->source.client_data = resize->result.client_data = resize;
  resize->destination.init_destination = start_output;
  resize->destination.empty_output_buffer = grow_output;
  resize->destination.term_destination = end_output;
  if (setjmp(resize->memory.on_error)) return 0;
  jpeg_create_decompress(&resize->source);
  jpeg_create_compress(&resize->result);
  resize->result.dest = &resize->destination;
  resize->out_capacity = FIRST_OUT_BYTES;
  resize->out = malloc(resize->out_capacity);
  if (!resize->out) return 0;
  read_and_write(resize);
  return 1;
}

static void end_resizing(Resize *resize) {
  free(resize->out);
  jpeg_destroy_compress(&resize->result);
  jpeg_destroy_decompress(&resize->source);
  free_until(&resize->memory, NULL);
}

// resize_jpeg(data, full_size, part, reduction, filter, quality, sampling, is_progressive, is_gray) -> bytes | None
//
// Returns a JPEG scaled and encoded as JPEG; other Python threads go on meanwhile.
//
// Args:
//     data: bytes of a JPEG.
//     full_size: width and height in pixels to which the whole image is scaled.
//     part: left, upper, width, height of what is stored of it, in pixels.
//     reduction: 1, 2, 4 or 8: libjpeg decodes at this part of the size, which is fast.
//     filter: 0 box, 1 bilinear, 2 bicubic, 3 Lanczos; all antialiased.
//     quality: 1 to 100.
//     sampling: horizontal and vertical sampling factor of Y, (1, 1), (2, 1) or (2, 2); (0, 0): as in the
//         source, or (2, 2) if the source has another one.
//     is_progressive: of the result.
//     is_gray: whether Y alone is stored.
//
// Returns:
//     None if it is no JPEG of 8 bits in gray or YCbCr, or is damaged in any way that libjpeg notices.
//
// Raises:
//     ValueError: if an argument is out of range.
PyObject *resize_jpeg(PyObject *module, PyObject *arguments) {
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
  int h = resize->sampling_h, v = resize->sampling_v, reduction = resize->reduction, is_done;
  int is_part = resize->left >= 0 && resize->upper >= 0 && resize->width >= 1 && resize->height >= 1 &&
                (int64_t)resize->left + resize->width <= resize->full_width &&
                (int64_t)resize->upper + resize->height <= resize->full_height &&
                resize->full_width <= JPEG_MAX_DIMENSION && resize->full_height <= JPEG_MAX_DIMENSION;
  int is_known = resize->filter >= 0 && resize->filter < NUM_FILTERS && v >= 0 && h >= v && h <= 2 && (v || !h) &&
                 (reduction == 1 || reduction == 2 || reduction == 4 || reduction == 8);
  if (!is_part || !is_known) {
    PyMem_Free(resize);
    return PyErr_Format(PyExc_ValueError, "size, part, reduction, filter or sampling is out of range");
  }
  resize->data = (const uint8_t *)PyBytes_AS_STRING(data);
  resize->size = PyBytes_GET_SIZE(data);
  Py_BEGIN_ALLOW_THREADS;
  is_done = resize_image(resize);
  Py_END_ALLOW_THREADS;
  is_done = is_done && !resize->is_other_kind && !resize->is_damaged;
  const char *out = (const char *)resize->out;
  PyObject *result = is_done ? PyBytes_FromStringAndSize(out, resize->out_size) : Py_NewRef(Py_None);
  end_resizing(resize);
  PyMem_Free(resize);
  return result;
}
#endif
