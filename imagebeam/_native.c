// The inner loops of the reader in C: they read records, find features in them and decode images, without Python's lock.

#include "native_methods.h"

#include <jconfig.h>

#include "crc32c.h"

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", "Features in records, and pixels of images, in C.", 0, NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
  PyObject *module = PyModule_Create(&definition);
  prepare_crc32c();
  if (module && (PyModule_AddFunctions(module, record_methods) || PyModule_AddFunctions(module, part_methods) ||
                 PyModule_AddFunctions(module, whole_methods)))
    Py_CLEAR(module);
  if (module && PyModule_AddStringConstant(module, "LIBRARY", "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION)))
    Py_CLEAR(module);
#ifdef HAVE_PNG
  int decodes_png = 1;
#else
  int decodes_png = 0;
#endif
  if (module && PyModule_AddIntConstant(module, "DECODES_PNG", decodes_png)) Py_CLEAR(module);
  return module;
}
