// Decodes a part of each image of a batch, without Python's lock: functions of `imagebeam._native`.
//
// Only the wanted part of a JPEG is decoded: the columns outside are not transformed, the rows above are only
// entropy-decoded, the rows below are not read, and libjpeg scales down if the part is at least twice the wanted size.
// With entry points (entry_points.c), columns and rows outside are not entropy-decoded either.
// The part is then resized (resample.c) and written, mirrored if asked for, to its place in the batch. Levels become
// other numbers, such as floats, while the image is in the processor's cache: a pass over the finished batch would read
// and write all of it again.

#include "native_methods.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "change_colors.h"
#include "entry_points.h"
#include "resample.h"

#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "libjpeg-turbo is needed: other libjpegs do not decode parts of an image"
#endif

// With a filter that averages, an image is decoded reduced only while it stays this much larger than wanted.
#define ANTIALIAS_GAP 2

enum { MAX_REDUCTION = 8, ROWS_AT_ONCE = 16, MAX_THREADS = 1024 };

// A PNG, and a JPEG of several scans, is in memory as a whole: one with more pixels is refused. The converter decodes no
// more either (limits.MAX_DECODED_PIXELS).
enum { MAX_WHOLE_PIXELS = 100000000 };

// Where the pixels of the resized image are in a part, in pixels of the image.
typedef struct {
  double top, row_step, left, column_step;
} Frame;

typedef struct {
  Py_ssize_t count;
  Py_buffer *images;
  Py_buffer *points;  // entry points of each image, empty if there are none
  const Part *parts;
  const int32_t *sizes;  // [count, 2]: height and width in each record; NULL if they are not known
  const int32_t *shapes;  // [count, 3] of bare pixels: height, width, channels; channels are 0 of an encoded image
  const Frame *frames;  // NULL: whole parts are resized from the four nearest pixels
  int filter, is_antialiased;  // of the filter
  J_DCT_METHOD dct_method;
  const uint8_t *flips;
  int height, width;  // of the images in the batch
  const Part *places;  // where in an image of the batch the part goes; NULL: it fills it
  const float *colors;  // [count, COLOR_VALUES], as of `change_colors`; NULL: colors stay as they are
  const Part *erased;  // part of each image of the batch that becomes `fill`, may be empty; NULL: none
  const uint8_t *fill;  // [3], outside of the place
  uint8_t *out;
  size_t value_bytes;  // of a value of a pixel in `out`
  const uint8_t *values;  // [3, 256], what each level of each channel becomes; NULL: levels stay as they are
  char (*failures)[JMSG_LENGTH_MAX];  // empty for an image that was decoded
  atomic_size_t next;
} Batch;

typedef struct {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  jmp_buf on_error;
  char *failure;
  int refuses_warnings;
  CutJpeg cut;
  uint8_t *pixels;  // the decoded part
  size_t num_pixel_bytes;
  uint8_t *resized;  // the image, if its levels become other values
  uint8_t *placed;  // what goes to its place in the image
  float *colors;  // the image, while its colors change
  Scratch scratch;
  PngImage png;
} Worker;

static void fail(Worker *worker, const char *text) {
  snprintf(worker->failure, JMSG_LENGTH_MAX, "%s", text);
  longjmp(worker->on_error, 1);
}

static void on_libjpeg_error(j_common_ptr jpeg) {
  Worker *worker = jpeg->client_data;
  jpeg->err->format_message(jpeg, worker->failure);
  longjmp(worker->on_error, 1);
}

static void on_libjpeg_message(j_common_ptr jpeg, int level) {
  Worker *worker = jpeg->client_data;
  int is_cut_short = jpeg->err->msg_code == JWRN_JPEG_EOF;
  if (level < 0 && (is_cut_short || worker->refuses_warnings)) on_libjpeg_error(jpeg);
}

static void *grow(Worker *worker, void *memory, size_t size) {
  void *grown = realloc(memory, size);
  if (!grown) fail(worker, "out of memory");
  return grown;
}

