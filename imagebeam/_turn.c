// Turns JPEGs without loss: it moves and mirrors the compressed blocks, and never decodes them to pixels.
//
// A JPEG is made of blocks of 8 x 8 coefficients of cosine waves: column u of a block has horizontal frequency u, row v
// vertical frequency v. Mirrored, a wave of even frequency is the same and one of odd frequency has the opposite sign.
// With sides exchanged, u and v change places, and so do those of the quantization tables and the sampling factors.
//
// Source: ITU-T T.81, A.3.3, https://www.w3.org/Graphics/JPEG/itu-t81.pdf; libjpeg.txt, "Really raw data: DCT
// coefficients".

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "libjpeg-turbo is needed: other libjpegs write other bytes"
#endif

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

enum { APP0 = JPEG_APP0, APP15 = JPEG_APP0 + 15, MAX_SEGMENT = 0xFFFF, FIRST_OUTPUT_BYTES = 1 << 12 };

// The way back from an error inside libjpeg.
typedef struct {
  jmp_buf on_error;
  char text[JMSG_LENGTH_MAX];
} Failure;

// What one call turns. Nothing outlives the call: libjpeg keeps tables in a decompressor from one image to the next.
typedef struct {
  const uint8_t *data;
  size_t size;
  int mirrors_columns, mirrors_rows, swaps_sides;  // mirrored before sides are exchanged
  size_t max_memory_bytes;
  struct jpeg_decompress_struct source;
  struct jpeg_compress_struct turned;
  struct jpeg_error_mgr errors;
  Failure failure;
  struct jpeg_destination_mgr destination;
  uint8_t *out;
  size_t out_size, out_capacity;
  int is_impossible;  // no error, but it cannot be done without loss
} Turn;

// --- errors and output ----------------------------------------------------------------------------------------------

static void fail(Turn *turn, const char *text) {
  snprintf(turn->failure.text, sizeof turn->failure.text, "%s", text);
  longjmp(turn->failure.on_error, 1);
}

static void on_libjpeg_error(j_common_ptr jpeg) {
  Turn *turn = jpeg->client_data;
  jpeg->err->format_message(jpeg, turn->failure.text);
  longjmp(turn->failure.on_error, 1);
}

// Damaged data would be repaired by guesses, and the guesses stored as if they were the image: warnings are errors.
// Unknown versions in the JFIF and Adobe segments are no damage, and decoders of the copy see the same ones.
static void on_libjpeg_message(j_common_ptr jpeg, int level) {
  int code = jpeg->err->msg_code;
  if (level < 0 && code != JWRN_JFIF_MAJOR && code != JWRN_ADOBE_XFORM) on_libjpeg_error(jpeg);
}

static void start_output(j_compress_ptr jpeg) {
  Turn *turn = jpeg->client_data;
  turn->destination.next_output_byte = turn->out;
  turn->destination.free_in_buffer = turn->out_capacity;
}

static boolean grow_output(j_compress_ptr jpeg) {
  Turn *turn = jpeg->client_data;
  size_t used = turn->out_capacity;  // libjpeg.txt, "Compressed data handling": the counters are to be ignored here
  uint8_t *grown = realloc(turn->out, 2 * used);
  if (!grown) fail(turn, "out of memory");
  turn->out = grown;
  turn->out_capacity = 2 * used;
  turn->destination.next_output_byte = grown + used;
  turn->destination.free_in_buffer = used;
  return TRUE;
}

static void end_output(j_compress_ptr jpeg) {
  Turn *turn = jpeg->client_data;
  turn->out_size = turn->out_capacity - turn->destination.free_in_buffer;
}

// --- blocks ---------------------------------------------------------------------------------------------------------

static JBLOCKROW row_of(j_common_ptr jpeg, jvirt_barray_ptr blocks, JDIMENSION row, boolean writes) {
  return jpeg->mem->access_virt_barray(jpeg, blocks, row, 1, writes)[0];
}

// The sign of each coefficient after mirroring.
static void make_signs(const Turn *turn, JCOEF *signs) {
  for (int v = 0; v < DCTSIZE; v++)
    for (int u = 0; u < DCTSIZE; u++) {
      int is_negative = ((turn->mirrors_columns & u) ^ (turn->mirrors_rows & v)) & 1;
      signs[DCTSIZE * v + u] = is_negative ? -1 : 1;
    }
}

