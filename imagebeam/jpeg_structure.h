// Finds the markers of a JPEG, and checks that it is whole. See jpeg_structure.c.

#include <stddef.h>
#include <stdint.h>

typedef struct {
  int code, height, width, num_components;  // code 0: no frame header yet
  const uint8_t *components;                // 3 bytes each: number, sampling factors, quantization table
  uint32_t quantization, huffman;           // the tables so far, one bit each
  ptrdiff_t exif, exif_end;                 // offsets of the EXIF data's TIFF header and end; 0: none
} Jpeg;

// Chosen for this processor by choose_next_marker. Before that, it works on any.
extern const uint8_t *(*next_marker)(const uint8_t *at, const uint8_t *end);

void choose_next_marker(void);
int is_plain_jpeg(Jpeg *jpeg, const uint8_t *start, const uint8_t *end);
int is_upright(const Jpeg *jpeg, const uint8_t *start);