static void cmyk_to_rgb(uint8_t *pixels, int width, int is_inverted) {
  for (int x = 0; x < width; x++) {
    uint8_t *from = pixels + 4 * x, *to = pixels + 3 * x;
    int black = is_inverted ? from[3] : 255 - from[3];
    for (int c = 0; c < 3; c++) to[c] = (is_inverted ? from[c] : 255 - from[c]) * black / 255;
  }
}

static int smaller(int value, int reduction) { return value / reduction > 1 ? value / reduction : 1; }

static Part place_of(const Batch *batch, Py_ssize_t index) {
  return batch->places ? batch->places[index] : (Part){0, 0, batch->height, batch->width};
}

// Decides at which part of its size an image is decoded: 1, 1/2, 1/4 or 1/8, whose pixels are still as near as wanted.
static int choose_reduction(const Batch *batch, Part part, Part place, const Frame *frame) {
  double gap = batch->is_antialiased ? ANTIALIAS_GAP : 1;
  double across = frame ? frame->column_step / gap : (double)part.width / place.width;
  double down = frame ? frame->row_step / gap : (double)part.height / place.height;
  int reduction = 1;
  while (reduction < MAX_REDUCTION && across >= 2 * reduction && down >= 2 * reduction) reduction *= 2;
  return reduction;
}

// Pixels of the reduced image that hold the part: all that it touches if it is resized with a filter.
static Part reduce_part(Part part, int reduction, const Frame *frame) {
  int top = part.top / reduction, left = part.left / reduction;
  if (!frame) return (Part){top, left, smaller(part.height, reduction), smaller(part.width, reduction)};
  int bottom = (part.top + part.height + reduction - 1) / reduction;
  int right = (part.left + part.width + reduction - 1) / reduction;
  return (Part){top, left, bottom - top, right - left};
}

// A frame fits if its pixels are inside of the part.
static int is_fitting_side(double start, double step, int count, int side) {
  return start >= 0 && step > 0 && start + step * count <= side + 0.01;  // not if one is NaN
}

// Checks the header of an image, before anything is allocated for its pixels.
static void check_size(Worker *worker, const Batch *batch, Py_ssize_t index, uint32_t width, uint32_t height,
                       int is_whole) {
  const int32_t *size = batch->sizes ? batch->sizes + 2 * index : NULL;
  char text[JMSG_LENGTH_MAX];
  if (size && (size[0] < 0 || size[1] < 0 || (uint32_t)size[0] != height || (uint32_t)size[1] != width))
    snprintf(text, sizeof text, "the image has %u x %u pixels, its record says %d x %d", height, width, size[0], size[1]);
  else if (is_whole && (uint64_t)width * height > MAX_WHOLE_PIXELS)
    snprintf(text, sizeof text, "%u x %u pixels, which are decoded as a whole, are more than %d: convert with image.resize",
             height, width, MAX_WHOLE_PIXELS);
  else
    return;
  fail(worker, text);
}

// Checks that the part is inside of the image, and the frame inside of the part.
static void check_part(Worker *worker, Part place, Part part, const Frame *frame, unsigned width, unsigned height) {
  if (part.top < 0 || part.left < 0 || part.height < 1 || part.width < 1 ||
      (int64_t)part.top + part.height > height || (int64_t)part.left + part.width > width) {
    char text[JMSG_LENGTH_MAX];
    snprintf(text, sizeof text, "the picture has %u x %u pixels, not those that the record says", width, height);
    fail(worker, text);
  }
  if (frame && !(is_fitting_side(frame->top, frame->row_step, place.height, part.height) &&
                 is_fitting_side(frame->left, frame->column_step, place.width, part.width)))
    fail(worker, "the frame is not inside of the part");
}

static void resize_part(Worker *worker, const Batch *batch, Py_ssize_t index, const uint8_t *pixels, size_t stride,
                        Part part, Part reduced, int reduction, uint8_t *out) {
  int flip = batch->flips && batch->flips[index];
  Part place = place_of(batch, index);
  Side across = {reduced.width, place.width, 0, (double)reduced.width / place.width, FILTER_BILINEAR, 1};
  Side down = {reduced.height, place.height, 0, (double)reduced.height / place.height, FILTER_BILINEAR, 1};
  if (batch->frames) {
    const Frame *frame = &batch->frames[index];
    double left = (part.left + frame->left) / reduction - reduced.left;
    double top = (part.top + frame->top) / reduction - reduced.top;
    int is_aliased = !batch->is_antialiased;
    across = (Side){reduced.width, place.width, left, frame->column_step / reduction, batch->filter, is_aliased};
    down = (Side){reduced.height, place.height, top, frame->row_step / reduction, batch->filter, is_aliased};
  }
  if (!resample_rgb(pixels, stride, &across, &down, flip, out, &worker->scratch)) fail(worker, "out of memory");
}