static void mirror_block(const JCOEF *restrict from, const JCOEF *restrict signs, JCOEF *restrict to) {
  for (int i = 0; i < DCTSIZE2; i++) to[i] = from[i] * signs[i];
}

static void mirror_and_transpose_block(const JCOEF *restrict from, const JCOEF *restrict signs, JCOEF *restrict to) {
  JCOEF mirrored[DCTSIZE2];
  mirror_block(from, signs, mirrored);
  for (int v = 0; v < DCTSIZE; v++)
    for (int u = 0; u < DCTSIZE; u++) to[DCTSIZE * u + v] = mirrored[DCTSIZE * v + u];
}

// Moves the blocks of one component from the source to their place in the turned image.
static void move_blocks(Turn *turn, const jpeg_component_info *component, jvirt_barray_ptr from, jvirt_barray_ptr to) {
  j_common_ptr jpeg = (j_common_ptr)&turn->source;
  JDIMENSION width = component->width_in_blocks, height = component->height_in_blocks;
  JCOEF signs[DCTSIZE2];
  make_signs(turn, signs);
  for (JDIMENSION y = 0; y < (turn->swaps_sides ? width : height); y++) {
    JBLOCKROW target = row_of(jpeg, to, y, TRUE);
    if (turn->swaps_sides) {
      JDIMENSION column = turn->mirrors_columns ? width - 1 - y : y;
      for (JDIMENSION x = 0; x < height; x++) {
        JBLOCKROW source = row_of(jpeg, from, turn->mirrors_rows ? height - 1 - x : x, FALSE);
        mirror_and_transpose_block(source[column], signs, target[x]);
      }
    } else {
      JBLOCKROW source = row_of(jpeg, from, turn->mirrors_rows ? height - 1 - y : y, FALSE);
      for (JDIMENSION x = 0; x < width; x++)
        mirror_block(source[turn->mirrors_columns ? width - 1 - x : x], signs, target[x]);
    }
  }
}

// --- images ---------------------------------------------------------------------------------------------------------

static size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

// Whole MCUs alone can be mirrored: a mirrored image begins with what was the last block, which is partly padding
// otherwise. The blocks of a single component are not grouped, so its MCU is one block (T.81, A.2.2).
static int is_possible(const Turn *turn) {
  const struct jpeg_decompress_struct *jpeg = &turn->source;
  int is_single = jpeg->num_components == 1;
  JDIMENSION mcu_width = DCTSIZE * (is_single ? 1 : jpeg->max_h_samp_factor);
  JDIMENSION mcu_height = DCTSIZE * (is_single ? 1 : jpeg->max_v_samp_factor);
  return !(turn->mirrors_columns && jpeg->image_width % mcu_width) &&
         !(turn->mirrors_rows && jpeg->image_height % mcu_height);
}

// Refuses before anything is allocated that grows with the image: a header of 30 bytes can announce 4 G pixels.
static void check_memory(Turn *turn) {
  uint64_t bytes = 0;
  for (int c = 0; c < turn->source.num_components; c++) {
    const jpeg_component_info *component = &turn->source.comp_info[c];
    bytes += 2 * sizeof(JBLOCK) * round_up(component->width_in_blocks, component->h_samp_factor) *
             (uint64_t)round_up(component->height_in_blocks, component->v_samp_factor);
  }
  if (bytes <= turn->max_memory_bytes) return;
  char text[JMSG_LENGTH_MAX];
  snprintf(text, sizeof text, "%u x %u pixels take %llu bytes of memory, at most %llu are allowed",
           turn->source.image_height, turn->source.image_width, (unsigned long long)bytes,
           (unsigned long long)turn->max_memory_bytes);
  fail(turn, text);
}

