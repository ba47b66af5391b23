// Reads records, and finds features in them: functions of `imagebeam._native`.
//
// Source: https://protobuf.dev/programming-guides/encoding/

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "crc32c.h"
#include "native_methods.h"

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
    is_right = mask_crc32c(extend_crc32c(0, parts[0].iov_base, size)) == stored;
  }
  Py_END_ALLOW_THREADS;
  if (is_right) return content;
  Py_DECREF(content);
  Py_RETURN_NONE;
}

PyMethodDef record_methods[] = {
    {"find_features", find_features, METH_VARARGS, find_features_doc},
    {"read_record", read_record, METH_VARARGS, read_record_doc},
    {NULL, NULL, 0, NULL},
};
