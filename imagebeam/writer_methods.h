// What the files of the extension `_writer` share.

#ifndef WRITER_METHODS_H
#define WRITER_METHODS_H
#include <Python.h>
#include <stdint.h>
#include <sys/stat.h>

int64_t change_time(const struct stat *status);  // in ns since the epoch
int64_t now_ns(void);                            // of a clock that nobody sets

extern const char put_parts_doc[];
PyObject *put_parts(PyObject *module, PyObject *const *arguments, Py_ssize_t count);
#endif
