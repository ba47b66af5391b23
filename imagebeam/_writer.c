// The inner loops of the converter's writer in C: they read a file, check a JPEG, and make a record.
//
// Python code beside each caller does the same. Here only the usual case is handled: whatever is odd about a file or an
// image is left to the Python code, which alone words the errors.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#if defined(__x86_64__) && defined(__GNUC__)  // Clang defines __GNUC__ too
#include <immintrin.h>
#define HAS_X86_CODE
#endif

// --- files ----------------------------------------------------------------------------------------------------------

PyDoc_STRVAR(read_file_doc,
             "read_file(path: str, size: int, version: int) -> bytes | None\n\n"
             "Returns the bytes of a file; other Python threads go on meanwhile. Returns None if it cannot be read,\n"
             "is no plain file, has another size, or was changed at another time than `version`, in ns since the\n"
             "epoch (0 allows any).");

static int64_t change_time(const struct stat *status) {
#ifdef __APPLE__
  return status->st_mtimespec.tv_sec * INT64_C(1000000000) + status->st_mtimespec.tv_nsec;
#else
  return status->st_mtim.tv_sec * INT64_C(1000000000) + status->st_mtim.tv_nsec;
#endif
}

// Returns whether the file holds exactly `size` bytes, of this version. One byte more is asked for, to see that it ends.
static int read_exactly(const char *path, uint8_t *bytes, Py_ssize_t size, int64_t version) {
  struct stat status;
  uint8_t next;
  struct iovec parts[] = {{bytes, size}, {&next, 1}};
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // opening a pipe must not block
  if (file < 0) return 0;
  int is_expected = !fstat(file, &status) && S_ISREG(status.st_mode) && status.st_size == size &&
                    (!version || change_time(&status) == version) && readv(file, parts, 2) == size;
  close(file);
  return is_expected;
}

static PyObject *read_file(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
  PyObject *path;
  if (count != 3) return PyErr_Format(PyExc_TypeError, "read_file takes 3 arguments, %zd were given", count);
  Py_ssize_t size = PyLong_AsSsize_t(arguments[1]);
  long long version = PyLong_AsLongLong(arguments[2]);
  if (PyErr_Occurred() || !PyUnicode_FSConverter(arguments[0], &path)) return NULL;
  PyObject *data = size < 0 ? NULL : PyBytes_FromStringAndSize(NULL, size);
  if (data) {
    int is_read;
    Py_BEGIN_ALLOW_THREADS;
    is_read = read_exactly(PyBytes_AS_STRING(path), (uint8_t *)PyBytes_AS_STRING(data), size, version);
    Py_END_ALLOW_THREADS;
    if (!is_read) Py_CLEAR(data);
  }
  Py_DECREF(path);
  if (PyErr_Occurred()) return NULL;
  return data ? data : Py_NewRef(Py_None);
}

PyDoc_STRVAR(read_part_doc,
             "read_part(descriptor: int, offset: int, length: int, version: int) -> bytes | None\n\n"
             "Returns a part of an open file; other Python threads go on meanwhile. Returns None if it cannot be read,\n"
             "the file ends before, or it was changed at another time than `version`, in ns since the epoch (0 allows\n"
             "any).");

static PyObject *read_part(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "read_part takes 4 arguments, %zd were given", count);
  int descriptor = (int)PyLong_AsLong(arguments[0]), is_read;
  long long offset = PyLong_AsLongLong(arguments[1]), version = PyLong_AsLongLong(arguments[3]);
  Py_ssize_t length = PyLong_AsSsize_t(arguments[2]);
  if (PyErr_Occurred()) return NULL;
  if (offset < 0 || length < 0) Py_RETURN_NONE;
  PyObject *data = PyBytes_FromStringAndSize(NULL, length);
  if (!data) return NULL;
  struct stat status;
  Py_BEGIN_ALLOW_THREADS;
  is_read = (!version || (!fstat(descriptor, &status) && change_time(&status) == version)) &&
            pread(descriptor, PyBytes_AS_STRING(data), length, offset) == length;
  Py_END_ALLOW_THREADS;
  if (is_read) return data;
  Py_DECREF(data);
  Py_RETURN_NONE;
}

// --- markers --------------------------------------------------------------------------------------------------------

// Returns the next marker: skips restart markers, fill bytes, and stuffed 0xFF in entropy-coded data.
static const uint8_t *next_marker_plain(const uint8_t *at, const uint8_t *end) {
  while (at < end && (at = memchr(at, 0xFF, end - at)) && at + 1 < end) {
    uint8_t code = at[1];
    if (code == 0xFF)
      at++;
    else if (code == 0 || (code >= 0xD0 && code <= 0xD7))
      at += 2;
    else
      return at;
  }
  return NULL;
}

