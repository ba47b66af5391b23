// Reads records, and finds features in them: functions of `imagebeam._native`.
//
// Source: https://protobuf.dev/programming-guides/encoding/

#include "native_methods.h"

#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#include "crc32c.h"

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

// The values of one feature in all records.
typedef struct {
  PyObject *key;
  int kind;
  // int64 [n], float32 [n]; int64 [n, 2]: where bytes begin and end in their record; [n, 1, 2]: the same of the Feature
  Py_buffer values;
} Column;

typedef enum { MISSING, FOUND, BROKEN, OTHER_KIND, NOT_SINGLE } State;

static int take_number(int kind, int type, Span *values, const Column *column, Py_ssize_t row) {
  if (kind == INT64_LIST) {
    uint64_t value;
    if (!take_varint(values, &value)) return 0;
    ((int64_t *)column->values.buf)[row] = (int64_t)value;
    return 1;
  }
  if ((type != DELIMITED && type != FIXED32) || values->end - values->at < 4) return 0;
  memcpy((float *)column->values.buf + row, values->at, sizeof(float));
  values->at += sizeof(float);
  return 1;
}

static State take_span(Span value, const uint8_t *record, const Column *column, Py_ssize_t row) {
  int64_t *span = (int64_t *)column->values.buf + 2 * row;
  span[0] = value.at - record;
  span[1] = value.end - record;
  return FOUND;
}

// Writes the single value of a tf.train.Feature to a column.
static State take_value(Span feature, const uint8_t *record, const Column *column, Py_ssize_t row) {
  int kind, type, number, state, is_found = 0;
  Span list, value;
  if ((state = take_field(&feature, &kind, &type, &list)) < 1) return state < 0 ? NOT_SINGLE : MISSING;
  if (type != DELIMITED || feature.at != feature.end) return NOT_SINGLE;
  while ((state = take_field(&list, &number, &type, &value)) == 1) {
    if (number != 1 || is_found) return NOT_SINGLE;
    if (kind != BYTES_LIST && value.at == value.end) continue;
    if (kind != column->kind) return OTHER_KIND;
    is_found = 1;
    if (kind == BYTES_LIST)
      take_span(value, record, column, row);
    else if (!take_number(kind, type, &value, column, row) || value.at < value.end)  // none, or several, packed
      return NOT_SINGLE;
  }
  return state < 0 ? NOT_SINGLE : is_found ? FOUND : MISSING;
}

typedef struct {
  Span bytes;
  State state;  // BROKEN, or why the value of one column cannot be used; else FOUND
  Py_ssize_t wrong;  // that column
} Record;

// Writes the values of a record's features to the columns, and to `found` whether it has them. Returns the state.
static State take_record(Record *record, const Column *columns, Py_ssize_t num_columns, Py_ssize_t row, uint8_t *found) {
  Span features, entry, name = {NULL, NULL}, feature = {NULL, NULL};
  int number, type, state, has_features = find_field(record->bytes, 1, &features);
  if (has_features < 1) return has_features < 0 ? BROKEN : FOUND;
  while ((state = take_field(&features, &number, &type, &entry)) == 1) {
    if (number != 1 || type != DELIMITED) continue;
    int has_name = find_field(entry, 1, &name), has_feature = find_field(entry, 2, &feature);
    if (has_name < 0 || has_feature < 0) return BROKEN;
    if (!has_name || !has_feature) continue;
    for (Py_ssize_t i = 0; i < num_columns; i++) {
      PyObject *key = columns[i].key;
      if (PyBytes_GET_SIZE(key) != name.end - name.at || memcmp(PyBytes_AS_STRING(key), name.at, name.end - name.at))
        continue;
      const uint8_t *start = record->bytes.at;
      State value = columns[i].values.ndim == 3 ? take_span(feature, start, &columns[i], row)
                                                : take_value(feature, start, &columns[i], row);
      if (value > FOUND) {
        record->wrong = i;
        return value;
      }
      found[i] = value == FOUND;  // the last one counts if a record has it twice
    }
  }
  return state < 0 ? BROKEN : FOUND;
}

static const char *const kinds[] = {[BYTES_LIST] = "bytes", [FLOAT_LIST] = "float", [INT64_LIST] = "int64"};

