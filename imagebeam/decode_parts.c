// Decodes a part of each image of a batch, without Python's lock: functions of `imagebeam._native`.
//
// Only the wanted part of a JPEG is decoded: the columns outside are not transformed, the rows above are only
// entropy-decoded, the rows below are not read, and libjpeg scales down if the part is at least twice the wanted size.
// With entry points (entry_points.c), columns and rows outside are not entropy-decoded either.
// The part is then resized (resample.c) and written, mirrored if asked for, to its place in the batch. Levels become
// other numbers, such as floats, while the image is in the processor's cache: a pass over the finished batch would read
// and write all of it again.
//
// A row of a batch is a part of an image. Rows with the same image one after the other (views, copies) can share it: it
// is then decoded once for all rows with the same reduction, the smallest part that holds theirs.

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

// Where an image is shared, this many pixels around the parts are decoded too. libjpeg enlarges stored colors smoothly,
// with those beside a pixel: so the pixels of a part are those of the whole image, whatever other parts are taken.
enum { MARGIN = 2 };

// A PNG, and a JPEG of several scans, is in memory as a whole: one with more pixels is refused. The converter decodes no
// more either (limits.MAX_DECODED_PIXELS).
enum { MAX_WHOLE_PIXELS = 100000000 };

// Where the pixels of the resized image are in a part, in pixels of the image.
typedef struct {
  double top, row_step, left, column_step;
} Frame;

// The images of a batch of one size. Row i of a batch is in the array i % num_views.
typedef struct {
  Py_buffer out;
  int height, width;
} View;