#ifdef HAS_X86_CODE
#define AVX2 __attribute__((target("avx2")))

// The same, 32 bytes at a time: a JPEG has a 0xFF in every 260 bytes, and each call of memchr costs 20 ns.
AVX2 static const uint8_t *next_marker_avx2(const uint8_t *at, const uint8_t *end) {
  const __m256i all_ones = _mm256_set1_epi8(-1), zero = _mm256_setzero_si256();
  const __m256i restart = _mm256_set1_epi8((char)0xD0), upper_five = _mm256_set1_epi8((char)0xF8);
  for (; end - at > 32; at += 32) {
    __m256i here = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)at), all_ones);
    if (_mm256_testz_si256(here, here)) continue;
    __m256i next = _mm256_loadu_si256((const __m256i *)(at + 1));
    __m256i is_none = _mm256_or_si256(_mm256_cmpeq_epi8(next, zero), _mm256_cmpeq_epi8(next, all_ones));
    is_none = _mm256_or_si256(is_none, _mm256_cmpeq_epi8(_mm256_and_si256(next, upper_five), restart));
    uint32_t found = _mm256_movemask_epi8(_mm256_andnot_si256(is_none, here));
    if (found) return at + __builtin_ctz(found);
  }
  return next_marker_plain(at, end);
}
#endif

static const uint8_t *(*next_marker)(const uint8_t *, const uint8_t *) = next_marker_plain;

PyDoc_STRVAR(find_marker_doc,
             "find_marker(data: bytes, position: int) -> int\n\n"
             "Returns the position of the next marker of a JPEG; -1 if there is none. Skips restart markers, fill\n"
             "bytes, and stuffed 0xFF in entropy-coded data.");

static PyObject *find_marker(PyObject *module, PyObject *arguments) {
  PyObject *data;
  Py_ssize_t position;
  if (!PyArg_ParseTuple(arguments, "Sn:find_marker", &data, &position)) return NULL;
  const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(data), *end = start + PyBytes_GET_SIZE(data);
  position = position < 0 ? 0 : position;
  const uint8_t *found = position < end - start ? next_marker(start + position, end) : NULL;
  return PyLong_FromSsize_t(found ? found - start : -1);
}

// --- structure of a JPEG --------------------------------------------------------------------------------------------

enum { SOF0 = 0xC0, SOF1, SOF2, DHT = 0xC4, SOF9 = 0xC9, SOF10, DAC = 0xCC, EOI = 0xD9, SOS, DQT, DNL, DRI };
enum { APP0 = 0xE0, APP1, APP15 = 0xEF, COM = 0xFE };
enum { MAX_SIDE = 65500, MAX_SCANS = 200, MAX_COMPONENTS = 4, EXIF_BYTES = 6 };
enum { MAX_VALUES = (1 << 29) - 1 };  // height * width * components
// Bits of Huffman tables: 0 to 3 for DC, 16 to 19 for AC. The standard tables are 0 and 1 of both.
enum { AC = 16, STANDARD_TABLES = 3 | 3 << AC };

typedef struct {
  int code, height, width, num_components;  // code 0: no frame header yet
  const uint8_t *components;                // 3 bytes each: number, sampling factors, quantization table
  uint32_t quantization, huffman;           // the tables so far, one bit each
  Py_ssize_t exif, exif_end;                // 0: none
} Jpeg;

static int number_at(const uint8_t *at) { return at[0] << 8 | at[1]; }

// `at` is the length of the segment. Like the next ones, returns 0 if something is wrong, or rare.
static int take_frame(Jpeg *jpeg, int code, const uint8_t *at, int length) {
  if (jpeg->code || length < 8 || length != 8 + 3 * at[7] || at[2] != 8) return 0;
  int64_t height = number_at(at + 3), width = number_at(at + 5), components = at[7];
  if (components != 1 && components != 3 && components != 4) return 0;
  if (!height || !width || height > MAX_SIDE || width > MAX_SIDE || height * width * components > MAX_VALUES) return 0;
  jpeg->code = code;
  jpeg->height = (int)height;
  jpeg->width = (int)width;
  jpeg->num_components = (int)components;
  jpeg->components = at + 8;
  return 1;
}

