// The inner loops of the converter's writer in C: they read a file, check a JPEG, and make a record.
//
// Python code beside each caller does the same, but for resizing. Here only the usual case is handled: whatever is odd about a file or an
// image is left to the Python code, which alone words the errors.

#include "writer_methods.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "crc32c.h"
#include "jpeg_structure.h"

#ifdef HAVE_JPEG
#include <jconfig.h>
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#endif

// --- files ----------------------------------------------------------------------------------------------------------

// read_file(path: str, size: int, version: int) -> bytes | None
//
// Returns the bytes of a file; other Python threads go on meanwhile. Returns None if it cannot be read, is no plain
// file, has another size, or was changed at another time than `version`, in ns since the epoch (0 allows any).
#ifdef __APPLE__
#define st_mtim st_mtimespec
#endif

static int64_t change_time(const struct stat *status) {
  return status->st_mtim.tv_sec * INT64_C(1000000000) + status->st_mtim.tv_nsec;
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

// read_part(descriptor: int, offset: int, length: int, version: int) -> bytes | None
//
// Returns a part of an open file; other Python threads go on meanwhile. Returns None if it cannot be read, the file
// ends before, or it was changed at another time than `version`, in ns since the epoch (0 allows any).
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

// --- JPEGs ----------------------------------------------------------------------------------------------------------

// find_marker(data: bytes, position: int) -> int
//
// Returns the position of the next marker of a JPEG; -1 if there is none. Skips restart markers, fill bytes, and
// stuffed 0xFF in entropy-coded data.
static PyObject *find_marker(PyObject *module, PyObject *arguments) {
  PyObject *data;
  Py_ssize_t position;
  if (!PyArg_ParseTuple(arguments, "Sn:find_marker", &data, &position)) return NULL;
  const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(data), *end = start + PyBytes_GET_SIZE(data);
  position = position < 0 ? 0 : position;
  const uint8_t *found = position < end - start ? next_marker(start + position, end) : NULL;
  return PyLong_FromSsize_t(found ? found - start : -1);
}

// check_jpeg(data: bytes) -> tuple[int, int, int, int, int] | None
//
// Returns height, width and number of components of a JPEG whose segments, tables and scans are all there, and the
// offsets where its EXIF data begin and end (0 and 0 without any). Returns None if something is wrong, or so rare that
// it is left to the caller.
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

// All of an Example before its image.
typedef struct {
  PyObject *pieces[MAX_PIECES];  // bytes of the other features, borrowed from what ExampleEncoder has cached
  int num_pieces;
  PyObject *key;  // of the image, encoded
  int tag;        // of the list in its Feature
  uint64_t size, in_list, in_feature, in_entry, in_map;  // bytes of the image, and of what encloses it
} Prefix;

// Returns the number of bytes; 0 if a part is not cached, or there are many features, and -1 if looking fails.
static Py_ssize_t find_prefix(Prefix *prefix, PyObject *plain, PyObject *values) {
  uint64_t in_entries = 0;
  prefix->num_pieces = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(plain); i++) {
    PyObject *feature = PyList_GET_ITEM(plain, i), **pieces = prefix->pieces + prefix->num_pieces;
    if (prefix->num_pieces > MAX_PIECES - 2 || !PyTuple_Check(feature) || PyTuple_GET_SIZE(feature) != 5) return 0;
    int found = find_pieces(feature, values, pieces);
    if (found <= 0) return found;
    for (int j = 0; j < found; j++) {
      if (!PyBytes_Check(pieces[j])) return 0;
      in_entries += PyBytes_GET_SIZE(pieces[j]);
    }
    prefix->num_pieces += found;
  }
  // From the inside to the outside: the list of values, the Feature, the entry of the map, and the map.
  prefix->in_list = 1 + varint_size(prefix->size) + prefix->size;
  prefix->in_feature = 1 + varint_size(prefix->in_list) + prefix->in_list;
  prefix->in_entry = PyBytes_GET_SIZE(prefix->key) + 1 + varint_size(prefix->in_feature) + prefix->in_feature;
  prefix->in_map = in_entries + 1 + varint_size(prefix->in_entry) + prefix->in_entry;
  return 1 + varint_size(prefix->in_map) + (Py_ssize_t)(prefix->in_map - prefix->size);
}

static uint8_t *put_bytes(uint8_t *at, PyObject *bytes) {
  memcpy(at, PyBytes_AS_STRING(bytes), PyBytes_GET_SIZE(bytes));
  return at + PyBytes_GET_SIZE(bytes);
}

