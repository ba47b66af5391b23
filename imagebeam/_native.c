// The inner loops of the reader in C: they read records, find features in them and decode images, without Python's lock.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdio.h>

#include <jpeglib.h>

#include "native_methods.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Features in records, and pixels of images, in C.", 0, NULL,
};

static int add_functions(PyObject *module) {
  return PyModule_AddFunctions(module, record_methods) || PyModule_AddFunctions(module, part_methods) ||
         PyModule_AddFunctions(module, whole_methods);
}

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && add_functions(module)) Py_CLEAR(module);
  if (module && PyModule_AddStringConstant(module, "LIBRARY", "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION)))
    Py_CLEAR(module);
  PyObject *png = module ? PyImport_ImportModule("imagebeam._png") : NULL;
  if (png) decode_png = (DecodePng *)PyCapsule_Import(PNG_DECODER, 0);
  Py_XDECREF(png);
  if (module && !decode_png) PyErr_Clear();
  if (module && PyModule_AddIntConstant(module, "DECODES_PNG", decode_png != NULL)) Py_CLEAR(module);
  return module;
}