// Makes room for the decoded part, and for the slack behind it.
static uint8_t *room_for_pixels(Worker *worker, size_t size) {
  if (size > worker->num_pixel_bytes) {
    worker->pixels = grow(worker, worker->pixels, size + PIXELS_SLACK);
    worker->num_pixel_bytes = size;
  }
  return worker->pixels;
}

// `type` has the size of a value.
#define WRITE_VALUES(type)                                          \
  do {                                                              \
    const type *red = (const type *)batch->values;                  \
    type *to = (type *)out;                                         \
    for (size_t i = 0; i < num_levels; i += 3) {                    \
      to[i] = red[levels[i]];                                       \
      to[i + 1] = red[256 + levels[i + 1]];                         \
      to[i + 2] = red[512 + levels[i + 2]];                         \
    }                                                               \
  } while (0)

static void fill_part(const Batch *batch, Part part, uint8_t *levels) {
  for (int y = part.top; y < part.top + part.height; y++)
    for (int x = part.left; x < part.left + part.width; x++)
      memcpy(levels + ((size_t)y * batch->width + x) * 3, batch->fill, 3);
}

// Resizes the decoded part into an image of the batch, with `fill` around its place.
static void place_part(Worker *worker, const Batch *batch, Py_ssize_t index, const uint8_t *pixels, size_t stride,
                       Part part, Part reduced, int reduction, uint8_t *levels) {
  Part place = place_of(batch, index);
  if (place.height == batch->height && place.width == batch->width) {
    resize_part(worker, batch, index, pixels, stride, part, reduced, reduction, levels);
    return;
  }
  if (!worker->placed) worker->placed = grow(worker, NULL, (size_t)batch->height * batch->width * 3);
  resize_part(worker, batch, index, pixels, stride, part, reduced, reduction, worker->placed);
  fill_part(batch, (Part){0, 0, batch->height, batch->width}, levels);
  size_t row_bytes = (size_t)place.width * 3;
  for (int y = 0; y < place.height; y++)
    memcpy(levels + ((size_t)(place.top + y) * batch->width + place.left) * 3, worker->placed + y * row_bytes, row_bytes);
}

// Resizes the decoded part, changes it and writes it to its place in the batch.
static void write_part(Worker *worker, const Batch *batch, Py_ssize_t index, const uint8_t *pixels, size_t stride,
                       Part part, Part reduced, int reduction) {
  size_t num_levels = (size_t)batch->height * batch->width * 3;
  uint8_t *out = batch->out + (size_t)index * num_levels * batch->value_bytes;
  if (batch->values && !worker->resized) worker->resized = grow(worker, NULL, num_levels);
  uint8_t *levels = batch->values ? worker->resized : out;
  place_part(worker, batch, index, pixels, stride, part, reduced, reduction, levels);
  if (batch->colors) {
    if (!worker->colors) worker->colors = grow(worker, NULL, num_levels * sizeof(float));
    change_colors(levels, num_levels / 3, batch->colors + index * COLOR_VALUES, worker->colors);
  }
  if (batch->erased) fill_part(batch, batch->erased[index], levels);
  if (!batch->values) return;
  if (batch->value_bytes == sizeof(uint32_t))
    WRITE_VALUES(uint32_t);
  else
    WRITE_VALUES(uint16_t);
}