static void put_prefix(uint8_t *at, const Prefix *prefix) {
  at = put_field(at, IN_MAP, prefix->in_map);
  for (int i = 0; i < prefix->num_pieces; i++) at = put_bytes(at, prefix->pieces[i]);
  at = put_field(at, IN_MAP, prefix->in_entry);
  at = put_field(put_bytes(at, prefix->key), VALUE, prefix->in_feature);
  at = put_field(at, prefix->tag, prefix->in_list);
  put_field(at, BYTES_LIST, prefix->size);
}

// encode_prefix(plain: list, values: dict, key: bytes, tag: int, size: int) -> bytes | None
//
// Returns all bytes of an Example before its image of `size` bytes, from what `ExampleEncoder` has cached of its
// features. Returns None if a part is not cached, or there are many features.
//
// Args:
//     plain: the features of an ExampleEncoder.
//     values: by their sources.
//     key: the encoded key of the image.
//     tag: of the list in the image's Feature.
//     size: of the image, or of its packed numbers, in bytes.
static PyObject *encode_prefix(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 5) return PyErr_Format(PyExc_TypeError, "encode_prefix takes 5 arguments, %zd were given", count);
  PyObject *plain = arguments[0], *values = arguments[1];
  Prefix prefix = {.key = arguments[2], .tag = (int)PyLong_AsLong(arguments[3])};
  if (!PyList_Check(plain) || !PyDict_Check(values) || !PyBytes_Check(prefix.key))
    return PyErr_Format(PyExc_TypeError, "encode_prefix takes a list, a dict and bytes first");
  Py_ssize_t size = PyLong_AsSsize_t(arguments[4]);
  if (PyErr_Occurred()) return NULL;
  if (size < 0) Py_RETURN_NONE;
  prefix.size = size;
  Py_ssize_t before = find_prefix(&prefix, plain, values);
  if (before < 0) return NULL;
  if (!before) Py_RETURN_NONE;
  PyObject *encoded = PyBytes_FromStringAndSize(NULL, before);
  if (encoded) put_prefix((uint8_t *)PyBytes_AS_STRING(encoded), &prefix);
  return encoded;
}

// --- records --------------------------------------------------------------------------------------------------------

enum { FRAME_BYTES = 16, HEADER_BYTES = 12 };

static uint8_t *put_masked(uint8_t *at, uint32_t crc) {
  uint32_t masked = mask_crc32c(crc);
  memcpy(at, &masked, 4);
  return at + 4;
}

// Puts a record at `start`. Its prefix may be there already. The checksums are those of the bytes before they are copied;
// returns that of the bytes before, which is given, and of the record.
static uint32_t put_framed(uint8_t *start, const uint8_t *prefix, uint64_t prefix_size, const uint8_t *payload,
                    uint64_t payload_size, uint32_t crc) {
  uint64_t length = prefix_size + payload_size;
  uint8_t *at = start + HEADER_BYTES;
  memcpy(start, &length, 8);
  put_masked(start + 8, extend_crc32c(0, start, 8));
  crc = extend_crc32c(crc, start, HEADER_BYTES);
  uint32_t of_record = extend_crc32c(0, prefix, prefix_size);
  if (prefix != at) memcpy(at, prefix, prefix_size);
  of_record = extend_crc32c(of_record, payload, payload_size);
  memcpy(at + prefix_size, payload, payload_size);
  put_masked(at + length, of_record);
  return extend_crc32c(join_crc32c(crc, of_record, length), at + length, 4);
}

// extend_crc(crc32c: int, data) -> int
//
// Returns the crc32c of the bytes before, whose crc32c is given, and of a contiguous buffer; other Python threads go on
// meanwhile.
static PyObject *extend_crc(PyObject *module, PyObject *arguments) {
  unsigned int crc;
  Py_buffer data;
  if (!PyArg_ParseTuple(arguments, "Iy*:extend_crc", &crc, &data)) return NULL;
  Py_BEGIN_ALLOW_THREADS;
  crc = extend_crc32c(crc, data.buf, (size_t)data.len);
  Py_END_ALLOW_THREADS;
  PyBuffer_Release(&data);
  return PyLong_FromUnsignedLong(crc);
}