static PyObject *failure_of(Py_ssize_t row, State state, const Column *column) {
  if (state == BROKEN) return Py_BuildValue("(ns)", row, "not a tf.train.Example");
  const char *key = PyBytes_AS_STRING(column->key);
  PyObject *text = state == OTHER_KIND
                       ? PyUnicode_FromFormat("feature '%s' is not stored as %s", key, kinds[column->kind])
                       : PyUnicode_FromFormat("feature '%s' has no single value", key);
  return text ? Py_BuildValue("(nN)", row, text) : NULL;
}

static int open_column(PyObject *key, PyObject *values, Py_ssize_t count, Column *column) {
  if (!PyBytes_Check(key)) return PyErr_SetString(PyExc_TypeError, "keys are bytes"), 0;
  if (PyObject_GetBuffer(values, &column->values, PyBUF_ND | PyBUF_WRITABLE)) return 0;
  const Py_buffer *to = &column->values;
  column->key = key;
  column->kind = to->ndim > 1 ? BYTES_LIST : to->itemsize == 4 ? FLOAT_LIST : INT64_LIST;
  Py_ssize_t size = to->ndim > 1 ? 2 * (Py_ssize_t)sizeof(int64_t) : to->itemsize;
  if (to->len == count * size && (size == 4 || size == 8 || (size == 16 && to->itemsize == 8))) return 1;
  return PyErr_SetString(PyExc_ValueError, "records, columns and found do not fit each other"), 0;
}

// find_features(records, keys, columns, found) -> list[tuple[int, str]]
//
// Finds the single values of features in serialized tf.train.Examples; other Python threads go on meanwhile.
//
// Args:
//     records: a list of bytes.
//     keys: a tuple of bytes.
//     columns: a tuple with an array for each key, which gets its values: int64 [n], float32 [n], or for bytes
//         int64 [n, 2]: where they begin and end in the record. Of a feature with many values int64 [n, 1, 2]:
//         where its Feature message begins and ends. What is missing is not written.
//     found: bool [n, keys], which record has which feature; is written.
//
// Returns:
//     Records that are no Examples, or in which one of these features has several values or is of
//     another kind, by index, and why; their values mean nothing.
static PyObject *find_features(PyObject *module, PyObject *arguments) {
  PyObject *list, *keys, *arrays, *found_object, *failures = NULL;
  Py_buffer found = {0};
  if (!PyArg_ParseTuple(arguments, "O!O!O!O:find_features", &PyList_Type, &list, &PyTuple_Type, &keys, &PyTuple_Type,
                        &arrays, &found_object))
    return NULL;
  PyObject *held = PyList_AsTuple(list);  // keeps the records while other threads run, which may change the list
  if (!held) return NULL;
  Py_ssize_t count = PyTuple_GET_SIZE(held), num_columns = PyTuple_GET_SIZE(keys);
  Column *columns = PyMem_Calloc(num_columns + 1, sizeof *columns);
  Record *records = PyMem_Calloc(count + 1, sizeof *records);
  if (!columns || !records) {
    PyErr_NoMemory();
    goto done;
  }
  if (PyObject_GetBuffer(found_object, &found, PyBUF_ND | PyBUF_WRITABLE)) goto done;
  if (found.len != count * num_columns || PyTuple_GET_SIZE(arrays) != num_columns) {
    PyErr_SetString(PyExc_ValueError, "records, columns and found do not fit each other");
    goto done;
  }
  for (Py_ssize_t i = 0; i < num_columns; i++)
    if (!open_column(PyTuple_GET_ITEM(keys, i), PyTuple_GET_ITEM(arrays, i), count, &columns[i])) goto done;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *record = PyTuple_GET_ITEM(held, i);
    if (!PyBytes_Check(record)) {
      PyErr_SetString(PyExc_TypeError, "records are bytes");
      goto done;
    }
    const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(record);
    records[i].bytes = (Span){start, start + PyBytes_GET_SIZE(record)};
  }
  uint8_t *marks = found.buf;
  Py_BEGIN_ALLOW_THREADS;
  memset(marks, 0, found.len);
  for (Py_ssize_t i = 0; i < count; i++)
    records[i].state = take_record(&records[i], columns, num_columns, i, marks + i * num_columns);
  Py_END_ALLOW_THREADS;
  failures = PyList_New(0);
  for (Py_ssize_t i = 0; failures && i < count; i++) {
    if (records[i].state == FOUND) continue;
    PyObject *failure = failure_of(i, records[i].state, &columns[records[i].wrong]);
    if (!failure || PyList_Append(failures, failure)) Py_CLEAR(failures);
    Py_XDECREF(failure);
  }