// Each image gets a decompressor of its own, which takes 1 us to make: libjpeg keeps quantization and Huffman tables
// for abbreviated streams (libjpeg.txt, "Abbreviated datastreams and multiple images"), so a JPEG without tables, such
// as a frame of Motion JPEG, would be decoded with the tables of the image before it.
static void decode_part(Worker *worker, const Batch *batch, Py_ssize_t index, const uint8_t *data, size_t size,
                        Part part, int is_cut) {
  struct jpeg_decompress_struct *jpeg = &worker->jpeg;
  jpeg_create_decompress(jpeg);
  jpeg_mem_src(jpeg, data, size);
  jpeg_read_header(jpeg, TRUE);
  const Frame *frame = batch->frames ? &batch->frames[index] : NULL;
  if (!is_cut) check_size(worker, batch, index, jpeg->image_width, jpeg->image_height, jpeg_has_multiple_scans(jpeg));
  check_part(worker, place_of(batch, index), part, frame, jpeg->image_width, jpeg->image_height);
  int reduction = choose_reduction(batch, part, place_of(batch, index), frame);
  int is_cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
  jpeg->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  jpeg->scale_num = 1;
  jpeg->scale_denom = reduction;
  jpeg->dct_method = batch->dct_method;
  jpeg_start_decompress(jpeg);

  Part reduced = reduce_part(part, reduction, frame);
  int left = reduced.left, top = reduced.top, width = reduced.width, height = reduced.height;
  JDIMENSION first_column = left, num_columns = width;
  if (num_columns < jpeg->output_width) jpeg_crop_scanline(jpeg, &first_column, &num_columns);  // to whole blocks
  size_t stride = (size_t)num_columns * (is_cmyk ? 4 : 3);
  room_for_pixels(worker, stride * height);
  if (top > 0) jpeg_skip_scanlines(jpeg, top);
  for (int y = 0; y < height;) {
    JSAMPROW rows[ROWS_AT_ONCE];
    int num_rows = height - y < ROWS_AT_ONCE ? height - y : ROWS_AT_ONCE;
    for (int i = 0; i < num_rows; i++) rows[i] = worker->pixels + (size_t)(y + i) * stride;
    y += jpeg_read_scanlines(jpeg, rows, num_rows);
  }
  // A part that reaches the last row is read to the end of the file: damage there is refused, as TensorFlow does. After
  // a part that ends above it, nothing more is read.
  if (jpeg->output_scanline == jpeg->output_height) jpeg_finish_decompress(jpeg);
  int is_inverted = jpeg->saw_Adobe_marker;
  if (is_cmyk)
    for (int y = 0; y < height; y++) cmyk_to_rgb(worker->pixels + y * stride, num_columns, is_inverted);
  const uint8_t *pixels = worker->pixels + 3 * (left - (int)first_column);
  write_part(worker, batch, index, pixels, stride, part, reduced, reduction);
}

#ifdef HAVE_PNG
static int is_png(const Py_buffer *image) { return image->len >= 8 && !memcmp(image->buf, "\x89PNG\r\n\x1a\n", 8); }