// put_record(buffer, position: int, prefix: bytes, payload: bytes, crc32c: int) -> int
//
// Puts a TFRecord of the bytes of `prefix` and `payload`, with its frame of 16 bytes, into a buffer.
//
// Returns:
//     The crc32c of the bytes before, which is given, and of the record. It is computed from the
//     arguments: it shows whether the bytes in the buffer are right.
//
// Raises:
//     ValueError: if the buffer has no room for the record.
static PyObject *put_record(PyObject *module, PyObject *arguments) {
  Py_buffer buffer;
  Py_ssize_t position;
  PyObject *prefix, *payload;
  unsigned int crc;
  if (!PyArg_ParseTuple(arguments, "w*nSSI:put_record", &buffer, &position, &prefix, &payload, &crc)) return NULL;
  uint64_t size = (uint64_t)PyBytes_GET_SIZE(prefix) + (uint64_t)PyBytes_GET_SIZE(payload) + FRAME_BYTES;
  int has_room = position >= 0 && position <= buffer.len && size <= (uint64_t)(buffer.len - position);
  if (has_room)
    crc = put_framed((uint8_t *)buffer.buf + position, (const uint8_t *)PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix),
                     (const uint8_t *)PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), crc);
  else
    PyErr_Format(PyExc_ValueError, "a record of %llu bytes has no room at byte %zd of %zd", (unsigned long long)size,
                 position, buffer.len);
  PyBuffer_Release(&buffer);
  return has_room ? PyLong_FromUnsignedLong(crc) : NULL;
}

// put_jpeg(path: str, size: int, version: int, buffer, position: int, crc32c: int, plain: list, key: bytes, tag: int,
// values: dict) -> tuple[int, bytes | None, int, int, int, int, int] | None
//
// Reads a JPEG and puts a TFRecord of its Example into a buffer: does what `read_file`, `check_jpeg`, `encode_prefix`
// and `put_record` do, whose arguments it takes. Other Python threads go on meanwhile.
//
// Returns:
//     How many ns it took to read the file; None; height, width and number of components; the size of
//     the TFRecord in bytes; the crc32c of the bytes before and of the record. If the JPEG is unusual or not
//     upright, a part of its Example is not cached, or the buffer has no room: the ns, the bytes of the file
//     and zeros. None if the file is not as it was listed. `values` gets what a JPEG says of itself.
enum { FORMAT, HEIGHT, WIDTH, CHANNELS, COLORSPACE, NUM_DESCRIBED };
static const char *const described_names[NUM_DESCRIBED] = {"image/format", "image/height", "image/width", "image/channels",
                                                           "image/colorspace"};
static PyObject *described[NUM_DESCRIBED];  // the same as objects
static PyObject *jpeg_format, *colorspaces[5];  // by number of components

static int make_objects(void) {
  for (int i = 0; i < NUM_DESCRIBED; i++)
    if (!described[i] && !(described[i] = PyUnicode_InternFromString(described_names[i]))) return -1;
  if (!jpeg_format && !(jpeg_format = PyBytes_FromString("jpeg"))) return -1;
  const char *const names[] = {NULL, "GRAY", NULL, "RGB", "CMYK"};
  for (int i = 0; i < 5; i++)
    if (names[i] && !colorspaces[i] && !(colorspaces[i] = PyBytes_FromString(names[i]))) return -1;
  return 0;
}

static int set_number(PyObject *values, int which, long number) {
  PyObject *value = PyLong_FromLong(number);
  int failed = !value || PyDict_SetItem(values, described[which], value);
  Py_XDECREF(value);
  return failed;
}

