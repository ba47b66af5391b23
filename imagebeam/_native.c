// The inner loops of the reader in C: they read records, find features in them and decode JPEGs, without Python's lock.
//
// Only the wanted part of a JPEG is decoded: the columns outside are not transformed, the rows above are only
// entropy-decoded, the rows below are not read, and libjpeg scales down if the part is at least twice the wanted size.
// With entry points (entry_points.c), columns and rows outside are not entropy-decoded either.
// The part is then resized and written, mirrored if asked for, to its place in the batch: bilinearly from the four nearest
// pixels, or with a filter (resample.c).

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include <jpeglib.h>

#include <jerror.h>

#include "crc32c.h"
#include "entry_points.h"
#include "png_decoder.h"
#include "resample.h"

#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "libjpeg-turbo is needed: other libjpegs do not decode parts of an image"
#endif

#if defined(__x86_64__) && defined(__GNUC__)  // Clang defines __GNUC__ too
#include <immintrin.h>
#define HAS_AVX2_CODE
#endif

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

// With a filter that averages, an image is decoded reduced only while it stays this much larger than wanted.
#define ANTIALIAS_GAP 2

enum { MAX_REDUCTION = 8, ROWS_AT_ONCE = 16, MAX_THREADS = 1024 };

// --- features -------------------------------------------------------------------------------------------------------

typedef struct {
  const uint8_t *at, *end;
} Span;

enum { VARINT = 0, FIXED64 = 1, DELIMITED = 2, FIXED32 = 5 };
enum { BYTES_LIST = 1, FLOAT_LIST = 2, INT64_LIST = 3 };  // fields of tf.train.Feature

static int take_varint(Span *span, uint64_t *value) {
  *value = 0;
  for (int shift = 0; span->at < span->end && shift < 64; shift += 7) {
    uint8_t byte = *span->at++;
    *value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) return 1;
  }
  return 0;
}

// Reads the next field of a message: returns 1 if there is one, 0 at the end, -1 if the message is broken.
static int take_field(Span *message, int *number, int *type, Span *field) {
  uint64_t tag, size = 0;
  if (message->at == message->end) return 0;
  if (!take_varint(message, &tag)) return -1;
  *number = (int)(tag >> 3);
  *type = tag & 7;
  const uint8_t *start = message->at;
  if (*type == VARINT) {
    if (!take_varint(message, &size)) return -1;
    *field = (Span){start, message->at};
    return 1;
  }
  if (*type == DELIMITED && !take_varint(message, &size)) return -1;
  if (*type == FIXED64) size = 8;
  if (*type == FIXED32) size = 4;
  if ((*type != DELIMITED && size == 0) || size > (uint64_t)(message->end - message->at)) return -1;
  *field = (Span){message->at, message->at + size};
  message->at += size;
  return 1;
}

// Finds the last field of a message with this number: returns 1, or 0 if there is none, -1 if the message is broken.
static int find_field(Span message, int wanted, Span *found) {
  int number, type, state, is_found = 0;
  Span field;
  while ((state = take_field(&message, &number, &type, &field)) == 1)
    if (number == wanted && type == DELIMITED) *found = field, is_found = 1;
  return state < 0 ? -1 : is_found;
}

static PyObject *number_of(int kind, int type, Span *values) {
  if (kind == INT64_LIST) {
    uint64_t value;
    return take_varint(values, &value) ? PyLong_FromLongLong((int64_t)value) : NULL;
  }
  float value;
  if ((type != DELIMITED && type != FIXED32) || values->end - values->at < 4) return NULL;
  memcpy(&value, values->at, sizeof value);
  values->at += sizeof value;
  return PyFloat_FromDouble(value);
}