static int take_tables(Jpeg *jpeg, int code, const uint8_t *at, const uint8_t *end) {
  while (at < end) {
    int number = *at & 15, kind = *at >> 4;
    if (number > 3 || kind > 1) return 0;
    if (code == DQT) {
      jpeg->quantization |= 1u << number;
      at += kind ? 129 : 65;
    } else {
      if (end - at < 17) return 0;
      int num_codes = 0;
      for (int i = 1; i < 17; i++) num_codes += at[i];
      jpeg->huffman |= 1u << (AC * kind + number);
      at += 17 + num_codes;
    }
  }
  return at == end;
}

// Returns whether all that the scan needs is there. `at` is the length of the segment.
static int has_needed(const Jpeg *jpeg, const uint8_t *at, int length) {
  int num_in_scan = at[2], is_sequential = jpeg->code == SOF0 || jpeg->code == SOF1;
  int needs_dc = is_sequential, needs_ac = is_sequential, used = 0;
  uint32_t huffman = jpeg->huffman | (is_sequential ? STANDARD_TABLES : 0);
  if (jpeg->code == SOF2) {
    needs_ac = at[length - 3] > 0;
    needs_dc = !needs_ac && !(at[length - 1] >> 4);
  }
  for (int i = 0; i < num_in_scan; i++) {
    const uint8_t *in_scan = at + 3 + 2 * i;
    int component = 0, dc = in_scan[1] >> 4, ac = in_scan[1] & 15;
    while (component < jpeg->num_components &&
           (used >> component & 1 || jpeg->components[3 * component] != in_scan[0]))
      component++;
    if (component == jpeg->num_components) return 0;
    used |= 1 << component;
    int table = jpeg->components[3 * component + 2];
    if (table > 3 || !(jpeg->quantization >> table & 1)) return 0;
    if (needs_dc && !(huffman >> dc & 1)) return 0;
    if (needs_ac && !(huffman >> (AC + ac) & 1)) return 0;
  }
  return 1;
}

// Returns whether this is a whole JPEG of the usual kind, as `jpeg_structure.check_jpeg` finds it.
static int is_plain_jpeg(Jpeg *jpeg, const uint8_t *start, const uint8_t *end) {
  const uint8_t *position = start + 2, *marker;
  int has_scan = 0, num_scans = 0, may_skip = 0;
  if (end - start < 4 || start[0] != 0xFF || start[1] != 0xD8) return 0;
  while ((marker = next_marker(position, end))) {
    int code = marker[1];
    if (marker != position && !may_skip)
      for (const uint8_t *at = position; at < marker; at++)
        if (*at != 0xFF) return 0;  // a stray byte
    if (code == EOI) return has_scan;
    const uint8_t *at = marker + 2;
    if (end - at < 2) return 0;
    int length = number_at(at);
    if (length < 2 || length > end - at) return 0;
    may_skip = 0;
    if ((code >= APP0 && code <= APP15) || code == COM) {
      may_skip = !has_scan;
      if (code == APP1 && length >= 2 + EXIF_BYTES && !memcmp(at + 2, "Exif\0", EXIF_BYTES)) {
        if (jpeg->exif) return 0;
        jpeg->exif = at + 2 + EXIF_BYTES - start;
        jpeg->exif_end = at + length - start;
      }
    } else if (code == SOS) {
      if (!jpeg->code || length < 8 || length > 14 || length != 6 + 2 * at[2] || !has_needed(jpeg, at, length)) return 0;
      if (++num_scans > MAX_SCANS) return 0;
      has_scan = may_skip = 1;
    } else if (code == DHT || code == DQT) {
      if (!take_tables(jpeg, code, at + 2, at + length)) return 0;
    } else if (code == SOF0 || code == SOF1 || code == SOF2 || code == SOF9 || code == SOF10) {
      if (!take_frame(jpeg, code, at, length)) return 0;
    } else if (code != DAC && code != DNL && code != DRI) {
      return 0;
    }
    position = at + length;
  }
  return 0;
}

PyDoc_STRVAR(check_jpeg_doc,
             "check_jpeg(data: bytes) -> tuple[int, int, int, int, int] | None\n\n"
             "Returns height, width and number of components of a JPEG whose segments, tables and scans are all\n"
             "there, and the offsets where its EXIF data begin and end (0 and 0 without any). Returns None if\n"
             "something is wrong, or so rare that it is left to the caller.");