done:
  for (Py_ssize_t i = 0; columns && i < num_columns; i++) PyBuffer_Release(&columns[i].values);
  PyBuffer_Release(&found);
  PyMem_Free(columns);
  PyMem_Free(records);
  Py_DECREF(held);
  return failures;
}

// --- records --------------------------------------------------------------------------------------------------------

static int read_one(int descriptor, int64_t start, uint8_t *content, size_t size) {
  uint32_t stored;  // little-endian, as are all numbers in a record
  struct iovec parts[] = {{content, size}, {&stored, sizeof stored}};
  if (preadv(descriptor, parts, 2, (off_t)start) != (ssize_t)(size + sizeof stored)) return 0;
  return mask_crc32c(extend_crc32c(0, content, size)) == stored;
}

// read_records(descriptor, starts, stops) -> list[bytes | None]
//
// Reads records of an open file, each the bytes from a start to a stop, if the masked CRC32C behind it is right; other
// Python threads go on meanwhile.
//
// Args:
//     descriptor: int.
//     starts, stops: int64 [n], contiguous.
//
// Returns:
//     The content of each record. None if its checksum is not right, or if it cannot be read.
static PyObject *read_records(PyObject *module, PyObject *arguments) {
  int descriptor;
  PyObject *contents = NULL;
  Py_buffer starts_buffer, stops_buffer;
  if (!PyArg_ParseTuple(arguments, "iy*y*:read_records", &descriptor, &starts_buffer, &stops_buffer)) return NULL;
  if (starts_buffer.itemsize != sizeof(int64_t) || stops_buffer.itemsize != sizeof(int64_t) ||
      starts_buffer.len != stops_buffer.len) {
    PyErr_SetString(PyExc_ValueError, "starts and stops do not fit each other");
    goto done;
  }
  Py_ssize_t count = starts_buffer.len / (Py_ssize_t)sizeof(int64_t);
  const int64_t *starts = starts_buffer.buf, *stops = stops_buffer.buf;
  contents = PyList_New(count);
  for (Py_ssize_t i = 0; contents && i < count; i++) {
    int is_possible = starts[i] >= 0 && stops[i] >= starts[i];
    PyObject *content = is_possible ? PyBytes_FromStringAndSize(NULL, stops[i] - starts[i]) : Py_NewRef(Py_None);
    if (content)
      PyList_SET_ITEM(contents, i, content);
    else
      Py_CLEAR(contents);
  }
  uint8_t *is_right = contents ? PyMem_Calloc(count + 1, 1) : NULL;
  if (!is_right) {
    Py_CLEAR(contents);
    PyErr_NoMemory();
    goto done;
  }
  Py_BEGIN_ALLOW_THREADS;
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject *content = PyList_GET_ITEM(contents, i);
    if (content != Py_None)
      is_right[i] = (uint8_t)read_one(descriptor, starts[i], (uint8_t *)PyBytes_AS_STRING(content),
                                      (size_t)PyBytes_GET_SIZE(content));
  }
  Py_END_ALLOW_THREADS;
  for (Py_ssize_t i = 0; i < count; i++)
    if (!is_right[i]) PyList_SetItem(contents, i, Py_NewRef(Py_None));
  PyMem_Free(is_right);

done:
  PyBuffer_Release(&starts_buffer);
  PyBuffer_Release(&stops_buffer);
  return contents;
}

PyMethodDef record_methods[] = {
    {"find_features", find_features, METH_VARARGS, "Finds the single values of features in Examples."},
    {"read_records", read_records, METH_VARARGS, "Reads records of an open file."},
    {NULL, NULL, 0, NULL},
};