static void exchange_sides(struct jpeg_compress_struct *jpeg) {
  JDIMENSION width = jpeg->image_width;
  jpeg->image_width = jpeg->image_height;
  jpeg->image_height = width;
#if JPEG_LIB_VERSION >= 70  // as on Ubuntu; Debian has 62
  jpeg->jpeg_width = jpeg->image_width;
  jpeg->jpeg_height = jpeg->image_height;
#endif
  for (int c = 0; c < jpeg->num_components; c++) {
    jpeg_component_info *component = &jpeg->comp_info[c];
    int factor = component->h_samp_factor;
    component->h_samp_factor = component->v_samp_factor;
    component->v_samp_factor = factor;
  }
  for (int t = 0; t < NUM_QUANT_TBLS; t++) {
    JQUANT_TBL *table = jpeg->quant_tbl_ptrs[t];
    if (!table) continue;
    for (int v = 0; v < DCTSIZE; v++)
      for (int u = 0; u < v; u++) {
        UINT16 *one = &table->quantval[DCTSIZE * v + u], *other = &table->quantval[DCTSIZE * u + v], kept = *one;
        *one = *other;
        *other = kept;
      }
  }
}

// Writes the turned image: the same kind of JPEG, with Huffman tables made for it. The source may have better tables for
// its own order of blocks, so sizes differ slightly; it is never larger than with the usual standard tables.
static void write_turned(Turn *turn, jvirt_barray_ptr *blocks, unsigned int restart_interval) {
  struct jpeg_decompress_struct *source = &turn->source;
  struct jpeg_compress_struct *turned = &turn->turned;
  jpeg_copy_critical_parameters(source, turned);
  turned->write_JFIF_header = turned->write_Adobe_marker = FALSE;  // the source's own are copied, if it has any
  turned->arith_code = source->arith_code;
  turned->optimize_coding = !source->arith_code;
  if (restart_interval) {  // of whole rows of MCUs: also in the turned image, whose rows have another length
    JDIMENSION mcu_width = source->num_components == 1 ? DCTSIZE : DCTSIZE * source->max_h_samp_factor;
    JDIMENSION mcus_per_row = (source->image_width + mcu_width - 1) / mcu_width;
    if (restart_interval % mcus_per_row == 0)
      turned->restart_in_rows = (int)(restart_interval / mcus_per_row);
    else
      turned->restart_interval = restart_interval;
  }
  if (turn->swaps_sides) exchange_sides(turned);
  if (source->progressive_mode) jpeg_simple_progression(turned);
  jpeg_write_coefficients(turned, blocks);
  for (jpeg_saved_marker_ptr marker = source->marker_list; marker; marker = marker->next)
    jpeg_write_marker(turned, marker->marker, marker->data, marker->data_length);
  jpeg_finish_compress(turned);
}

static jpeg_saved_marker_ptr last_marker(const struct jpeg_decompress_struct *jpeg) {
  jpeg_saved_marker_ptr marker = jpeg->marker_list;
  while (marker && marker->next) marker = marker->next;
  return marker;
}

static void read_and_write(Turn *turn) {
  struct jpeg_decompress_struct *source = &turn->source;
  jvirt_barray_ptr targets[MAX_COMPONENTS];
  jpeg_mem_src(source, turn->data, turn->size);
  jpeg_save_markers(source, JPEG_COM, MAX_SEGMENT);
  for (int code = APP0; code <= APP15; code++) jpeg_save_markers(source, code, MAX_SEGMENT);
  jpeg_read_header(source, TRUE);
  turn->is_impossible = !is_possible(turn);
  if (turn->is_impossible) return;
  check_memory(turn);
  unsigned int restart_interval = source->restart_interval;
  jpeg_saved_marker_ptr last = last_marker(source);
  for (int c = 0; c < source->num_components; c++) {
    const jpeg_component_info *component = &source->comp_info[c];
    JDIMENSION width = (JDIMENSION)round_up(component->width_in_blocks, component->h_samp_factor);
    JDIMENSION height = (JDIMENSION)round_up(component->height_in_blocks, component->v_samp_factor);
    int swaps = turn->swaps_sides;
    targets[c] = source->mem->request_virt_barray((j_common_ptr)source, JPOOL_IMAGE, TRUE, swaps ? height : width,
                                                  swaps ? width : height,
                                                  swaps ? component->h_samp_factor : component->v_samp_factor);
  }
  jvirt_barray_ptr *blocks = jpeg_read_coefficients(source);
  // A segment between scans would move before the first one, where an Adobe or JFIF segment changes the colors.
  turn->is_impossible = last_marker(source) != last;
  if (turn->is_impossible) return;
  for (int c = 0; c < source->num_components; c++) move_blocks(turn, &source->comp_info[c], blocks[c], targets[c]);
  write_turned(turn, targets, restart_interval);
}