// Returns the single value of a tf.train.Feature: an int, a float, or a slice of the record; None if it has no value.
// Returns NULL, with or without an exception set, if it has several values or is broken.
static PyObject *value_of(Span feature, const uint8_t *record) {
  int kind, type, number, state;
  Span list, value;
  PyObject *found = NULL;
  if ((state = take_field(&feature, &kind, &type, &list)) < 1) return state < 0 ? NULL : Py_NewRef(Py_None);
  if (type != DELIMITED || feature.at != feature.end) return NULL;
  while ((state = take_field(&list, &number, &type, &value)) == 1) {
    if (number != 1 || found) break;
    if (kind == BYTES_LIST) {
      PyObject *start = PyLong_FromSsize_t(value.at - record), *stop = PyLong_FromSsize_t(value.end - record);
      if (start && stop) found = PySlice_New(start, stop, NULL);
      Py_XDECREF(start);
      Py_XDECREF(stop);
    } else if (value.at < value.end) {
      found = number_of(kind, type, &value);
      if (found && value.at < value.end) break;  // several, packed
    } else {
      continue;
    }
    if (!found) return NULL;
  }
  if (state == 0) return found ? found : Py_NewRef(Py_None);
  Py_XDECREF(found);
  return NULL;
}

static int fill_features(Span example, const uint8_t *record, PyObject *keys, PyObject *values) {
  Span features, entry, name = {NULL, NULL}, feature = {NULL, NULL};
  int number, type, state;
  int is_found = find_field(example, 1, &features);
  if (is_found < 1) return is_found;
  while ((state = take_field(&features, &number, &type, &entry)) == 1) {
    if (number != 1 || type != DELIMITED) continue;
    int has_name = find_field(entry, 1, &name), has_feature = find_field(entry, 2, &feature);
    if (has_name < 0 || has_feature < 0) return -1;
    if (!has_name || !has_feature) continue;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys); i++) {
      PyObject *key = PyTuple_GET_ITEM(keys, i);
      if (PyBytes_GET_SIZE(key) != name.end - name.at || memcmp(PyBytes_AS_STRING(key), name.at, name.end - name.at))
        continue;
      PyObject *value = value_of(feature, record);
      if (!value) {
        if (!PyErr_Occurred())
          PyErr_Format(PyExc_ValueError, "feature '%s' has no single value", PyBytes_AS_STRING(key));
        return -1;
      }
      PyTuple_SetItem(values, i, value);
    }
  }
  return state;
}

PyDoc_STRVAR(find_features_doc,
             "find_features(record: bytes, keys: tuple[bytes, ...]) -> tuple\n\n"
             "Returns the single values of features of a serialized tf.train.Example: an int, a float, for bytes\n"
             "their slice of the record, and None for a missing feature.\n\n"
             "Raises:\n    ValueError: if the record is not an Example, or one of these features has several values.");

static PyObject *find_features(PyObject *module, PyObject *arguments) {
  PyObject *record, *keys;
  if (!PyArg_ParseTuple(arguments, "SO!:find_features", &record, &PyTuple_Type, &keys)) return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(keys);
  for (Py_ssize_t i = 0; i < count; i++)
    if (!PyBytes_Check(PyTuple_GET_ITEM(keys, i))) return PyErr_Format(PyExc_TypeError, "keys are bytes");
  PyObject *values = PyTuple_New(count);
  if (!values) return NULL;
  for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(values, i, Py_NewRef(Py_None));
  const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(record);
  if (fill_features((Span){start, start + PyBytes_GET_SIZE(record)}, start, keys, values) < 0) {
    Py_DECREF(values);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "not a tf.train.Example");
    return NULL;
  }
  return values;
}

// --- records --------------------------------------------------------------------------------------------------------

PyDoc_STRVAR(read_record_doc,
             "read_record(descriptor: int, start: int, stop: int) -> bytes | None\n\n"
             "Returns bytes `start` to `stop` of a file: the content of a record, if the masked CRC32C behind it is\n"
             "right. None if it is not, if they cannot be read, or if the processor has no instruction for CRC32C.\n"
             "Other Python threads go on meanwhile.");

