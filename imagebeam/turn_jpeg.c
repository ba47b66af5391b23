// Turns JPEGs without loss, with TurboJPEG: a function of `imagebeam._writer`.

#include "writer_methods.h"

#ifdef HAVE_TURBOJPEG
#include <turbojpeg.h>

// By EXIF orientation: what turns the image upright.
static const int OPERATIONS[] = {TJXOP_NONE,      TJXOP_NONE,  TJXOP_HFLIP,      TJXOP_ROT180, TJXOP_VFLIP,
                                 TJXOP_TRANSPOSE, TJXOP_ROT90, TJXOP_TRANSVERSE, TJXOP_ROT270};

// turn_jpeg(data: bytes, orientation: int, progressive: bool) -> bytes | None
//
// Returns a JPEG turned upright without loss; other Python threads go on meanwhile.
//
// Args:
//     data: a JPEG. Its markers APPn and COM are copied, before all others.
//     orientation: of EXIF, 1 to 8. 1 turns nothing.
//     progressive: whether the result is progressive.
//
// Returns:
//     None if it cannot be done without loss, since a side to be mirrored is no multiple of the MCU, or if
//     the JPEG is damaged in any way that libjpeg notices.
PyObject *turn_jpeg(PyObject *module, PyObject *arguments) {
  PyObject *data;
  int orientation, is_progressive, failed;
  if (!PyArg_ParseTuple(arguments, "Sip:turn_jpeg", &data, &orientation, &is_progressive)) return NULL;
  if (orientation < 1 || orientation > 8)
    return PyErr_Format(PyExc_ValueError, "EXIF orientation %d, expected 1 to 8", orientation);
  tjtransform transform = {.op = OPERATIONS[orientation]};
  transform.options = TJXOPT_PERFECT | (is_progressive ? TJXOPT_PROGRESSIVE : 0);
  unsigned char *out = NULL;
  unsigned long size = 0;
  tjhandle turner = tjInitTransform();
  if (!turner) return PyErr_NoMemory();
  Py_BEGIN_ALLOW_THREADS;
  failed = tjTransform(turner, (const unsigned char *)PyBytes_AS_STRING(data), (unsigned long)PyBytes_GET_SIZE(data), 1,
                       &out, &size, &transform, TJFLAG_STOPONWARNING);
  tjDestroy(turner);
  Py_END_ALLOW_THREADS;
  PyObject *result = failed ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)size);
  tjFree(out);
  return result;
}
#endif