static PyObject *check_jpeg(PyObject *module, PyObject *data) {
  Jpeg jpeg = {0};
  if (!PyBytes_Check(data)) return PyErr_Format(PyExc_TypeError, "check_jpeg takes bytes");
  const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(data);
  if (!is_plain_jpeg(&jpeg, start, start + PyBytes_GET_SIZE(data))) Py_RETURN_NONE;
  return Py_BuildValue("(iiinn)", jpeg.height, jpeg.width, jpeg.num_components, jpeg.exif, jpeg.exif_end);
}

// --- examples -------------------------------------------------------------------------------------------------------

enum { MAX_PIECES = 128, BYTES_LIST = 0x0A, IN_MAP = 0x0A, VALUE = 0x12 };

static int varint_size(uint64_t value) {
  int size = 1;
  while (value >>= 7) size++;
  return size;
}

static uint8_t *put_varint(uint8_t *at, uint64_t value) {
  for (; value > 0x7F; value >>= 7) *at++ = (uint8_t)(value | 0x80);
  *at++ = (uint8_t)value;
  return at;
}

static uint8_t *put_field(uint8_t *at, int tag, uint64_t size) {
  *at++ = (uint8_t)tag;
  return put_varint(at, size);
}

// Finds the next pieces of the example: bytes with what precedes them, or the entry of a number. Returns how many there
// are; 0 if they were not met before, and -1 if looking fails.
static int find_pieces(PyObject *feature, PyObject *values, PyObject **pieces) {
  PyObject *entries = PyTuple_GET_ITEM(feature, 3), *heads = PyTuple_GET_ITEM(feature, 4), *length;
  PyObject *value = PyDict_GetItemWithError(values, PyTuple_GET_ITEM(feature, 0));
  if (!value) return PyErr_Occurred() ? -1 : 0;
  if (PyDict_Check(heads)) {
    if (!PyBytes_Check(value) || !(length = PyLong_FromSsize_t(PyBytes_GET_SIZE(value)))) return PyErr_Occurred() ? -1 : 0;
    pieces[0] = PyDict_GetItemWithError(heads, length);
    pieces[1] = value;
    Py_DECREF(length);
    return pieces[0] ? 2 : PyErr_Occurred() ? -1 : 0;
  }
  if (!PyDict_Check(entries)) return 0;
  pieces[0] = PyDict_GetItemWithError(entries, value);
  return pieces[0] ? 1 : PyErr_Occurred() ? -1 : 0;
}

PyDoc_STRVAR(encode_prefix_doc,
             "encode_prefix(plain: list, values: dict, key: bytes, tag: int, size: int) -> bytes | None\n\n"
             "Returns all bytes of an Example before its image of `size` bytes, from what `ExampleEncoder` has cached\n"
             "of its features. Returns None if a part is not cached, or there are many features.\n\n"
             "Args:\n    plain: the features of an ExampleEncoder.\n    values: by their sources.\n"
             "    key: the encoded key of the image.\n    tag: of the list in the image's Feature.\n"
             "    size: of the image, or of its packed numbers, in bytes.");

static PyObject *encode_prefix(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 5) return PyErr_Format(PyExc_TypeError, "encode_prefix takes 5 arguments, %zd were given", count);
  PyObject *plain = arguments[0], *values = arguments[1], *key = arguments[2], *pieces[MAX_PIECES];
  if (!PyList_Check(plain) || !PyDict_Check(values) || !PyBytes_Check(key))
    return PyErr_Format(PyExc_TypeError, "encode_prefix takes a list, a dict and bytes first");
  int tag = (int)PyLong_AsLong(arguments[3]), num_pieces = 0;
  Py_ssize_t size = PyLong_AsSsize_t(arguments[4]);
  if (PyErr_Occurred()) return NULL;
  if (size < 0) Py_RETURN_NONE;
  uint64_t in_entries = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(plain); i++) {
    PyObject *feature = PyList_GET_ITEM(plain, i);
    if (num_pieces > MAX_PIECES - 2 || !PyTuple_Check(feature) || PyTuple_GET_SIZE(feature) != 5) Py_RETURN_NONE;
    int found = find_pieces(feature, values, pieces + num_pieces);
    if (found < 0) return NULL;
    if (!found) Py_RETURN_NONE;
    for (; found; found--, num_pieces++) {
      if (!PyBytes_Check(pieces[num_pieces])) Py_RETURN_NONE;
      in_entries += PyBytes_GET_SIZE(pieces[num_pieces]);
    }
  }
  // From the inside to the outside: the list of values, the Feature, the entry of the map, and the map.
  uint64_t in_list = 1 + varint_size(size) + (uint64_t)size;
  uint64_t in_feature = 1 + varint_size(in_list) + in_list;
  uint64_t in_entry = PyBytes_GET_SIZE(key) + 1 + varint_size(in_feature) + in_feature;
  uint64_t in_map = in_entries + 1 + varint_size(in_entry) + in_entry;
  Py_ssize_t before = 1 + varint_size(in_map) + (Py_ssize_t)(in_map - size);
  PyObject *prefix = PyBytes_FromStringAndSize(NULL, before);
  if (!prefix) return NULL;
  uint8_t *at = put_field((uint8_t *)PyBytes_AS_STRING(prefix), IN_MAP, in_map);
  for (int i = 0; i < num_pieces; i++) {
    memcpy(at, PyBytes_AS_STRING(pieces[i]), PyBytes_GET_SIZE(pieces[i]));
    at += PyBytes_GET_SIZE(pieces[i]);
  }
  at = put_field(at, IN_MAP, in_entry);
  memcpy(at, PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key));
  at = put_field(at + PyBytes_GET_SIZE(key), VALUE, in_feature);
  at = put_field(at, tag, in_list);
  put_field(at, BYTES_LIST, size);
  return prefix;
}