static PyObject *read_record(PyObject *module, PyObject *arguments) {
  int descriptor, is_right = 0;
  long long start, stop;
  if (!PyArg_ParseTuple(arguments, "iLL:read_record", &descriptor, &start, &stop)) return NULL;
  if (start < 0 || stop < start || !has_fast_crc32c()) Py_RETURN_NONE;
  PyObject *content = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(stop - start));
  if (!content) return NULL;
  uint8_t footer[4];
  size_t size = (size_t)(stop - start);
  struct iovec parts[] = {{PyBytes_AS_STRING(content), size}, {footer, sizeof footer}};
  Py_BEGIN_ALLOW_THREADS;
  if (preadv(descriptor, parts, 2, (off_t)start) == (ssize_t)(size + sizeof footer)) {
    uint32_t stored = (uint32_t)footer[0] | (uint32_t)footer[1] << 8 | (uint32_t)footer[2] << 16 |
                      (uint32_t)footer[3] << 24;
    is_right = masked_crc32c(parts[0].iov_base, size) == stored;
  }
  Py_END_ALLOW_THREADS;
  if (is_right) return content;
  Py_DECREF(content);
  Py_RETURN_NONE;
}

// --- images ---------------------------------------------------------------------------------------------------------

// Makes one row of the result: blends two rows, then pairs of pixels. A pixel is handled as four values.
typedef void (*ResizeRow)(const uint8_t *upper, const uint8_t *lower, int num_values, int16_t second, int16_t *blended,
                          int width, const int *columns, const int16_t *weights, uint8_t *out);

// Where the pixels of the resized image are in a part, in pixels of the image.
typedef struct {
  double top, row_step, left, column_step;
} Frame;

typedef struct {
  Py_ssize_t count;
  Py_buffer *images;
  Py_buffer *points;  // entry points of each image, empty if there are none
  const Part *parts;
  const Frame *frames;  // NULL: parts are resized from the nearest pixels, without a filter
  int filter, is_antialiased;  // of the filter
  J_DCT_METHOD dct_method;
  const uint8_t *flips;
  int height, width;  // of the images in the batch
  ResizeRow resize_row;
  uint8_t *out;
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
  int16_t *blended;  // a row blended from two rows of `pixels`
  size_t num_blended;
  int *columns;      // offsets in `blended` of the left and of the right pixel for each column of the resized image
  int16_t *weights;  // of the right pixels: four equal values for each
  Scratch scratch;
  PngImage png;
} Worker;

static DecodePng *decode_png;  // NULL if imagebeam was built without libpng

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

static int position_at(double position, int limit, double *fraction) {
  double clamped = fmin(fmax(position, 0), limit - 1);
  *fraction = clamped - floor(clamped);
  return (int)clamped;
}

static void resize_pixels(const int16_t *blended, int from, int width, const int *columns, const int16_t *weights,
                          uint8_t *out) {
  for (int x = from; x < width; x++)
    for (int c = 0; c < 3; c++) {
      int left = blended[columns[x] + c], right = blended[columns[width + x] + c];
      out[3 * x + c] = (left + (((right - left) * weights[4 * x + c] + (1 << 14)) >> 15) + 64) >> 7;
    }
}

static void resize_row(const uint8_t *restrict upper, const uint8_t *restrict lower, int num_values, int16_t second,
                       int16_t *restrict blended, int width, const int *columns, const int16_t *weights,
                       uint8_t *out) {
  int16_t first = 128 - second;
  for (int i = 0; i < num_values; i++) blended[i] = upper[i] * first + lower[i] * second;
  resize_pixels(blended, 0, width, columns, weights, out);
}

#ifdef HAS_AVX2_CODE
#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i four_pixels(const int16_t *blended, const int *columns) {
  int64_t pixels[4];
  for (int i = 0; i < 4; i++) memcpy(&pixels[i], blended + columns[i], sizeof pixels[i]);
  return _mm256_set_epi64x(pixels[3], pixels[2], pixels[1], pixels[0]);
}

