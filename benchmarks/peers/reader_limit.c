// The limit of a reader: what libjpeg-turbo and plain C reach on the same shards, with no framework around them.
//
// Each thread takes the next record of a random order, decodes the part of the picture that a random window needs (the
// columns outside are not decoded, the rows above are only entropy-decoded, the rows below not even that; scaled down
// by libjpeg where the window is at least twice the size wanted), resizes it bilinearly and writes it, mirrored or not,
// to its place in a batch. The shards are memory-mapped; their index tells where the records are.
//
//     cc -O3 -march=native -o limit reader_limit.c -ljpeg -lpthread -lm
//     ./limit DATASET SECONDS THREADS

#define _GNU_SOURCE
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h>

enum {
  BATCH = 128,
  SIDE = 224,
  PIXELS = SIDE * SIDE,
  NUM_BUFFERS = 4,  // batches in flight; nobody waits for them, so they are simply filled again
  WARM_UP_BATCHES = 8,
  WARM_UP_SECONDS = 3,  // as in reader_measure.py
  NUM_TRIALS = 10,
  RECORD_HEADER = 12,  // length and its checksum
  RECORD_FOOTER = 4,
};

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

typedef struct {
  const uint8_t *data;
  size_t size;
} Bytes;

typedef struct {
  uint64_t random;
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  uint8_t *pixels;  // the decoded part
  size_t num_pixel_bytes;
  int16_t *blended;  // one row of it between two of its rows
  size_t num_blended;
  double sums[3];  // of the pixels of the warm-up
} Worker;

static Bytes *images;
static uint32_t *order;
static size_t num_images, next_position;
static uint64_t next_number;  // of the image within the whole run
static uint64_t order_random = 0x9E3779B97F4A7C15u;
static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t num_finished;
static uint8_t *batches;

static void fail(const char *what, const char *where) {
  fprintf(stderr, "%s: %s\n", what, where);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + 1e-9 * time.tv_nsec;
}