// --- records --------------------------------------------------------------------------------------------------------

// crc32c, reflected, without the inversion before and after. Source: RFC 3720, appendix B.4; the three streams and the
// matrices of zeros as in Mark Adler's crc32c.c, https://stackoverflow.com/a/17646775.
#ifdef HAS_X86_CODE
#define SSE42 __attribute__((target("sse4.2")))

enum { POLYNOMIAL = 0x82F63B78, NUM_POWERS = 48, LONG_LOG = 13, MIDDLE_LOG = 10, SHORT_LOG = 7 };

// What 2**power bytes of zeros make of each bit of a checksum.
static uint32_t zeros[NUM_POWERS][32];

static uint32_t multiply(const uint32_t *matrix, uint32_t bits) {
  uint32_t product = 0;
  for (int i = 0; i < 32; i++) product ^= matrix[i] & (0u - (bits >> i & 1));
  return product;
}

static void make_zeros(void) {
  uint32_t power[32], square[32];
  power[0] = POLYNOMIAL;  // one bit of zeros
  for (int i = 1; i < 32; i++) power[i] = 1u << (i - 1);
  for (int doubling = 0; doubling < 3 + NUM_POWERS; doubling++) {
    if (doubling >= 3) memcpy(zeros[doubling - 3], power, sizeof power);
    for (int i = 0; i < 32; i++) square[i] = multiply(power, power[i]);
    memcpy(power, square, sizeof power);
  }
}

// The checksum of A followed by B, from the checksums of both.
static uint32_t join(uint32_t of_a, uint32_t of_b, uint64_t length_of_b) {
  for (int power = 0; length_of_b; power++, length_of_b >>= 1)
    if (length_of_b & 1) of_a = multiply(zeros[power], of_a);
  return of_a ^ of_b;
}

// Three streams at once, since the instruction takes three cycles and a new one can begin in each.
SSE42 static uint64_t extend_thrice(uint64_t crc, const uint8_t *at, int log_length) {
  size_t length = (size_t)1 << log_length;
  uint64_t second = 0, third = 0, word;
  for (const uint8_t *end = at + length; at < end; at += 8) {
    memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
    memcpy(&word, at + length, 8);
    second = _mm_crc32_u64(second, word);
    memcpy(&word, at + 2 * length, 8);
    third = _mm_crc32_u64(third, word);
  }
  return multiply(zeros[log_length], multiply(zeros[log_length], (uint32_t)crc) ^ (uint32_t)second) ^ third;
}

