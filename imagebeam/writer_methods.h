// Functions of the extension `_writer`, which _writer.c makes a module of.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *resize_pixels(PyObject *module, PyObject *arguments);

#ifdef HAVE_JPEG
PyObject *resize_jpeg(PyObject *module, PyObject *arguments);
#endif

#ifdef HAVE_TURBOJPEG
PyObject *turn_jpeg(PyObject *module, PyObject *arguments);
#endif
