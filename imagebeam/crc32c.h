// The checksum of records, with the processor's own instruction. See crc32c.c.

#include <stddef.h>
#include <stdint.h>

int has_fast_crc32c(void);
uint32_t masked_crc32c(const uint8_t *data, size_t size);
