// Makes records of parts of open files, many in one call.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "record_frames.h"
#include "writer_methods.h"

const char put_parts_doc[] =
    "put_parts(parts: list[tuple[int, int, int, bytes]], length: int, buffer, position: int, crc32c: int,\n"
    "          slow_ns: int) -> tuple[int, int, int, bool]\n\n"
    "Puts TFRecords into a buffer, each of the bytes of a prefix and of a part of an open file. Other Python\n"
    "threads go on meanwhile.\n\n"
    "Args:\n    parts: descriptor of the file, its version (see `read_part`), byte offset in it, and the prefix.\n"
    "    length: of each part in bytes.\n"
    "    slow_ns: a read that takes longer and waits for something other than a processor is the last one.\n\n"
    "Returns:\n    How many of the first parts were put, 256 at most: fewer if the next one cannot be read, ends\n"
    "    early or finds no room in the buffer, and none if one of the files is of another version, before or\n"
    "    after it is read; the size of their TFRecords in bytes; the crc32c of the bytes before and of these\n"
    "    TFRecords; whether the last read was slow.";

enum { MAX_PARTS = 256 };

typedef struct {
  int file;
  int64_t version, offset;
  PyObject *prefix;
} Part;

static int parse_parts(Part *parts, PyObject *list, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *part = PyList_GET_ITEM(list, i);
    if (!PyTuple_Check(part) || PyTuple_GET_SIZE(part) != 4 || !PyBytes_Check(PyTuple_GET_ITEM(part, 3))) {
      PyErr_Format(PyExc_TypeError, "put_parts takes parts of three numbers and bytes, part %zd is another", i);
      return -1;
    }
    parts[i].file = (int)PyLong_AsLong(PyTuple_GET_ITEM(part, 0));
    parts[i].version = PyLong_AsLongLong(PyTuple_GET_ITEM(part, 1));
    parts[i].offset = PyLong_AsLongLong(PyTuple_GET_ITEM(part, 2));
    parts[i].prefix = PyTuple_GET_ITEM(part, 3);
    if (PyErr_Occurred()) return -1;
  }
  return 0;
}

// Returns whether all files are of their versions. A file is looked at once for parts that follow each other.
static int are_as_listed(const Part *parts, Py_ssize_t count) {
  struct stat status;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!parts[i].version || (i && parts[i].file == parts[i - 1].file && parts[i].version == parts[i - 1].version)) continue;
    if (fstat(parts[i].file, &status) || change_time(&status) != parts[i].version) return 0;
  }
  return 1;
}

// Returns how often this thread has waited, for a disk or for another thread, but not for a processor.
static long count_waits(void) {
  struct rusage usage;
#ifdef RUSAGE_THREAD
  getrusage(RUSAGE_THREAD, &usage);
#else  // as on macOS
  getrusage(RUSAGE_SELF, &usage);
#endif
  return usage.ru_nvcsw;
}

PyObject *put_parts(PyObject *module, PyObject *const *arguments, Py_ssize_t count) {
  if (count != 6) return PyErr_Format(PyExc_TypeError, "put_parts takes 6 arguments, %zd were given", count);
  if (!PyList_Check(arguments[0])) return PyErr_Format(PyExc_TypeError, "put_parts takes a list first");
  Part parts[MAX_PARTS];
  Py_ssize_t num_parts = PyList_GET_SIZE(arguments[0]) < MAX_PARTS ? PyList_GET_SIZE(arguments[0]) : MAX_PARTS;
  Py_ssize_t length = PyLong_AsSsize_t(arguments[1]), position = PyLong_AsSsize_t(arguments[3]), num_put = 0;
  uint32_t before = (uint32_t)PyLong_AsUnsignedLong(arguments[4]), crc = before;
  int64_t slow_ns = PyLong_AsLongLong(arguments[5]);
  Py_buffer buffer;
  if (PyErr_Occurred() || parse_parts(parts, arguments[0], num_parts)) return NULL;
  if (PyObject_GetBuffer(arguments[2], &buffer, PyBUF_WRITABLE)) return NULL;
  int has_place = length >= 0 && position >= 0 && position <= buffer.len, is_slow = 0;
  uint8_t *start = (uint8_t *)buffer.buf + (has_place ? position : 0), *at = start;
  uint64_t room = has_place ? (uint64_t)(buffer.len - position) : 0;
  Py_BEGIN_ALLOW_THREADS;
  long waits = count_waits();
  int64_t last_ns = now_ns();
  if (!has_place || !are_as_listed(parts, num_parts)) num_parts = 0;
  while (num_put < num_parts && !is_slow) {
    const Part *part = &parts[num_put];
    const uint8_t *prefix = (const uint8_t *)PyBytes_AS_STRING(part->prefix);
    uint64_t prefix_size = (uint64_t)PyBytes_GET_SIZE(part->prefix), framed = prefix_size + (uint64_t)length + FRAME_BYTES;
    if (framed > room) break;
    uint8_t *payload = at + HEADER_BYTES + prefix_size;  // read to its place
    if (pread(part->file, payload, length, part->offset) != length) break;
    crc = put_framed(at, prefix, prefix_size, payload, (uint64_t)length, crc);
    at += framed;
    room -= framed;
    num_put++;
    int64_t ns = now_ns();
    is_slow = ns - last_ns > slow_ns && count_waits() > waits;
    last_ns = ns;
  }
  if (num_put && !are_as_listed(parts, num_put)) {
    num_put = 0;
    at = start;
    crc = before;
  }
  Py_END_ALLOW_THREADS;
  PyBuffer_Release(&buffer);
  return Py_BuildValue("(nnIO)", num_put, (Py_ssize_t)(at - start), crc, is_slow ? Py_True : Py_False);
}