// Returns whether the image was turned, or cannot be without loss; otherwise `failure` says why not.
static int turn_image(Turn *turn) {
  turn->source.err = turn->turned.err = jpeg_std_error(&turn->errors);
  turn->errors.error_exit = on_libjpeg_error;
  turn->errors.emit_message = on_libjpeg_message;
  turn->source.client_data = turn->turned.client_data = turn;
  turn->destination.init_destination = start_output;
  turn->destination.empty_output_buffer = grow_output;
  turn->destination.term_destination = end_output;
  if (setjmp(turn->failure.on_error)) {
    jpeg_destroy_compress(&turn->turned);
    jpeg_destroy_decompress(&turn->source);
    return 0;
  }
  jpeg_create_decompress(&turn->source);
  jpeg_create_compress(&turn->turned);
  turn->turned.dest = &turn->destination;
  turn->out_capacity = turn->size > FIRST_OUTPUT_BYTES ? turn->size : FIRST_OUTPUT_BYTES;
  turn->out = malloc(turn->out_capacity);
  if (!turn->out) fail(turn, "out of memory");
  read_and_write(turn);
  jpeg_destroy_compress(&turn->turned);
  jpeg_destroy_decompress(&turn->source);
  return 1;
}

PyDoc_STRVAR(turn_jpeg_doc,
             "turn_jpeg(data: bytes, orientation: int, max_memory_bytes: int) -> bytes | None\n\n"
             "Returns a JPEG turned upright without loss; other Python threads go on meanwhile.\n\n"
             "Markers APPn and COM are copied byte for byte, before all others. Bytes after the end of the image are\n"
             "dropped. A progressive JPEG stays progressive, and one with arithmetic coding keeps it.\n\n"
             "Args:\n    data: a JPEG.\n"
             "    orientation: of EXIF, 1 to 8. 1 turns nothing and only makes new Huffman tables.\n"
             "    max_memory_bytes: of the coefficients: 4 for each value of each component.\n\n"
             "Returns:\n    None if it cannot be done without loss: a side to be mirrored is no multiple of the MCU, or\n"
             "    a segment APPn or COM stands between two scans.\n\n"
             "Raises:\n    ValueError: if the JPEG is damaged in any way that libjpeg notices, or takes more memory.");

static PyObject *turn_jpeg(PyObject *module, PyObject *arguments) {
  PyObject *data;
  int orientation;
  Py_ssize_t max_memory_bytes;
  if (!PyArg_ParseTuple(arguments, "Sin:turn_jpeg", &data, &orientation, &max_memory_bytes)) return NULL;
  if (orientation < 1 || orientation > 8)
    return PyErr_Format(PyExc_ValueError, "EXIF orientation %d, expected 1 to 8", orientation);
  Turn *turn = PyMem_Calloc(1, sizeof *turn);
  if (!turn) return PyErr_NoMemory();
  turn->data = (const uint8_t *)PyBytes_AS_STRING(data);
  turn->size = PyBytes_GET_SIZE(data);
  turn->mirrors_columns = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  turn->mirrors_rows = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  turn->swaps_sides = orientation >= 5;
  turn->max_memory_bytes = max_memory_bytes < 0 ? 0 : (size_t)max_memory_bytes;
  int is_done;
  Py_BEGIN_ALLOW_THREADS;
  is_done = turn_image(turn);
  Py_END_ALLOW_THREADS;
  PyObject *result = NULL;
  if (!is_done)
    PyErr_SetString(PyExc_ValueError, turn->failure.text);
  else if (turn->is_impossible)
    result = Py_NewRef(Py_None);
  else
    result = PyBytes_FromStringAndSize((const char *)turn->out, turn->out_size);
  free(turn->out);
  PyMem_Free(turn);
  return result;
}

static PyMethodDef methods[] = {
    {"turn_jpeg", turn_jpeg, METH_VARARGS, turn_jpeg_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_turn", "Turns JPEGs upright without loss, in C.", 0, methods,
};

PyMODINIT_FUNC PyInit__turn(void) {
  PyObject *module = PyModule_Create(&definition);
  if (module && PyModule_AddStringConstant(module, "LIBRARY", "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION)))
    Py_CLEAR(module);
  return module;
}