typedef struct {
  Py_ssize_t count, num_views;
  View *views;
  int is_shared;  // whether rows of the same image share it
  Py_buffer *images;
  Py_buffer *points;  // entry points of each image, empty if there are none
  const Part *parts;
  const int32_t *sizes;  // [count, 2]: height and width in each record; NULL if they are not known
  const int32_t *shapes;  // [count, 3] of bare pixels: height, width, channels; channels are 0 of an encoded image
  const Frame *frames;  // NULL: whole parts are resized from the four nearest pixels
  int filter, is_antialiased;  // of the filter
  J_DCT_METHOD dct_method;
  const uint8_t *flips;
  const Part *places;  // where in an image of the batch the part goes; NULL: it fills it
  const float *colors;  // [count, COLOR_VALUES], as of `change_colors`; NULL: colors stay as they are
  const Part *erased;  // part of each image of the batch that becomes `fill`, may be empty; NULL: none
  const uint8_t *fill;  // [3], outside of the place
  size_t value_bytes;  // of a value of a pixel in `out`
  size_t max_levels;  // of an image in `out`
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

static const View *view_of(const Batch *batch, Py_ssize_t index) { return &batch->views[index % batch->num_views]; }

static Part place_of(const Batch *batch, Py_ssize_t index) {
  const View *view = view_of(batch, index);
  return batch->places ? batch->places[index] : (Part){0, 0, view->height, view->width};
}

static const Frame *frame_of(const Batch *batch, Py_ssize_t index) {
  return batch->frames ? &batch->frames[index] : NULL;
}

static int is_bare(const Batch *batch, Py_ssize_t index) { return batch->shapes && batch->shapes[3 * index + 2]; }

static int is_png(const Py_buffer *image) { return image->len >= 8 && !memcmp(image->buf, "\x89PNG\r\n\x1a\n", 8); }

// Decides at which part of its size an image is decoded: 1, 1/2, 1/4 or 1/8, whose pixels are still as near as wanted.
static int choose_reduction(const Batch *batch, Py_ssize_t index) {
  Part part = batch->parts[index], place = place_of(batch, index);
  const Frame *frame = frame_of(batch, index);
  double gap = batch->is_antialiased ? ANTIALIAS_GAP : 1;
  double across = frame ? frame->column_step / gap : (double)part.width / place.width;
  double down = frame ? frame->row_step / gap : (double)part.height / place.height;
  int reduction = 1;
  if (is_bare(batch, index) || is_png(&batch->images[index])) return 1;
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

// The smallest part that holds both.
static Part join(Part one, Part other) {
  int bottom = one.top + one.height, right = one.left + one.width;
  if (other.top + other.height > bottom) bottom = other.top + other.height;
  if (other.left + other.width > right) right = other.left + other.width;
  int top = one.top < other.top ? one.top : other.top, left = one.left < other.left ? one.left : other.left;
  return (Part){top, left, bottom - top, right - left};
}

// Adds a margin, but nothing above and beside a place.
static Part widen(Part part, int margin, int top, int left, int64_t bottom, int64_t right) {
  if (part.top - margin > top) top = part.top - margin;
  if (part.left - margin > left) left = part.left - margin;
  if ((int64_t)part.top + part.height + margin < bottom) bottom = (int64_t)part.top + part.height + margin;
  if ((int64_t)part.left + part.width + margin < right) right = (int64_t)part.left + part.width + margin;
  return (Part){top, left, (int)(bottom - top), (int)(right - left)};
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

// Checks that the part of a row is inside of the image, and the frame inside of the part.
static void check_part(Worker *worker, const Batch *batch, Py_ssize_t index, Part part, unsigned width, unsigned height) {
  const Frame *frame = frame_of(batch, index);
  Part place = place_of(batch, index);
  if (!is_inside(part, 1, height, width)) {
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

static void fill_part(const Batch *batch, Part part, int width, uint8_t *levels) {
  for (int y = part.top; y < part.top + part.height; y++)
    for (int x = part.left; x < part.left + part.width; x++)
      memcpy(levels + ((size_t)y * width + x) * 3, batch->fill, 3);
}

// Resizes the decoded part into an image of the batch, with `fill` around its place.
static void place_part(Worker *worker, const Batch *batch, Py_ssize_t index, const uint8_t *pixels, size_t stride,
                       Part part, Part reduced, int reduction, uint8_t *levels) {
  Part place = place_of(batch, index);
  const View *view = view_of(batch, index);
  if (place.height == view->height && place.width == view->width) {
    resize_part(worker, batch, index, pixels, stride, part, reduced, reduction, levels);
    return;
  }
  if (!worker->placed) worker->placed = grow(worker, NULL, batch->max_levels);
  resize_part(worker, batch, index, pixels, stride, part, reduced, reduction, worker->placed);
  fill_part(batch, (Part){0, 0, view->height, view->width}, view->width, levels);
  size_t row_bytes = (size_t)place.width * 3;
  for (int y = 0; y < place.height; y++)
    memcpy(levels + ((size_t)(place.top + y) * view->width + place.left) * 3, worker->placed + y * row_bytes, row_bytes);
}

// Resizes the decoded part, changes it and writes it to its place in the batch.
static void write_part(Worker *worker, const Batch *batch, Py_ssize_t index, const uint8_t *pixels, size_t stride,
                       Part part, Part reduced, int reduction) {
  const View *view = view_of(batch, index);
  size_t num_levels = (size_t)view->height * view->width * 3;
  uint8_t *out = (uint8_t *)view->out.buf + index / batch->num_views * view->out.strides[0];
  if (batch->values && !worker->resized) worker->resized = grow(worker, NULL, batch->max_levels);
  uint8_t *levels = batch->values ? worker->resized : out;
  place_part(worker, batch, index, pixels, stride, part, reduced, reduction, levels);
  if (batch->colors) {
    if (!worker->colors) worker->colors = grow(worker, NULL, batch->max_levels * sizeof(float));
    change_colors(levels, num_levels / 3, batch->colors + index * COLOR_VALUES, worker->colors);
  }
  if (batch->erased) fill_part(batch, batch->erased[index], view->width, levels);
  if (!batch->values) return;
  if (batch->value_bytes == sizeof(uint32_t))
    WRITE_VALUES(uint32_t);
  else
    WRITE_VALUES(uint16_t);
}

// Rows of one image of which those with one reduction are decoded together.
typedef struct {
  const Batch *batch;
  Py_ssize_t first, end;
  int reduction;
} Rows;

static Py_ssize_t next_of(Rows rows, Py_ssize_t from) {
  while (from < rows.end && choose_reduction(rows.batch, from) != rows.reduction) from++;
  return from;
}

#define EACH_OF(rows, index) \
  for (Py_ssize_t index = next_of(rows, rows.first); index < rows.end; index = next_of(rows, index + 1))

// Whether the image of a row is that of the row before.
static int shares_image(const Batch *batch, Py_ssize_t row) {
  return batch->is_shared && batch->images[row].buf == batch->images[row - 1].buf;
}

static Part moved(Part part, int down, int right) {
  return (Part){part.top + down, part.left + right, part.height, part.width};
}

// Each image gets a decompressor of its own, which takes 1 us to make: libjpeg keeps quantization and Huffman tables
// for abbreviated streams (libjpeg.txt, "Abbreviated datastreams and multiple images"), so a JPEG without tables, such
// as a frame of Motion JPEG, would be decoded with the tables of the image before it.
//
// The parts of the rows are at their places and `down` and `right` pixels from there: in a smaller JPEG, if it is cut.
static void decode_part(Worker *worker, const Batch *batch, Rows rows, const uint8_t *data, size_t size, int down,
                        int right, int is_cut) {
  struct jpeg_decompress_struct *jpeg = &worker->jpeg;
  jpeg_create_decompress(jpeg);
  jpeg_mem_src(jpeg, data, size);
  jpeg_read_header(jpeg, TRUE);
  if (!is_cut) check_size(worker, batch, rows.first, jpeg->image_width, jpeg->image_height, jpeg_has_multiple_scans(jpeg));
  Part all = {0};
  EACH_OF(rows, index) {
    Part part = moved(batch->parts[index], down, right);
    check_part(worker, batch, index, part, jpeg->image_width, jpeg->image_height);
    part = reduce_part(part, rows.reduction, frame_of(batch, index));
    all = all.width ? join(all, part) : part;
  }
  int is_cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
  jpeg->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  jpeg->scale_num = 1;
  jpeg->scale_denom = rows.reduction;
  jpeg->dct_method = batch->dct_method;
  jpeg_start_decompress(jpeg);

  if (batch->is_shared) {  // the image begins at its own column, not at one that was put before it
    int top = down > 0 ? down / rows.reduction : 0, left = right > 0 ? right / rows.reduction : 0;
    all = widen(all, MARGIN, top, left, jpeg->output_height, jpeg->output_width);
  }
  int height = all.height;
  JDIMENSION first_column = all.left, num_columns = all.width;
  if (num_columns < jpeg->output_width) jpeg_crop_scanline(jpeg, &first_column, &num_columns);  // to whole blocks
  size_t stride = (size_t)num_columns * (is_cmyk ? 4 : 3);
  room_for_pixels(worker, stride * height);
  if (all.top > 0) jpeg_skip_scanlines(jpeg, all.top);
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
  EACH_OF(rows, index) {
    Part part = moved(batch->parts[index], down, right);
    Part reduced = reduce_part(part, rows.reduction, frame_of(batch, index));
    const uint8_t *pixels = worker->pixels + (reduced.top - all.top) * stride + 3 * (reduced.left - (int)first_column);
    write_part(worker, batch, index, pixels, stride, part, reduced, rows.reduction);
  }
}

#ifdef HAVE_PNG
static uint32_t four_bytes(const uint8_t *at) {
  return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

// A PNG can only be decoded whole. Its header is always the first chunk.
static void decode_png_part(Worker *worker, const Batch *batch, Rows rows) {
  const Py_buffer *image = &batch->images[rows.first];
  char message[MESSAGE_SIZE];
  const uint8_t *data = image->buf;
  PngImage *png = &worker->png;
  // libpng also takes a header behind chunks that it does not know. But what it then reads has not been checked.
  if (image->len < 24 || memcmp(data + 12, "IHDR", 4)) fail(worker, "the header of the PNG is missing");
  uint32_t width = four_bytes(data + 16), height = four_bytes(data + 20);
  check_size(worker, batch, rows.first, width, height, 1);
  EACH_OF(rows, index) check_part(worker, batch, index, batch->parts[index], width, height);
  if (!decode_png(data, image->len, png, message)) fail(worker, message);
  size_t stride = (size_t)3 * png->width;
  EACH_OF(rows, index) {
    Part part = batch->parts[index];
    write_part(worker, batch, index, png->pixels + part.top * stride + 3 * part.left, stride, part, part, 1);
  }
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
  check_part(worker, batch, index, part, width, height);
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

// Decodes the parts out of a smaller JPEG. Returns 0 if there are no entry points, or they do not fit the image: an image
// that has them is whole, so libjpeg warns of nothing if they fit.
static int decode_cut(Worker *worker, const Batch *batch, Rows rows) {
  const Py_buffer *image = &batch->images[rows.first], *points = &batch->points[rows.first];
  const int32_t *size = batch->sizes ? batch->sizes + 2 * rows.first : NULL;
  char unused[JMSG_LENGTH_MAX];
  Part all = {0};
  if (!points->len) return 0;
  EACH_OF(rows, index) {
    Part part = batch->parts[index];  // one that is in no JPEG is refused when the image is decoded without points
    if (!is_inside(part, 1, 1 << 16, 1 << 16)) return 0;
    all = all.width ? join(all, part) : part;
  }
  if (batch->is_shared && size) all = widen(all, MARGIN * rows.reduction, 0, 0, size[0], size[1]);
  if (!cut_jpeg(image->buf, image->len, points->buf, points->len, all, &worker->cut)) return 0;
  if (size && (size[0] != worker->cut.source_height || size[1] != worker->cut.source_width)) return 0;
  worker->failure = unused;
  worker->refuses_warnings = 1;
  volatile int is_decoded = 0;
  if (!setjmp(worker->on_error)) {
    int down = worker->cut.part.top - all.top, right = worker->cut.part.left - all.left;
    decode_part(worker, batch, rows, worker->cut.data, worker->cut.size, down, right, 1);
    is_decoded = 1;
  }
  worker->refuses_warnings = 0;
  jpeg_destroy_decompress(&worker->jpeg);
  return is_decoded;
}

static void decode_rows(Worker *worker, const Batch *batch, Rows rows) {
  const Py_buffer *image = &batch->images[rows.first];
  if (decode_cut(worker, batch, rows)) return;
  worker->failure = batch->failures[rows.first];
  if (setjmp(worker->on_error))
    ;  // it failed
  else if (is_bare(batch, rows.first))
    EACH_OF(rows, index) copy_part(worker, batch, index);
#ifdef HAVE_PNG
  else if (is_png(image))
    decode_png_part(worker, batch, rows);
#endif
  else
    decode_part(worker, batch, rows, image->buf, image->len, 0, 0, 0);
  jpeg_destroy_decompress(&worker->jpeg);
}

static void decode_images(Worker *worker, Batch *batch) {
  worker->jpeg.err = jpeg_std_error(&worker->errors);
  worker->errors.error_exit = on_libjpeg_error;
  worker->errors.emit_message = on_libjpeg_message;
  worker->jpeg.client_data = worker;
  Py_ssize_t first;
  while ((first = (Py_ssize_t)atomic_fetch_add(&batch->next, 1)) < batch->count) {
    Rows rows = {batch, first, first + 1, 1};
    if (first && shares_image(batch, first)) continue;
    while (rows.end < batch->count && shares_image(batch, rows.end)) rows.end++;
    for (; rows.reduction <= MAX_REDUCTION && !batch->failures[first][0]; rows.reduction *= 2)
      if (next_of(rows, first) < rows.end) decode_rows(worker, batch, rows);
    for (Py_ssize_t row = first + 1; row < rows.end; row++)
      memcpy(batch->failures[row], batch->failures[first], JMSG_LENGTH_MAX);
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
  while (num_started + 1 < num_threads && !pthread_create(&threads[num_started], NULL, decode_next, batch))
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

// Whether all parts are inside of the images of the batch, with sides of `least` or more.
static int are_inside(const Batch *batch, const Part *parts, int least) {
  for (Py_ssize_t i = 0; parts && i < batch->count; i++) {
    const View *view = view_of(batch, i);
    if (!is_inside(parts[i], least, view->height, view->width)) return 0;
  }
  return 1;
}

// Opens the arrays that are written to, one or a list. They may be parts of larger ones: only the first axis has steps of
// its own. Returns 0 with an error.
static int open_views(Batch *batch, PyObject *out) {
  int is_list = PyList_Check(out);
  batch->num_views = is_list ? PyList_GET_SIZE(out) : 1;
  batch->views = PyMem_Calloc(batch->num_views + 1, sizeof *batch->views);
  if (!batch->views) return PyErr_NoMemory(), 0;
  for (Py_ssize_t i = 0; i < batch->num_views; i++) {
    Py_buffer *found = &batch->views[i].out;
    PyObject *array = is_list ? PySequence_GetItem(out, i) : Py_NewRef(out);
    int failed = !array || PyObject_GetBuffer(array, found, PyBUF_STRIDES | PyBUF_WRITABLE);
    Py_XDECREF(array);
    if (failed) return 0;
    const Py_ssize_t *shape = found->shape, *strides = found->strides, value = found->itemsize;
    if (found->ndim != 4 || shape[0] * batch->num_views != batch->count || shape[3] != 3 || shape[1] < 1 || shape[2] < 1 ||
        shape[1] >= 1 << 15 || shape[2] >= 1 << 15 || value != batch->views->out.itemsize || strides[3] != value ||
        strides[2] != 3 * value || strides[1] != 3 * value * shape[2])
      return PyErr_SetString(PyExc_ValueError, "images and out do not fit each other"), 0;
    batch->views[i].height = (int)shape[1];
    batch->views[i].width = (int)shape[2];
    if ((size_t)(3 * shape[1] * shape[2]) > batch->max_levels) batch->max_levels = 3 * shape[1] * shape[2];
    batch->value_bytes = (size_t)value;
  }
  if (!batch->num_views) PyErr_SetString(PyExc_ValueError, "out is an empty list");
  return batch->num_views > 0;
}

// Converter of an argument. What it opens is released by `decode`, whether or not all arguments are right.
static int open_optional(PyObject *object, void *buffer) {
  return object == Py_None || !PyObject_GetBuffer(object, buffer, PyBUF_ND);
}

// Opens the bytes of a list, if there is one. Returns how many it opened: fewer than `count` with an error.
static Py_ssize_t open_list(PyObject *list, Py_ssize_t count, Py_buffer *buffers) {
  Py_ssize_t num_open = 0;
  for (; list && num_open < count; num_open++) {
    PyObject *item = PySequence_GetItem(list, num_open);  // held: an exporter in Python may change the list
    int failed = !item || PyObject_GetBuffer(item, &buffers[num_open], PyBUF_SIMPLE);
    Py_XDECREF(item);
    if (failed) break;
  }
  return num_open;
}

// Whether an argument is not given, or has so many values of so many bytes.
static int is_fitting(const Py_buffer *buffer, Py_ssize_t num_values, Py_ssize_t itemsize) {
  return !buffer->obj || (buffer->len == num_values * itemsize && buffer->itemsize == itemsize);
}

// Whether all changes of colors are numbers, and their orders known.
static int are_changes(const float *colors, Py_ssize_t count) {
  for (Py_ssize_t i = 0; colors && i < count * COLOR_VALUES; i++)
    if (!isfinite(colors[i]) || (i % COLOR_VALUES == COLOR_VALUES - 1 && !(colors[i] >= 0 && colors[i] < NUM_ORDERS)))
      return 0;
  return 1;
}

enum { PARTS, FLIPS, FRAMES, VALUES, SIZES, SHAPES, PLACES, COLORS, ERASED, NUM_ARRAYS };

// Returns which arguments do not fit each other; NULL if all do.
static const char *find_misfits(const Batch *batch, const Py_buffer *arrays, Py_ssize_t num_points, Py_ssize_t num_fill) {
  Py_ssize_t count = batch->count, value = (Py_ssize_t)batch->value_bytes;
  int is_known = arrays[VALUES].obj ? value == 2 || value == 4 : value == 1;
  if (!is_fitting(&arrays[PARTS], 4 * count, sizeof(int32_t)) || arrays[FLIPS].len != count || num_points != count)
    return "images, parts, flips and points";
  if (!is_fitting(&arrays[FRAMES], 4 * count, sizeof(double))) return "images and frames";
  if (!is_known || !is_fitting(&arrays[VALUES], 3 * 256, value)) return "out and values";
  if (!is_fitting(&arrays[SIZES], 2 * count, sizeof(int32_t)) || !is_fitting(&arrays[SHAPES], 3 * count, sizeof(int32_t)))
    return "images, sizes and shapes";
  if (!is_fitting(&arrays[PLACES], 4 * count, sizeof(int32_t)) || !are_inside(batch, arrays[PLACES].buf, 1) ||
      !is_fitting(&arrays[ERASED], 4 * count, sizeof(int32_t)) || !are_inside(batch, arrays[ERASED].buf, 0) ||
      !is_fitting(&arrays[COLORS], COLOR_VALUES * count, sizeof(float)) ||
      !are_changes(arrays[COLORS].buf, count) || num_fill != 3)
    return "places, colors, erased, fill and out";
  return NULL;
}

// decode(images, parts, flips, out, threads, points=None, frames=None, filter=1, antialias=False,
//     accurate_dct=False, values=None, sizes=None, shapes=None, places=None, colors=None, erased=None,
//     fill=three zeros, shared=False)
//     -> list[tuple[int, str]]
//
// Decodes a part of each image, resized, into a batch; other Python threads go on meanwhile.
//
// Args:
//     images: a list of bytes or memoryviews: JPEGs, and PNGs if DECODES_PNG is 1.
//     parts: int32 [n, 4], contiguous: top, left, height, width.
//     flips: uint8 or bool [n], contiguous: whether to mirror the image.
//     out: uint8 [n, height, width, 3]; RGB is written to it. Of the type of `values`, if given. Or a list of v
//         such arrays [n / v, ...] of any sides: row i goes to place i / v of array i % v. Their last three axes
//         are contiguous.
//     threads: at least 1.
//     points: a list of bytes or memoryviews: the entry points of each image, empty where it has none.
//     frames: float64 [n, 4], contiguous: top, row step, left, column step. Row y of an image is the part's
//         row top + (y + 0.5) * row step, in pixels of the image, of which a filter takes those around it.
//         None resizes the whole part bilinearly, from the four nearest pixels.
//     filter: with frames: 1 bilinear, 2 bicubic.
//     antialias: with frames: whether the filter is as wide as a pixel of a reduced image.
//     accurate_dct: whether blocks are decoded by libjpeg's accurate method; else by its fast one.
//     values: [3, 256], contiguous, of a type of 2 or 4 bytes: what each level of each channel becomes.
//     sizes: int32 [n, 2], contiguous: the height and width that each image must have. None allows any.
//     shapes: int32 [n, 3], contiguous, of images that are bare pixels: height, width, channels. Channels are 0
//         of an encoded image; None: all are.
//
//     places: int32 [n, 4], contiguous: top, left, height, width: where in its image of `out` each part goes,
//         mirrored if it is. None: it fills it.
//     colors: float32 [n, 5], contiguous: factors of brightness, contrast and saturation, turn of the hue, and
//         which of the 24 orders of these steps is taken.
//     erased: int32 [n, 4], contiguous: the part of each image of `out` that becomes `fill`.
//     fill: 3 bytes: red, green and blue around the places.
//     shared: whether an object that comes several times in a row in `images` is decoded once. The pixels of its
//         parts are then those of the whole image, also at their edges.
//
// Returns:
//     Those that cannot be decoded, by index, and why; their place in `out` is not written.
static PyObject *decode(PyObject *module, PyObject *arguments) {
  PyObject *images, *out, *points = NULL, *failures = NULL;
  Py_buffer arrays[NUM_ARRAYS] = {0};
  Batch batch = {.filter = FILTER_BILINEAR, .fill = (const uint8_t[3]){0}};
  Py_ssize_t num_images = 0, num_points = 0, num_fill = 3;
  int num_threads, is_accurate = 0;
  if (!PyArg_ParseTuple(arguments, "O!y*y*Oi|O!O&ippO&O&O&O&O&O&y#p:decode", &PyList_Type, &images, &arrays[PARTS],
                        &arrays[FLIPS], &out, &num_threads, &PyList_Type, &points, open_optional, &arrays[FRAMES],
                        &batch.filter, &batch.is_antialiased, &is_accurate, open_optional, &arrays[VALUES], open_optional,
                        &arrays[SIZES], open_optional, &arrays[SHAPES], open_optional, &arrays[PLACES], open_optional,
                        &arrays[COLORS], open_optional, &arrays[ERASED], &batch.fill, &num_fill, &batch.is_shared))
    goto done;
  batch.count = PyList_GET_SIZE(images);
  if (!open_views(&batch, out)) goto done;
  const char *misfits = find_misfits(&batch, arrays, points ? PyList_GET_SIZE(points) : batch.count, num_fill);
  if (misfits) {
    PyErr_Format(PyExc_ValueError, "%s do not fit each other", misfits);
    goto done;
  }
  if (batch.filter != FILTER_BILINEAR && batch.filter != FILTER_BICUBIC) {
    PyErr_Format(PyExc_ValueError, "filter is %d, expected 1 or 2", batch.filter);
    goto done;
  }
  batch.images = PyMem_Calloc(batch.count + 1, sizeof *batch.images);
  batch.points = PyMem_Calloc(batch.count + 1, sizeof *batch.points);
  batch.failures = PyMem_Calloc(batch.count + 1, sizeof *batch.failures);
  if (!batch.images || !batch.points || !batch.failures) {
    PyErr_NoMemory();
    goto done;
  }
  num_images = open_list(images, batch.count, batch.images);
  num_points = open_list(points, batch.count, batch.points);
  if (PyErr_Occurred()) goto done;
  batch.parts = arrays[PARTS].buf;
  batch.flips = arrays[FLIPS].buf;
  batch.frames = arrays[FRAMES].buf;
  batch.values = arrays[VALUES].buf;
  batch.sizes = arrays[SIZES].buf;
  batch.shapes = arrays[SHAPES].buf;
  batch.places = arrays[PLACES].buf;
  batch.colors = arrays[COLORS].buf;
  batch.erased = arrays[ERASED].buf;
  batch.dct_method = is_accurate ? JDCT_ISLOW : JDCT_IFAST;  // TensorFlow's default is the fast one
  Py_BEGIN_ALLOW_THREADS;
  decode_all(&batch, num_threads);
  Py_END_ALLOW_THREADS;
  failures = failures_of(&batch);

done:
  for (Py_ssize_t i = 0; i < num_images; i++) PyBuffer_Release(&batch.images[i]);
  for (Py_ssize_t i = 0; i < num_points; i++) PyBuffer_Release(&batch.points[i]);
  for (Py_ssize_t i = 0; batch.views && i < batch.num_views; i++) PyBuffer_Release(&batch.views[i].out);
  for (int i = 0; i < NUM_ARRAYS; i++) PyBuffer_Release(&arrays[i]);
  PyMem_Free(batch.images);
  PyMem_Free(batch.points);
  PyMem_Free(batch.failures);
  PyMem_Free(batch.views);
  return failures;
}

// find_entry_points(data: bytes) -> bytes
//
// Returns the entry points of a JPEG, with which a part of it is decoded faster; empty if it has none.
//
// Only a JPEG with one scan has them, with Huffman codes, no restart markers and no damage.
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

// cut(data: bytes, points: bytes, part: tuple[int, int, int, int]) -> tuple[bytes, tuple] | None
//
// Returns the smaller JPEG from which `decode` decodes a part, and where the part is in it: top, left, height, width.
// None if it decodes the JPEG itself. For tests.
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
    {"decode", decode, METH_VARARGS, "Decodes parts of images into arrays."},
    {"find_entry_points", find_points, METH_O, "Returns the entry points of a JPEG."},
    {"cut", cut, METH_VARARGS, "Returns the smaller JPEG from which a part is decoded."},
    {NULL, NULL, 0, NULL},
};