static int describe(PyObject *values, const Jpeg *jpeg) {
  return PyDict_SetItem(values, described[FORMAT], jpeg_format) || set_number(values, HEIGHT, jpeg->height) ||
         set_number(values, WIDTH, jpeg->width) || set_number(values, CHANNELS, jpeg->num_components) ||
         PyDict_SetItem(values, described[COLORSPACE], colorspaces[jpeg->num_components]);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static PyObject *put_jpeg(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 10) return PyErr_Format(PyExc_TypeError, "put_jpeg takes 10 arguments, %zd were given", count);
  PyObject *plain = arguments[6], *values = arguments[9], *path;
  Prefix prefix = {.key = arguments[7], .tag = (int)PyLong_AsLong(arguments[8])};
  if (!PyList_Check(plain) || !PyBytes_Check(prefix.key) || !PyDict_Check(values))
    return PyErr_Format(PyExc_TypeError, "put_jpeg takes a list, bytes, a number and a dict last");
  Py_ssize_t size = PyLong_AsSsize_t(arguments[1]), position = PyLong_AsSsize_t(arguments[4]);
  long long version = PyLong_AsLongLong(arguments[2]);
  uint32_t crc = (uint32_t)PyLong_AsUnsignedLong(arguments[5]);
  if (PyErr_Occurred() || !PyUnicode_FSConverter(arguments[0], &path)) return NULL;
  PyObject *data = size < 0 ? NULL : PyBytes_FromStringAndSize(NULL, size);
  Jpeg jpeg = {0};
  int is_read = 0, is_usual = 0;
  int64_t read_ns = 0;
  if (data) {
    uint8_t *start = (uint8_t *)PyBytes_AS_STRING(data);
    Py_BEGIN_ALLOW_THREADS;
    read_ns = -now_ns();
    is_read = read_exactly(PyBytes_AS_STRING(path), start, size, version);
    read_ns += now_ns();
    is_usual = is_read && is_plain_jpeg(&jpeg, start, start + size) && is_upright(&jpeg, start);
    Py_END_ALLOW_THREADS;
  }
  Py_DECREF(path);
  if (!is_read) {
    Py_XDECREF(data);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
  }
  prefix.size = size;
  Py_buffer buffer = {0};  // taken first: pieces are borrowed, and no other code of Python may run until they are put
  Py_ssize_t before = PyObject_GetBuffer(arguments[3], &buffer, PyBUF_WRITABLE) ? -1 : 0;
  if (!before && is_usual) before = describe(values, &jpeg) ? -1 : find_prefix(&prefix, plain, values);
  if (before < 0) {
    PyBuffer_Release(&buffer);
    Py_DECREF(data);
    return NULL;
  }
  uint64_t framed = (uint64_t)before + (uint64_t)size + FRAME_BYTES;
  int has_room = before && position >= 0 && position <= buffer.len && framed <= (uint64_t)(buffer.len - position);
  if (has_room) {
    uint8_t *start = (uint8_t *)buffer.buf + position, *at = start + HEADER_BYTES;
    put_prefix(at, &prefix);
    Py_BEGIN_ALLOW_THREADS;
    crc = put_framed(start, at, before, (const uint8_t *)PyBytes_AS_STRING(data), size, crc);
    Py_END_ALLOW_THREADS;
  }
  PyBuffer_Release(&buffer);
  if (!has_room) return Py_BuildValue("(LNiiiii)", (long long)read_ns, data, 0, 0, 0, 0, 0);
  Py_DECREF(data);
  return Py_BuildValue("(LOiiinI)", (long long)read_ns, Py_None, jpeg.height, jpeg.width, jpeg.num_components,
                       (Py_ssize_t)framed, crc);
}

static PyMethodDef methods[] = {
    {"extend_crc", extend_crc, METH_VARARGS, "Returns the crc32c of bytes and of more bytes behind them."},
    {"put_record", put_record, METH_VARARGS, "Puts a TFRecord into a buffer."},
    {"put_jpeg", (PyCFunction)(void (*)(void))put_jpeg, METH_FASTCALL, "Puts the record of a JPEG into a buffer."},
    {"read_file", (PyCFunction)(void (*)(void))read_file, METH_FASTCALL, "Returns the bytes of a file."},
    {"read_part", (PyCFunction)(void (*)(void))read_part, METH_FASTCALL, "Returns a part of an open file."},
    {"find_marker", find_marker, METH_VARARGS, "Returns the position of the next marker of a JPEG."},
    {"encode_prefix", (PyCFunction)(void (*)(void))encode_prefix, METH_FASTCALL, "Returns an Example up to its image."},
    {"check_jpeg", check_jpeg, METH_O, "Returns what a whole JPEG says of itself."},
    {"resize_pixels", resize_pixels, METH_VARARGS, "Returns bare pixels scaled."},
#ifdef HAVE_JPEG
    {"resize_jpeg", resize_jpeg, METH_VARARGS, "Returns a JPEG scaled and encoded as JPEG."},
#endif
#ifdef HAVE_TURBOJPEG
    {"turn_jpeg", turn_jpeg, METH_VARARGS, "Returns a JPEG turned upright without loss."},
#endif
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_writer", "Reads, checks, resizes and turns images, and puts records into buffers, in C.", 0, methods,
};

// The bytes that are written depend on these. Count up the resizer whenever the same image gives other bytes.
static int add_libraries(PyObject *module) {
#ifdef HAVE_JPEG
  if (PyModule_AddStringConstant(module, "RESIZER", "resizer 2, libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION))) return -1;
#endif
#ifdef HAVE_TURBOJPEG
  if (PyModule_AddStringConstant(module, "TURNER", "TurboJPEG " TEXT(LIBJPEG_TURBO_VERSION))) return -1;
#endif
  return 0;
}

PyMODINIT_FUNC PyInit__writer(void) {
  PyObject *module = PyModule_Create(&definition);
  choose_next_marker();
  prepare_crc32c();
  if (module && (make_objects() || add_libraries(module))) Py_CLEAR(module);
  return module;
}