SSE42 static uint32_t extend(uint32_t crc32c, const uint8_t *at, size_t length) {
  uint64_t crc = ~crc32c, word;
  for (int log = LONG_LOG; log >= SHORT_LOG; log -= LONG_LOG - MIDDLE_LOG)
    for (size_t block = (size_t)3 << log; length >= block; at += block, length -= block)
      crc = extend_thrice(crc, at, log);
  for (; length >= 8; at += 8, length -= 8) {
    memcpy(&word, at, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  while (length--) crc = _mm_crc32_u8((uint32_t)crc, *at++);
  return ~(uint32_t)crc;
}

PyDoc_STRVAR(extend_crc_doc,
             "extend_crc(crc32c: int, data) -> int\n\n"
             "Returns the crc32c of the bytes before, whose crc32c is given, and of a contiguous buffer; other\n"
             "Python threads go on meanwhile.");

static PyObject *extend_crc(PyObject *module, PyObject *arguments) {
  unsigned int crc;
  Py_buffer data;
  if (!PyArg_ParseTuple(arguments, "Iy*:extend_crc", &crc, &data)) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  crc = extend(crc, data.buf, data.len);
  Py_END_ALLOW_THREADS;
  PyBuffer_Release(&data);
  return PyLong_FromUnsignedLong(crc);
}

static uint8_t *put_masked(uint8_t *at, uint32_t crc) {
  uint32_t masked = (crc >> 15 | crc << 17) + 0xA282EAD8;
  memcpy(at, &masked, 4);
  return at + 4;
}

PyDoc_STRVAR(put_record_doc,
             "put_record(buffer, position: int, prefix: bytes, payload: bytes, crc32c: int) -> int\n\n"
             "Puts a TFRecord of the bytes of `prefix` and `payload`, with its frame of 16 bytes, into a buffer.\n\n"
             "Returns:\n    The crc32c of the bytes before, which is given, and of the record. It is computed from the\n"
             "    arguments: it shows whether the bytes in the buffer are right.\n\n"
             "Raises:\n    ValueError: if the buffer has no room for the record.");

static PyObject *put_record(PyObject *module, PyObject *arguments) {
  Py_buffer buffer;
  Py_ssize_t position;
  PyObject *prefix, *payload;
  unsigned int crc;
  if (!PyArg_ParseTuple(arguments, "w*nSSI:put_record", &buffer, &position, &prefix, &payload, &crc)) return NULL;
  Py_ssize_t prefix_size = PyBytes_GET_SIZE(prefix), payload_size = PyBytes_GET_SIZE(payload);
  uint64_t length = (uint64_t)prefix_size + (uint64_t)payload_size;
  int has_room = position >= 0 && position <= buffer.len && length + 16 <= (uint64_t)(buffer.len - position);
  if (has_room) {
    uint8_t *start = (uint8_t *)buffer.buf + position, *at = start;
    const uint8_t *image = (const uint8_t *)PyBytes_AS_STRING(payload);
    memcpy(at, &length, 8);
    at = put_masked(at + 8, extend(0, at, 8));
    crc = extend(crc, start, 12);
    uint32_t of_record = extend(0, (const uint8_t *)PyBytes_AS_STRING(prefix), prefix_size);
    memcpy(at, PyBytes_AS_STRING(prefix), prefix_size);
    of_record = extend(of_record, image, payload_size);
    memcpy(at + prefix_size, image, payload_size);
    put_masked(at + length, of_record);
    crc = extend(join(crc, of_record, length), at + length, 4);
  } else {
    PyErr_Format(PyExc_ValueError, "a record of %llu bytes has no room at byte %zd of %zd",
                 (unsigned long long)length + 16, position, buffer.len);
  }
  PyBuffer_Release(&buffer);
  return has_room ? PyLong_FromUnsignedLong(crc) : NULL;
}

static PyMethodDef checksum_methods[] = {
    {"extend_crc", extend_crc, METH_VARARGS, extend_crc_doc},
    {"put_record", put_record, METH_VARARGS, put_record_doc},
    {NULL, NULL, 0, NULL},
};
#endif

static PyMethodDef methods[] = {
    {"read_file", (PyCFunction)(void (*)(void))read_file, METH_FASTCALL, read_file_doc},
    {"read_part", (PyCFunction)(void (*)(void))read_part, METH_FASTCALL, read_part_doc},
    {"find_marker", find_marker, METH_VARARGS, find_marker_doc},
    {"encode_prefix", (PyCFunction)(void (*)(void))encode_prefix, METH_FASTCALL, encode_prefix_doc},
    {"check_jpeg", check_jpeg, METH_O, check_jpeg_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_writer", "Reads files, checks JPEGs and puts records into buffers, in C.", 0, methods,
};

PyMODINIT_FUNC PyInit__writer(void) {
  PyObject *module = PyModule_Create(&definition);
#ifdef HAS_X86_CODE
  if (__builtin_cpu_supports("avx2") && !getenv("IMAGEBEAM_NO_AVX2")) next_marker = next_marker_avx2;  // for tests
  make_zeros();
  // A processor without the instruction has none of these functions: google-crc32c knows further ways.
  if (module && __builtin_cpu_supports("sse4.2") && PyModule_AddFunctions(module, checksum_methods)) Py_CLEAR(module);
#endif
  return module;
}