// The same for four pixels at a time.
AVX2 static void resize_row_avx2(const uint8_t *restrict upper, const uint8_t *restrict lower, int num_values,
                                 int16_t second, int16_t *restrict blended, int width, const int *columns,
                                 const int16_t *weights, uint8_t *out) {
  const __m256i half = _mm256_set1_epi16(64);
  const __m128i without_fourth = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  int16_t first = 128 - second;
  for (int i = 0; i < num_values; i++) blended[i] = upper[i] * first + lower[i] * second;
  int x = 0;
  for (; x + 4 <= width; x += 4) {
    __m256i left = four_pixels(blended, columns + x), right = four_pixels(blended, columns + width + x);
    __m256i weight = _mm256_loadu_si256((const __m256i *)(weights + 4 * x));
    __m256i value = _mm256_add_epi16(left, _mm256_mulhrs_epi16(_mm256_sub_epi16(right, left), weight));
    value = _mm256_srli_epi16(_mm256_add_epi16(value, half), 7);
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(value), _mm256_extracti128_si256(value, 1));
    bytes = _mm_shuffle_epi8(bytes, without_fourth);
    _mm_storel_epi64((__m128i *)(out + 3 * x), bytes);  // only twelve bytes: the next ones may belong to another thread
    int last = _mm_extract_epi32(bytes, 2);
    memcpy(out + 3 * x + 8, &last, sizeof last);
  }
  resize_pixels(blended, x, width, columns, weights, out);
}
#endif

static ResizeRow best_resize_row(void) {
#ifdef HAS_AVX2_CODE
  if (__builtin_cpu_supports("avx2") && !getenv("IMAGEBEAM_NO_AVX2")) return resize_row_avx2;  // for tests
#endif
  return resize_row;
}

// Resizes bilinearly with half-pixel centers and rounds. Weights have steps of 1/128 vertically, 1/32767 horizontally.
static void resize(Worker *worker, const Batch *batch, const uint8_t *pixels, size_t stride, int width, int height,
                   int flip, uint8_t *out) {
  double fraction;
  for (int x = 0; x < batch->width; x++) {
    int column = position_at((x + 0.5) * width / batch->width - 0.5, width, &fraction);
    int to = flip ? batch->width - 1 - x : x;
    worker->columns[to] = 3 * column;
    worker->columns[batch->width + to] = 3 * (column + 1 < width ? column + 1 : column);
    for (int c = 0; c < 4; c++) worker->weights[4 * to + c] = (int16_t)lrint(fraction * 32767);
  }
  for (int y = 0; y < batch->height; y++) {
    int row = position_at((y + 0.5) * height / batch->height - 0.5, height, &fraction);
    const uint8_t *upper = pixels + row * stride, *lower = upper + (row + 1 < height ? stride : 0);
    batch->resize_row(upper, lower, 3 * width, (int16_t)lrint(fraction * 128), worker->blended, batch->width,
                      worker->columns, worker->weights, out + (size_t)y * batch->width * 3);
  }
}

static int smaller(int value, int reduction) { return value / reduction > 1 ? value / reduction : 1; }