static uint32_t four_bytes(const uint8_t *at) {
  return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

// A PNG can only be decoded whole. Its header is always the first chunk.
static void decode_png_part(Worker *worker, const Batch *batch, Py_ssize_t index) {
  const Py_buffer *image = &batch->images[index];
  char message[MESSAGE_SIZE];
  Part part = batch->parts[index];
  const Frame *frame = batch->frames ? &batch->frames[index] : NULL;
  const uint8_t *data = image->buf;
  PngImage *png = &worker->png;
  if (image->len >= 24 && !memcmp(data + 12, "IHDR", 4)) {
    check_size(worker, batch, index, four_bytes(data + 16), four_bytes(data + 20), 1);
    check_part(worker, place_of(batch, index), part, frame, four_bytes(data + 16), four_bytes(data + 20));
  }
  if (!decode_png(data, image->len, png, message)) fail(worker, message);
  size_t stride = (size_t)3 * png->width;
  write_part(worker, batch, index, png->pixels + part.top * stride + 3 * part.left, stride, part, part, 1);
}
#endif

// Bare pixels: gray becomes RGB, transparency is dropped.
static void copy_part(Worker *worker, const Batch *batch, Py_ssize_t index) {
  const Py_buffer *image = &batch->images[index];
  const int32_t *shape = batch->shapes + 3 * index;
  int height = shape[0], width = shape[1], channels = shape[2];
  Part part = batch->parts[index];
  if (height < 1 || width < 1 || channels < 1 || (int64_t)height * width * channels != image->len)
    fail(worker, "the pixels are not as many as their shape says");
  check_part(worker, place_of(batch, index), part, batch->frames ? &batch->frames[index] : NULL, width, height);
  size_t stride = (size_t)3 * part.width;
  uint8_t *to = room_for_pixels(worker, stride * part.height);
  int green = channels > 2, blue = 2 * green;
  for (int y = 0; y < part.height; y++) {
    const uint8_t *from = (const uint8_t *)image->buf + ((size_t)(part.top + y) * width + part.left) * channels;
    for (int x = 0; x < part.width; x++, from += channels, to += 3) {
      to[0] = from[0];
      to[1] = from[green];
      to[2] = from[blue];
    }
  }
  write_part(worker, batch, index, worker->pixels, stride, part, part, 1);
}

// Decodes the part out of a smaller JPEG. Returns 0 if there are no entry points, or they do not fit the image: an image
// that has them is whole, so libjpeg warns of nothing if they fit.
static int decode_cut(Worker *worker, const Batch *batch, Py_ssize_t index) {
  const Py_buffer *image = &batch->images[index], *points = &batch->points[index];
  char unused[JMSG_LENGTH_MAX];
  if (!points->len || !cut_jpeg(image->buf, image->len, points->buf, points->len, batch->parts[index], &worker->cut))
    return 0;
  const int32_t *size = batch->sizes ? batch->sizes + 2 * index : NULL;
  if (size && (size[0] != worker->cut.source_height || size[1] != worker->cut.source_width)) return 0;
  worker->failure = unused;
  worker->refuses_warnings = 1;
  volatile int is_decoded = 0;
  if (!setjmp(worker->on_error)) {
    decode_part(worker, batch, index, worker->cut.data, worker->cut.size, worker->cut.part, 1);
    is_decoded = 1;
  }
  worker->refuses_warnings = 0;
  jpeg_destroy_decompress(&worker->jpeg);
  return is_decoded;
}

static void decode_images(Worker *worker, Batch *batch) {
  volatile size_t index = 0;
  worker->jpeg.err = jpeg_std_error(&worker->errors);
  worker->errors.error_exit = on_libjpeg_error;
  worker->errors.emit_message = on_libjpeg_message;
  worker->jpeg.client_data = worker;
  while ((index = atomic_fetch_add(&batch->next, 1)) < (size_t)batch->count) {
    if (decode_cut(worker, batch, index)) continue;
    worker->failure = batch->failures[index];
    if (setjmp(worker->on_error))
      ;  // it failed
    else if (batch->shapes && batch->shapes[3 * index + 2])
      copy_part(worker, batch, index);
#ifdef HAVE_PNG
    else if (is_png(&batch->images[index]))
      decode_png_part(worker, batch, index);
#endif
    else
      decode_part(worker, batch, index, batch->images[index].buf, batch->images[index].len, batch->parts[index], 0);
    jpeg_destroy_decompress(&worker->jpeg);
  }
}

static void *decode_next(void *argument) {
  Worker *worker = calloc(1, sizeof *worker);  // not on the stack, where longjmp may undo its changes
  if (!worker) return NULL;  // images that no thread decodes are failures
  decode_images(worker, argument);
  free(worker->cut.data);
  free(worker->pixels);
  free(worker->resized);
  free(worker->placed);
  free(worker->colors);
  free(worker->scratch.at);
  free(worker->png.pixels);
  free(worker);
  return NULL;
}

static void decode_all(Batch *batch, int num_threads) {
  pthread_t threads[MAX_THREADS];
  int num_started = 0;
  if (num_threads > batch->count) num_threads = (int)batch->count;
  if (num_threads > MAX_THREADS) num_threads = MAX_THREADS;
  while (num_started < num_threads - 1 && !pthread_create(&threads[num_started], NULL, decode_next, batch))
    num_started++;
  decode_next(batch);  // if no thread can be started, this one decodes all images
  for (int i = 0; i < num_started; i++) pthread_join(threads[i], NULL);
  for (size_t i = batch->next; i < (size_t)batch->count; i++) snprintf(batch->failures[i], JMSG_LENGTH_MAX, "out of memory");
}

static PyObject *failures_of(const Batch *batch) {
  PyObject *failures = PyList_New(0);
  for (Py_ssize_t i = 0; failures && i < batch->count; i++) {
    if (!batch->failures[i][0]) continue;
    PyObject *failure = Py_BuildValue("(ns)", i, batch->failures[i]);
    if (!failure || PyList_Append(failures, failure)) Py_CLEAR(failures);
    Py_XDECREF(failure);
  }
  return failures;
}

PyDoc_STRVAR(decode_doc,
             "decode(images, parts, flips, out, threads, points=None, frames=None, filter=1, antialias=False,\n"
             "    accurate_dct=False, values=None, sizes=None, shapes=None, places=None, colors=None, erased=None,\n"
             "    fill=b'\\0\\0\\0')\n"
             "    -> list[tuple[int, str]]\n\n"
             "Decodes a part of each image, resized, into a batch; other Python threads go on meanwhile.\n\n"
             "Args:\n    images: a list of bytes or memoryviews: JPEGs, and PNGs if DECODES_PNG is 1.\n"
             "    parts: int32 [n, 4], contiguous: top, left, height, width.\n"
             "    flips: uint8 or bool [n], contiguous: whether to mirror the image.\n"
             "    out: uint8 [n, height, width, 3], contiguous; RGB is written to it. Of the type of `values`, if given.\n"
             "    threads: at least 1.\n"
             "    points: a list of bytes or memoryviews: the entry points of each image, empty where it has none.\n"
             "    frames: float64 [n, 4], contiguous: top, row step, left, column step. Row y of an image is the part's\n"
             "        row top + (y + 0.5) * row step, in pixels of the image, of which a filter takes those around it.\n"
             "        None resizes the whole part bilinearly, from the four nearest pixels.\n"
             "    filter: with frames: 1 bilinear, 2 bicubic.\n"
             "    antialias: with frames: whether the filter is as wide as a pixel of a reduced image.\n"
             "    accurate_dct: whether blocks are decoded by libjpeg's accurate method; else by its fast one.\n"
             "    values: [3, 256], contiguous, of a type of 2 or 4 bytes: what each level of each channel becomes.\n"
             "    sizes: int32 [n, 2], contiguous: the height and width that each image must have. None allows any.\n"
             "    shapes: int32 [n, 3], contiguous, of images that are bare pixels: height, width, channels. Channels are 0\n"
             "        of an encoded image; None: all are.\n\n"
             "    places: int32 [n, 4], contiguous: top, left, height, width: where in its image of `out` each part goes,\n"
             "        mirrored if it is. None: it fills it.\n"
             "    colors: float32 [n, 5], contiguous: factors of brightness, contrast and saturation, turn of the hue, and\n"
             "        which of the 24 orders of these steps is taken.\n"
             "    erased: int32 [n, 4], contiguous: the part of each image of `out` that becomes `fill`.\n"
             "    fill: 3 bytes: red, green and blue around the places.\n\n"
             "Returns:\n    Those that cannot be decoded, by index, and why; their place in `out` is not written.");

// Whether there is a part for each image, inside of the images of the batch, with sides of `least` or more.
static int are_inside(const Py_buffer *buffer, Py_ssize_t count, const Py_ssize_t *shape, int least) {
  if (buffer->len != count * (Py_ssize_t)sizeof(Part) || buffer->itemsize != 4) return 0;
  for (const Part *part = buffer->buf; count--; part++)
    if (part->top < 0 || part->left < 0 || part->height < least || part->width < least ||
        (Py_ssize_t)part->top + part->height > shape[1] || (Py_ssize_t)part->left + part->width > shape[2])
      return 0;
  return 1;
}

// Converters of arguments. What they open is released by `decode`, whether or not all arguments are right.
static int open_optional(PyObject *object, void *buffer) {
  return object == Py_None || !PyObject_GetBuffer(object, buffer, PyBUF_ND);
}

static int open_writable(PyObject *object, void *buffer) {
  return !PyObject_GetBuffer(object, buffer, PyBUF_ND | PyBUF_WRITABLE);
}

// Opens the bytes of a list, if there is one. Returns how many it opened: fewer than `count` with an error.
static Py_ssize_t open_list(PyObject *list, Py_ssize_t count, Py_buffer *buffers) {
  Py_ssize_t num_open = 0;
  while (list && num_open < count && !PyObject_GetBuffer(PyList_GetItem(list, num_open), &buffers[num_open], PyBUF_SIMPLE))
    num_open++;
  return num_open;
}

// Whether an argument is not given, or has so many values of so many bytes.
static int is_fitting(const Py_buffer *buffer, Py_ssize_t num_values, Py_ssize_t itemsize) {
  return !buffer->obj || (buffer->len == num_values * itemsize && buffer->itemsize == itemsize);
}

enum { PARTS, FLIPS, OUT, FRAMES, VALUES, SIZES, SHAPES, PLACES, COLORS, ERASED, NUM_ARRAYS };

// Returns which arguments do not fit each other; NULL if all do.
static const char *find_misfits(const Py_buffer *arrays, Py_ssize_t count, Py_ssize_t num_points, Py_ssize_t num_fill) {
  const Py_buffer *out = &arrays[OUT], *values = &arrays[VALUES], *places = &arrays[PLACES], *erased = &arrays[ERASED];
  int is_known = values->obj ? out->itemsize == 2 || out->itemsize == 4 : out->itemsize == 1;
  if (out->ndim != 4 || !is_known || out->shape[0] != count || out->shape[3] != 3 || out->shape[1] < 1 ||
      out->shape[2] < 1 || out->shape[1] >= 1 << 15 || out->shape[2] >= 1 << 15 ||
      !is_fitting(&arrays[PARTS], 4 * count, sizeof(int32_t)) || arrays[FLIPS].len != count || num_points != count)
    return "images, parts, flips, out and points";
  if (!is_fitting(&arrays[FRAMES], 4 * count, sizeof(double))) return "images and frames";
  if (!is_fitting(values, 3 * 256, out->itemsize)) return "out and values";
  if (!is_fitting(&arrays[SIZES], 2 * count, sizeof(int32_t)) || !is_fitting(&arrays[SHAPES], 3 * count, sizeof(int32_t)))
    return "images, sizes and shapes";
  if ((places->obj && !are_inside(places, count, out->shape, 1)) ||
      (erased->obj && !are_inside(erased, count, out->shape, 0)) ||
      !is_fitting(&arrays[COLORS], COLOR_VALUES * count, sizeof(float)) || num_fill != 3)
    return "places, colors, erased, fill and out";
  return NULL;
}

static PyObject *decode(PyObject *module, PyObject *arguments) {
  PyObject *images, *points = NULL, *failures = NULL;
  Py_buffer arrays[NUM_ARRAYS] = {0};
  Batch batch = {.filter = FILTER_BILINEAR, .fill = (const uint8_t[3]){0}};
  Py_ssize_t count, num_points = 0, num_fill = 3;
  int num_threads, is_accurate = 0;
  if (!PyArg_ParseTuple(arguments, "O!y*y*O&i|O!O&ippO&O&O&O&O&O&y#:decode", &PyList_Type, &images, &arrays[PARTS],
                        &arrays[FLIPS], open_writable, &arrays[OUT], &num_threads, &PyList_Type, &points, open_optional,
                        &arrays[FRAMES], &batch.filter, &batch.is_antialiased, &is_accurate, open_optional, &arrays[VALUES],
                        open_optional, &arrays[SIZES], open_optional, &arrays[SHAPES], open_optional, &arrays[PLACES],
                        open_optional, &arrays[COLORS], open_optional, &arrays[ERASED], &batch.fill, &num_fill))
    goto done;
  count = PyList_GET_SIZE(images);
  const char *misfits = find_misfits(arrays, count, points ? PyList_GET_SIZE(points) : count, num_fill);
  if (misfits) {
    PyErr_Format(PyExc_ValueError, "%s do not fit each other", misfits);
    goto done;
  }
  if (batch.filter != FILTER_BILINEAR && batch.filter != FILTER_BICUBIC) {
    PyErr_Format(PyExc_ValueError, "filter is %d, expected 1 or 2", batch.filter);
    goto done;
  }
  batch.images = PyMem_Calloc(count + 1, sizeof *batch.images);
  batch.points = PyMem_Calloc(count + 1, sizeof *batch.points);
  batch.failures = PyMem_Calloc(count + 1, sizeof *batch.failures);
  if (!batch.images || !batch.points || !batch.failures) {
    PyErr_NoMemory();
    goto done;
  }
  batch.count = open_list(images, count, batch.images);
  num_points = open_list(points, count, batch.points);
  if (PyErr_Occurred()) goto done;
  batch.parts = arrays[PARTS].buf;
  batch.frames = arrays[FRAMES].buf;
  batch.sizes = arrays[SIZES].buf;
  batch.shapes = arrays[SHAPES].buf;
  batch.places = arrays[PLACES].buf;
  batch.colors = arrays[COLORS].buf;
  batch.erased = arrays[ERASED].buf;
  batch.dct_method = is_accurate ? JDCT_ISLOW : JDCT_IFAST;  // TensorFlow's default is the fast one
  batch.flips = arrays[FLIPS].buf;
  batch.out = arrays[OUT].buf;
  batch.value_bytes = (size_t)arrays[OUT].itemsize;
  batch.values = arrays[VALUES].buf;
  batch.height = (int)arrays[OUT].shape[1];
  batch.width = (int)arrays[OUT].shape[2];
  Py_BEGIN_ALLOW_THREADS;
  decode_all(&batch, num_threads);
  Py_END_ALLOW_THREADS;
  failures = failures_of(&batch);

done:
  for (Py_ssize_t i = 0; i < batch.count; i++) PyBuffer_Release(&batch.images[i]);
  for (Py_ssize_t i = 0; i < num_points; i++) PyBuffer_Release(&batch.points[i]);
  for (int i = 0; i < NUM_ARRAYS; i++) PyBuffer_Release(&arrays[i]);
  PyMem_Free(batch.images);
  PyMem_Free(batch.points);
  PyMem_Free(batch.failures);
  return failures;
}

PyDoc_STRVAR(find_entry_points_doc,
             "find_entry_points(data: bytes) -> bytes\n\n"
             "Returns the entry points of a JPEG, with which a part of it is decoded faster; empty if it has none.\n\n"
             "Only a JPEG with one scan has them, with Huffman codes, no restart markers and no damage.");

static PyObject *find_points(PyObject *module, PyObject *data) {
  if (!PyBytes_Check(data)) return PyErr_Format(PyExc_TypeError, "data is bytes");
  uint8_t *found;
  size_t size;
  Py_BEGIN_ALLOW_THREADS;
  found = find_entry_points((const uint8_t *)PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &size);
  Py_END_ALLOW_THREADS;
  if (!found) return PyErr_NoMemory();
  PyObject *points = PyBytes_FromStringAndSize((const char *)found, size);
  free(found);
  return points;
}

PyDoc_STRVAR(cut_doc,
             "cut(data: bytes, points: bytes, part: tuple[int, int, int, int]) -> tuple[bytes, tuple] | None\n\n"
             "Returns the smaller JPEG from which `decode` decodes a part, and where the part is in it: top, left,\n"
             "height, width. None if it decodes the JPEG itself. For tests.");

static PyObject *cut(PyObject *module, PyObject *arguments) {
  PyObject *data, *points, *result = NULL;
  Part part;
  CutJpeg made = {0};
  if (!PyArg_ParseTuple(arguments, "SS(iiii):cut", &data, &points, &part.top, &part.left, &part.height, &part.width))
    return NULL;
  if (cut_jpeg((const uint8_t *)PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data),
               (const uint8_t *)PyBytes_AS_STRING(points), PyBytes_GET_SIZE(points), part, &made))
    result = Py_BuildValue("y#(iiii)", made.data, (Py_ssize_t)made.size, made.part.top, made.part.left,
                           made.part.height, made.part.width);
  else
    result = Py_NewRef(Py_None);
  free(made.data);
  return result;
}

PyMethodDef part_methods[] = {
    {"decode", decode, METH_VARARGS, decode_doc},
    {"find_entry_points", find_points, METH_O, find_entry_points_doc},
    {"cut", cut, METH_VARARGS, cut_doc},
    {NULL, NULL, 0, NULL},
};
