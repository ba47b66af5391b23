// Functions of the extension `_writer`, which _writer.c makes a module of.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern const char resize_pixels_doc[];
PyObject *resize_pixels(PyObject *module, PyObject *arguments);

#ifdef HAVE_JPEG
extern const char resize_jpeg_doc[];
PyObject *resize_jpeg(PyObject *module, PyObject *arguments);
#endif

#ifdef HAVE_TURBOJPEG
extern const char turn_jpeg_doc[];
PyObject *turn_jpeg(PyObject *module, PyObject *arguments);
#endif