// Decides at which part of its size an image is decoded: 1, 1/2, 1/4 or 1/8, whose pixels are still as near as wanted.
static int choose_reduction(const Batch *batch, Part part, const Frame *frame) {
  int reduction = 1, gap = batch->is_antialiased ? ANTIALIAS_GAP : 1;
  if (frame)
    while (reduction < MAX_REDUCTION && frame->column_step >= 2 * reduction * gap &&
           frame->row_step >= 2 * reduction * gap)
      reduction *= 2;
  else
    while (reduction < MAX_REDUCTION && part.width >= 2 * reduction * batch->width &&
           part.height >= 2 * reduction * batch->height)
      reduction *= 2;
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

static void resize_with_filter(Worker *worker, const Batch *batch, const uint8_t *pixels, size_t stride, Part part,
                               Part reduced, int reduction, const Frame *frame, int flip, uint8_t *out) {
  double left = (part.left + frame->left) / reduction - reduced.left;
  double top = (part.top + frame->top) / reduction - reduced.top;
  Side across = {reduced.width, batch->width, left, frame->column_step / reduction, batch->filter,
                 !batch->is_antialiased};
  Side down = {reduced.height, batch->height, top, frame->row_step / reduction, batch->filter, !batch->is_antialiased};
  if (!resample_rgb(pixels, stride, &across, &down, flip, out, &worker->scratch)) fail(worker, "out of memory");
}

// A frame fits if its pixels are inside of the part.
static int is_fitting_side(double start, double step, int count, int side) {
  return start >= 0 && step > 0 && start + step * count <= side + 0.01;  // not if one is NaN
}

// Checks that the part is inside of the image, and the frame inside of the part.
static void check_part(Worker *worker, const Batch *batch, Part part, const Frame *frame, unsigned width,
                       unsigned height) {
  if (part.top < 0 || part.left < 0 || part.height < 1 || part.width < 1 ||
      (int64_t)part.top + part.height > height || (int64_t)part.left + part.width > width) {
    char text[JMSG_LENGTH_MAX];
    snprintf(text, sizeof text, "the picture has %u x %u pixels, not those that the record says", width, height);
    fail(worker, text);
  }
  if (frame && !(is_fitting_side(frame->top, frame->row_step, batch->height, part.height) &&
                 is_fitting_side(frame->left, frame->column_step, batch->width, part.width)))
    fail(worker, "the frame is not inside of the part");
}

// Resizes the decoded part and writes it to its place in the batch.
static void write_part(Worker *worker, const Batch *batch, Py_ssize_t index, const uint8_t *pixels, size_t stride,
                       Part part, Part reduced, int reduction) {
  int flip = batch->flips && batch->flips[index];
  uint8_t *out = batch->out + (size_t)index * batch->height * batch->width * 3;
  if (batch->frames) {
    resize_with_filter(worker, batch, pixels, stride, part, reduced, reduction, &batch->frames[index], flip, out);
    return;
  }
  size_t num_values = 3 * (size_t)reduced.width + 1;
  if (num_values > worker->num_blended) {
    worker->blended = grow(worker, worker->blended, num_values * sizeof(int16_t));
    worker->num_blended = num_values;
  }
  resize(worker, batch, pixels, stride, reduced.width, reduced.height, flip, out);
}

// Each image gets a decompressor of its own, which takes 1 us to make: libjpeg keeps quantization and Huffman tables
// for abbreviated streams (libjpeg.txt, "Abbreviated datastreams and multiple images"), so a JPEG without tables, such
// as a frame of Motion JPEG, would be decoded with the tables of the image before it.
static void decode_part(Worker *worker, const Batch *batch, Py_ssize_t index, const uint8_t *data, size_t size,
                        Part part) {
  struct jpeg_decompress_struct *jpeg = &worker->jpeg;
  jpeg_create_decompress(jpeg);
  jpeg_mem_src(jpeg, data, size);
  jpeg_read_header(jpeg, TRUE);
  const Frame *frame = batch->frames ? &batch->frames[index] : NULL;
  check_part(worker, batch, part, frame, jpeg->image_width, jpeg->image_height);
  int reduction = choose_reduction(batch, part, frame);
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
  if (stride * height > worker->num_pixel_bytes) {
    worker->pixels = grow(worker, worker->pixels, stride * height + RESAMPLE_SLACK);
    worker->num_pixel_bytes = stride * height;
  }
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

static int is_png(const Py_buffer *image) { return image->len >= 8 && !memcmp(image->buf, "\x89PNG\r\n\x1a\n", 8); }

// A PNG can only be decoded whole.
static void decode_png_part(Worker *worker, const Batch *batch, Py_ssize_t index) {
  const Py_buffer *image = &batch->images[index];
  char message[PNG_MESSAGE_SIZE];
  Part part = batch->parts[index];
  PngImage *png = &worker->png;
  if (!decode_png(image->buf, image->len, png, message)) fail(worker, message);
  check_part(worker, batch, part, batch->frames ? &batch->frames[index] : NULL, png->width, png->height);
  size_t stride = (size_t)3 * png->width;
  write_part(worker, batch, index, png->pixels + part.top * stride + 3 * part.left, stride, part, part, 1);
}

// Decodes the part out of a smaller JPEG. Returns 0 if there are no entry points, or they do not fit the image: an image
// that has them is whole, so libjpeg warns of nothing if they fit.
static int decode_cut(Worker *worker, const Batch *batch, Py_ssize_t index) {
  const Py_buffer *image = &batch->images[index], *points = &batch->points[index];
  char unused[JMSG_LENGTH_MAX];
  if (!points->len || !cut_jpeg(image->buf, image->len, points->buf, points->len, batch->parts[index], &worker->cut))
    return 0;
  worker->failure = unused;
  worker->refuses_warnings = 1;
  volatile int is_decoded = 0;
  if (!setjmp(worker->on_error)) {
    decode_part(worker, batch, index, worker->cut.data, worker->cut.size, worker->cut.part);
    is_decoded = 1;
  }
  worker->refuses_warnings = 0;
  jpeg_destroy_decompress(&worker->jpeg);
  return is_decoded;
}

static void prepare_worker(Worker *worker) {
  worker->jpeg.err = jpeg_std_error(&worker->errors);
  worker->errors.error_exit = on_libjpeg_error;
  worker->errors.emit_message = on_libjpeg_message;
  worker->jpeg.client_data = worker;
}

static void *decode_next(void *argument) {
  Batch *batch = argument;
  Worker worker = {0};
  char unused[JMSG_LENGTH_MAX];
  volatile size_t index = 0;
  worker.failure = unused;
  prepare_worker(&worker);
  if (!setjmp(worker.on_error)) {
    worker.columns = grow(&worker, NULL, 2 * batch->width * sizeof(int));
    worker.weights = grow(&worker, NULL, 4 * batch->width * sizeof(int16_t));
  }
  while ((index = atomic_fetch_add(&batch->next, 1)) < (size_t)batch->count) {
    if (worker.weights && decode_cut(&worker, batch, index)) continue;
    worker.failure = batch->failures[index];
    if (!worker.weights)
      snprintf(worker.failure, JMSG_LENGTH_MAX, "out of memory");
    else if (setjmp(worker.on_error))
      ;  // it failed
    else if (decode_png && is_png(&batch->images[index]))
      decode_png_part(&worker, batch, index);
    else
      decode_part(&worker, batch, index, batch->images[index].buf, batch->images[index].len, batch->parts[index]);
    jpeg_destroy_decompress(&worker.jpeg);
  }
  free(worker.cut.data);
  free(worker.pixels);
  free(worker.blended);
  free(worker.columns);
  free(worker.weights);
  free(worker.scratch.at);
  free(worker.png.pixels);
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
             "    accurate_dct=False) -> list[tuple[int, str]]\n\n"
             "Decodes a part of each image, resized, into a batch; other Python threads go on meanwhile.\n\n"
             "Args:\n    images: a list of bytes or memoryviews: JPEGs, and PNGs if DECODES_PNG is 1.\n"
             "    parts: int32 [n, 4], contiguous: top, left, height, width.\n"
             "    flips: uint8 or bool [n], contiguous: whether to mirror the image.\n"
             "    out: uint8 [n, height, width, 3], contiguous; RGB is written to it.\n"
             "    threads: at least 1.\n"
             "    points: a list of bytes or memoryviews: the entry points of each image, empty where it has none.\n"
             "    frames: float64 [n, 4], contiguous: top, row step, left, column step. Row y of an image is the part's\n"
             "        row top + (y + 0.5) * row step, in pixels of the image, of which a filter takes those around it.\n"
             "        None resizes the whole part bilinearly, from the four nearest pixels.\n"
             "    filter: with frames: 1 bilinear, 2 bicubic.\n"
             "    antialias: with frames: whether the filter is as wide as a pixel of a reduced image.\n"
             "    accurate_dct: whether blocks are decoded by libjpeg's accurate method; else by its fast one.\n\n"
             "Returns:\n    Those that cannot be decoded, by index, and why; their place in `out` is not written.");

static PyObject *decode(PyObject *module, PyObject *arguments) {
  PyObject *images, *points = NULL, *failures = NULL;
  Py_buffer parts = {0}, flips = {0}, out = {0}, frames = {0};
  Batch batch = {.filter = FILTER_BILINEAR};
  Py_ssize_t num_points = 0;
  int num_threads, is_accurate = 0;
  PyObject *parts_object, *flips_object, *out_object, *frames_object = Py_None;
  if (!PyArg_ParseTuple(arguments, "O!OOOi|O!Oipp:decode", &PyList_Type, &images, &parts_object, &flips_object,
                        &out_object, &num_threads, &PyList_Type, &points, &frames_object, &batch.filter,
                        &batch.is_antialiased, &is_accurate))
    return NULL;
  Py_ssize_t count = PyList_GET_SIZE(images);
  if (PyObject_GetBuffer(parts_object, &parts, PyBUF_ND) || PyObject_GetBuffer(flips_object, &flips, PyBUF_ND) ||
      PyObject_GetBuffer(out_object, &out, PyBUF_ND | PyBUF_WRITABLE) ||
      (frames_object != Py_None && PyObject_GetBuffer(frames_object, &frames, PyBUF_ND)))
    goto done;
  int is_fitting = out.ndim == 4 && out.itemsize == 1 && out.shape[0] == count && out.shape[3] == 3 &&
                   out.shape[1] > 0 && out.shape[2] > 0 && out.shape[1] < 1 << 15 && out.shape[2] < 1 << 15 &&
                   parts.len == count * (Py_ssize_t)sizeof(Part) && parts.itemsize == 4 && flips.len == count &&
                   (!points || PyList_GET_SIZE(points) == count);
  if (!is_fitting) {
    PyErr_SetString(PyExc_ValueError, "images, parts, flips, out and points do not fit each other");
    goto done;
  }
  if (frames.obj && (frames.len != count * (Py_ssize_t)sizeof(Frame) || frames.itemsize != 8)) {
    PyErr_SetString(PyExc_ValueError, "images and frames do not fit each other");
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
  while (batch.count < count) {
    PyObject *image = PyList_GetItem(images, batch.count);
    if (PyObject_GetBuffer(image, &batch.images[batch.count], PyBUF_SIMPLE)) goto done;
    batch.count++;
  }
  for (; points && num_points < count; num_points++)
    if (PyObject_GetBuffer(PyList_GetItem(points, num_points), &batch.points[num_points], PyBUF_SIMPLE)) goto done;
  batch.parts = parts.buf;
  batch.frames = frames.buf;
  batch.dct_method = is_accurate ? JDCT_ISLOW : JDCT_IFAST;  // TensorFlow's default is the fast one
  batch.flips = flips.buf;
  batch.out = out.buf;
  batch.height = (int)out.shape[1];
  batch.width = (int)out.shape[2];
  batch.resize_row = best_resize_row();
  Py_BEGIN_ALLOW_THREADS;
  decode_all(&batch, num_threads);
  Py_END_ALLOW_THREADS;
  failures = failures_of(&batch);

done:
  for (Py_ssize_t i = 0; i < batch.count; i++) PyBuffer_Release(&batch.images[i]);
  for (Py_ssize_t i = 0; i < num_points; i++) PyBuffer_Release(&batch.points[i]);
  PyMem_Free(batch.images);
  PyMem_Free(batch.points);
  PyMem_Free(batch.failures);
  PyBuffer_Release(&parts);
  PyBuffer_Release(&flips);
  PyBuffer_Release(&out);
  PyBuffer_Release(&frames);
  return failures;
}

// A JPEG that is decoded as it is: only one whose pixels do not depend on how colors are converted.
static int begin_whole(Worker *worker, const Py_buffer *data) {
  struct jpeg_decompress_struct *jpeg = &worker->jpeg;
  if (setjmp(worker->on_error)) return 0;
  jpeg_create_decompress(jpeg);
  jpeg_mem_src(jpeg, data->buf, data->len);
  jpeg_read_header(jpeg, TRUE);
  int is_color = jpeg->num_components == 3 &&
                 (jpeg->jpeg_color_space == JCS_YCbCr || jpeg->jpeg_color_space == JCS_RGB);
  int is_gray = jpeg->num_components == 1 && jpeg->jpeg_color_space == JCS_GRAYSCALE;
  return jpeg->data_precision == 8 && (is_color || is_gray);
}

static int read_whole(Worker *worker, uint8_t *out) {
  struct jpeg_decompress_struct *jpeg = &worker->jpeg;
  if (setjmp(worker->on_error)) return 0;
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

PyDoc_STRVAR(decode_whole_doc,
             "decode_whole(image, max_pixels) -> tuple[bytearray, int, int] | None\n\n"
             "Decodes a whole JPEG with libjpeg's accurate method; other Python threads go on meanwhile.\n\n"
             "Args:\n    image: bytes or a memoryview.\n    max_pixels: of an image that is decoded.\n\n"
             "Returns:\n    uint8 [height * width * 3], RGB; height; width. None for all but JPEGs of 8 bits in gray, YCbCr\n"
             "    or RGB of which libjpeg warns nothing.");

static PyObject *decode_whole(PyObject *module, PyObject *arguments) {
  Py_buffer data;
  long long max_pixels;
  if (!PyArg_ParseTuple(arguments, "y*L:decode_whole", &data, &max_pixels)) return NULL;
  PyObject *result = NULL, *pixels = NULL;
  char unused[JMSG_LENGTH_MAX];
  Worker *worker = PyMem_Calloc(1, sizeof *worker);
  if (!worker) {
    PyBuffer_Release(&data);
    return PyErr_NoMemory();
  }
  prepare_worker(worker);
  worker->failure = unused;
  worker->refuses_warnings = 1;
  int is_done = begin_whole(worker, &data);
  long long height = worker->jpeg.image_height, width = worker->jpeg.image_width;
  is_done = is_done && height * width <= max_pixels;
  if (is_done) pixels = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(height * width * 3));
  if (pixels) {
    uint8_t *out = (uint8_t *)PyByteArray_AS_STRING(pixels);
    Py_BEGIN_ALLOW_THREADS;
    is_done = read_whole(worker, out);
    Py_END_ALLOW_THREADS;
  }
  jpeg_destroy_decompress(&worker->jpeg);
  PyMem_Free(worker);
  PyBuffer_Release(&data);
  if (!is_done)
    result = Py_NewRef(Py_None);
  else if (pixels)
    result = Py_BuildValue("(OLL)", pixels, height, width);
  Py_XDECREF(pixels);
  return result;
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

static PyMethodDef methods[] = {
    {"find_features", find_features, METH_VARARGS, find_features_doc},
    {"read_record", read_record, METH_VARARGS, read_record_doc},
    {"decode", decode, METH_VARARGS, decode_doc},
    {"decode_whole", decode_whole, METH_VARARGS, decode_whole_doc},
    {"find_entry_points", find_points, METH_O, find_entry_points_doc},
    {"cut", cut, METH_VARARGS, cut_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Features in records, and pictures of JPEGs, in C.", 0, methods,
};

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && PyModule_AddStringConstant(module, "LIBRARY", "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION)))
    Py_CLEAR(module);
  PyObject *png = module ? PyImport_ImportModule("imagebeam._png") : NULL;
  if (png) decode_png = (DecodePng *)PyCapsule_Import(PNG_DECODER, 0);
  Py_XDECREF(png);
  if (module && !decode_png) PyErr_Clear();
  if (module && PyModule_AddIntConstant(module, "DECODES_PNG", decode_png != NULL)) Py_CLEAR(module);
  return module;
}