static double cpu_now(void) {  // of all threads, user and system
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + 1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static double busy_now(void) {  // of all processes and cores
  unsigned long long user = 0, nice = 0, system = 0, irq = 0, softirq = 0;
  FILE *file = fopen("/proc/stat", "r");
  if (!file || fscanf(file, "cpu %llu %llu %llu %*u %*u %llu %llu", &user, &nice, &system, &irq, &softirq) != 5)
    fail("cannot be read", "/proc/stat");
  fclose(file);
  return (double)(user + nice + system + irq + softirq) / sysconf(_SC_CLK_TCK);
}

static uint64_t draw(uint64_t *state) {  // xorshift64*
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return *state * 0x2545F4914F6CDD1Du;
}

static double uniform(uint64_t *state) { return (draw(state) >> 11) * 0x1p-53; }

// --- records --------------------------------------------------------------------------------------------------------

static Bytes map_file(const char *path) {
  int descriptor = open(path, O_RDONLY);
  struct stat status;
  if (descriptor < 0 || fstat(descriptor, &status)) fail("cannot be opened", path);
  void *data = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (data == MAP_FAILED) fail("cannot be mapped", path);
  close(descriptor);
  return (Bytes){data, status.st_size};
}

static uint64_t varint(Bytes *bytes) {
  uint64_t value = 0;
  for (int shift = 0; bytes->size && shift < 64; shift += 7) {
    uint8_t byte = *bytes->data++;
    bytes->size--;
    value |= (uint64_t)(byte & 127) << shift;
    if (byte < 128) break;
  }
  return value;
}

// Takes the next field off a message; all fields on the way to the image are messages, strings or bytes.
static int next_field(Bytes *message, int *number, Bytes *field) {
  if (!message->size) return 0;
  uint64_t tag = varint(message), size = varint(message);
  if ((tag & 7) != 2 || size > message->size) fail("not a tf.train.Example", "record");
  *number = tag >> 3;
  *field = (Bytes){message->data, size};
  message->data += size;
  message->size -= size;
  return 1;
}

static Bytes field_of(Bytes message, int wanted) {
  int number;
  Bytes field;
  while (next_field(&message, &number, &field))
    if (number == wanted) return field;
  return (Bytes){NULL, 0};
}

static Bytes find_image(Bytes example) {
  static const char key[] = "image/encoded";
  Bytes features = field_of(example, 1), entry;
  int number;
  while (next_field(&features, &number, &entry)) {
    Bytes name = field_of(entry, 1);
    if (name.size == sizeof(key) - 1 && !memcmp(name.data, key, name.size))
      return field_of(field_of(field_of(entry, 2), 1), 1);  // Feature.bytes_list, its value
  }
  fail("a record has no feature", key);
  return (Bytes){NULL, 0};
}

static void open_dataset(const char *folder) {
  char pattern[4096], index_path[4096];
  glob_t found;
  snprintf(pattern, sizeof pattern, "%s/*.tfrecord", folder);
  if (glob(pattern, 0, NULL, &found)) fail("no shards", pattern);
  for (size_t i = 0; i < found.gl_pathc; i++) {
    const char *name = strrchr(found.gl_pathv[i], '/') + 1;
    int stem = strlen(name) - strlen(".tfrecord");
    snprintf(index_path, sizeof index_path, "%s/index/%.*s.index", folder, stem, name);
    Bytes shard = map_file(found.gl_pathv[i]), index = map_file(index_path);
    size_t num_records = index.size / sizeof(uint64_t) - 1;
    const uint64_t *offsets = (const uint64_t *)index.data;
    if (offsets[num_records] != shard.size) fail("not the index of its shard", index_path);
    images = realloc(images, (num_images + num_records) * sizeof *images);
    for (size_t j = 0; j < num_records; j++) {
      size_t size = offsets[j + 1] - offsets[j] - RECORD_HEADER - RECORD_FOOTER;
      images[num_images++] = find_image((Bytes){shard.data + offsets[j] + RECORD_HEADER, size});
    }
  }
  globfree(&found);
  order = malloc(num_images * sizeof *order);
  for (size_t i = 0; i < num_images; i++) order[i] = i;
}

// Every image once in each epoch, in an order of its own.
static uint64_t take(const Bytes **image) {
  pthread_mutex_lock(&order_lock);
  if (next_position == 0)
    for (size_t i = num_images - 1; i > 0; i--) {
      size_t j = draw(&order_random) % (i + 1);
      uint32_t swapped = order[i];
      order[i] = order[j];
      order[j] = swapped;
    }
  *image = &images[order[next_position]];
  next_position = (next_position + 1) % num_images;
  uint64_t number = next_number++;
  pthread_mutex_unlock(&order_lock);
  return number;
}

// --- pixels ---------------------------------------------------------------------------------------------------------

typedef struct {
  int left, top, width, height;
} Window;

// Area 0.08 to 1, aspect ratio 3/4 to 4/3, as torchvision's RandomResizedCrop.
static Window random_window(int width, int height, uint64_t *random) {
  for (int trial = 0; trial < NUM_TRIALS; trial++) {
    double area = width * (double)height * (0.08 + 0.92 * uniform(random));
    double ratio = exp(log(3.0 / 4) + (log(4.0 / 3) - log(3.0 / 4)) * uniform(random));
    int part_width = lround(sqrt(area * ratio)), part_height = lround(sqrt(area / ratio));
    if (part_width < 1 || part_height < 1 || part_width > width || part_height > height) continue;
    int left = uniform(random) * (width - part_width + 1), top = uniform(random) * (height - part_height + 1);
    return (Window){left, top, part_width, part_height};
  }
  int part_width = fmin(width, lround(height * 4.0 / 3)), part_height = fmin(height, lround(width * 4.0 / 3));
  return (Window){(width - part_width) / 2, (height - part_height) / 2, part_width, part_height};
}

static void refuse(j_common_ptr jpeg) {
  char text[JMSG_LENGTH_MAX];
  jpeg->err->format_message(jpeg, text);
  fail("a JPEG cannot be decoded", text);
}

static void ignore(j_common_ptr jpeg) { (void)jpeg; }

static void cmyk_to_rgb(uint8_t *pixels, int width, int is_inverted) {
  for (int x = 0; x < width; x++) {
    uint8_t *from = pixels + 4 * x, *to = pixels + 3 * x;
    int black = is_inverted ? from[3] : 255 - from[3];
    for (int c = 0; c < 3; c++) to[c] = (is_inverted ? from[c] : 255 - from[c]) * black / 255;
  }
}

static inline int row_at(double position, int limit, float *fraction) {
  double clamped = fmin(fmax(position, 0), limit - 1);
  *fraction = clamped - floor(clamped);
  return clamped;
}

// Bilinear with half-pixel centers. Rows are blended first (contiguous), then pairs of pixels are brought together.
static void resize(Worker *worker, const uint8_t *pixels, size_t stride, int width, int height, int flip,
                   uint8_t *out) {
  int columns[SIDE], following[SIDE];
  int16_t weights[3 * SIDE], left[3 * SIDE + 1], right[3 * SIDE + 1];  // one more: pixels are copied as 4 values
  for (int x = 0; x < SIDE; x++) {
    float fraction;
    int column = row_at((x + 0.5) * width / SIDE - 0.5, width, &fraction);
    int to = flip ? SIDE - 1 - x : x;
    columns[to] = 3 * column;
    following[to] = 3 * (column + 1 < width ? column + 1 : column);
    for (int c = 0; c < 3; c++) weights[3 * to + c] = fraction * 32767;
  }
  int16_t *blended = worker->blended;
  for (int y = 0; y < SIDE; y++) {
    float fraction;
    int row = row_at((y + 0.5) * height / SIDE - 0.5, height, &fraction);
    const uint8_t *restrict upper = pixels + row * stride;
    const uint8_t *restrict lower = upper + (row + 1 < height ? stride : 0);
    int16_t second = lrintf(fraction * 128), first = 128 - second;
    for (int i = 0; i < 3 * width; i++) blended[i] = upper[i] * first + lower[i] * second;
    for (int x = 0; x < SIDE; x++) {
      memcpy(left + 3 * x, blended + columns[x], 4 * sizeof(int16_t));
      memcpy(right + 3 * x, blended + following[x], 4 * sizeof(int16_t));
    }
    for (int i = 0; i < 3 * SIDE; i++) {
      int16_t difference = right[i] - left[i];
      int16_t value = left[i] + (int16_t)((difference * weights[i] + (1 << 14)) >> 15);
      out[i] = (uint16_t)(value + 64) >> 7;
    }
    out += 3 * SIDE;
  }
}

static void read_image(Worker *worker, const Bytes *image, uint8_t *out) {
  struct jpeg_decompress_struct *jpeg = &worker->jpeg;
  jpeg_mem_src(jpeg, image->data, image->size);
  jpeg_read_header(jpeg, TRUE);
  Window window = random_window(jpeg->image_width, jpeg->image_height, &worker->random);
  int reduction = 1;
  while (reduction < 8 && window.width >= 2 * reduction * SIDE && window.height >= 2 * reduction * SIDE) reduction *= 2;
  int is_cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
  jpeg->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
  jpeg->scale_num = 1;
  jpeg->scale_denom = reduction;
  // As TensorFlow decodes by default: the fast inverse DCT, and chroma smoothly enlarged.
  jpeg->dct_method = JDCT_IFAST;
  jpeg->do_fancy_upsampling = TRUE;
  jpeg_start_decompress(jpeg);

  int left = window.left / reduction, top = window.top / reduction;
  int width = window.width / reduction, height = window.height / reduction;
  if (width < 1) width = 1;
  if (height < 1) height = 1;
  JDIMENSION first_column = left, num_columns = width;
  if (num_columns < jpeg->output_width) jpeg_crop_scanline(jpeg, &first_column, &num_columns);  // to whole blocks
  int num_channels = is_cmyk ? 4 : 3;
  size_t stride = (size_t)num_columns * num_channels;
  if (stride * height > worker->num_pixel_bytes)
    worker->pixels = realloc(worker->pixels, worker->num_pixel_bytes = stride * height);
  if (3 * num_columns + 1 > worker->num_blended) {
    worker->num_blended = 3 * num_columns + 1;
    worker->blended = realloc(worker->blended, worker->num_blended * sizeof(int16_t));
  }
  if (top > 0) jpeg_skip_scanlines(jpeg, top);
  for (int y = 0; y < height;) {
    JSAMPROW rows[16];
    int num_rows = height - y < 16 ? height - y : 16;
    for (int i = 0; i < num_rows; i++) rows[i] = worker->pixels + (y + i) * stride;
    y += jpeg_read_scanlines(jpeg, rows, num_rows);
  }
  int is_inverted = jpeg->saw_Adobe_marker;
  jpeg_abort_decompress(jpeg);
  if (is_cmyk)
    for (int y = 0; y < height; y++) cmyk_to_rgb(worker->pixels + y * stride, num_columns, is_inverted);
  const uint8_t *part = worker->pixels + 3 * (left - (int)first_column);
  resize(worker, part, stride, width, height, draw(&worker->random) >> 63, out);
}

// --- threads --------------------------------------------------------------------------------------------------------

static void *work(void *argument) {
  Worker *worker = argument;
  worker->jpeg.err = jpeg_std_error(&worker->errors);
  worker->errors.error_exit = refuse;
  worker->errors.output_message = ignore;
  jpeg_create_decompress(&worker->jpeg);
  for (;;) {
    const Bytes *image;
    uint64_t number = take(&image);
    uint8_t *out = batches + number % (NUM_BUFFERS * BATCH) * PIXELS * 3;
    read_image(worker, image, out);
    if (number < WARM_UP_BATCHES * BATCH)
      for (int i = 0; i < 3 * PIXELS; i++) worker->sums[i % 3] += out[i];
    num_finished++;
  }
  return NULL;
}

static void sleep_for(double seconds) {
  struct timespec time = {(time_t)seconds, (seconds - (time_t)seconds) * 1e9};
  nanosleep(&time, NULL);
}

int main(int argc, char **argv) {
  if (argc != 4) fail("usage", "limit DATASET SECONDS THREADS");
  double seconds = atof(argv[2]);
  int num_threads = atoi(argv[3]);
  open_dataset(argv[1]);
  size_t num_bytes = (size_t)NUM_BUFFERS * BATCH * PIXELS * 3;
  batches = malloc(num_bytes);
  memset(batches, 0, num_bytes);
  Worker *workers = calloc(num_threads, sizeof *workers);
  double start = now();
  for (int i = 0; i < num_threads; i++) {
    pthread_t thread;
    workers[i].random = 0xD1342543DE82EF95u + i;
    if (pthread_create(&thread, NULL, work, &workers[i])) fail("cannot be started", "thread");
  }
  // The last images of the warm-up may be in work when as many are finished: a few more make sure.
  while (num_finished < WARM_UP_BATCHES * BATCH + 2u * num_threads || now() - start < WARM_UP_SECONDS) sleep_for(0.01);
  uint64_t first = num_finished;
  double cpu_start = cpu_now(), busy_start = busy_now();
  start = now();
  sleep_for(seconds);
  uint64_t count = num_finished - first;
  seconds = now() - start;
  double cpu_seconds = cpu_now() - cpu_start, others = busy_now() - busy_start - cpu_seconds;
  double capacity = seconds * sysconf(_SC_NPROCESSORS_ONLN);
  double mean[3] = {0};
  for (int i = 0; i < num_threads; i++)
    for (int c = 0; c < 3; c++) mean[c] += workers[i].sums[c] / ((double)WARM_UP_BATCHES * BATCH * PIXELS);
  printf("{\"images_per_second\": %.1f, \"images\": %llu, \"seconds\": %.3f, \"cpu_seconds\": %.3f, ", count / seconds,
         (unsigned long long)count, seconds, cpu_seconds);
  printf("\"others_cpu_fraction\": %.3f, \"shape\": [%d, %d, %d, 3], \"dtype\": \"uint8\", ",
         others > 0 ? others / capacity : 0, BATCH, SIDE, SIDE);
  printf("\"mean\": [%.2f, %.2f, %.2f], \"versions\": {\"libjpeg-turbo\": \"%s\"}}\n", mean[0], mean[1], mean[2],
         TEXT(LIBJPEG_TURBO_VERSION));
  fflush(stdout);
  _exit(0);  // the threads are still at work
}
