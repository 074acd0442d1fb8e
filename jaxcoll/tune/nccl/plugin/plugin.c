/* A tuner plugin for NCCL that follows a shared table.
 *
 *   NCCL_TUNER_PLUGIN=/path/libjaxcoll-nccl-tuner.so JAXCOLL_NCCL_TABLE=/dev/shm/table python train.py
 *
 * Every call of NCCL sees the newest generation of the table. What the table does not decide, or
 * decides for something that NCCL cannot run, is left to NCCL. Without a table, or with one that is
 * damaged, NCCL runs as it does without a plugin, and a warning says so.
 *
 * All ranks of a communicator must see the same generation at the same call. So each process has a
 * table of its own, which it rewrites between two steps, when it issues no collective.
 */
#include "nccl_abi.h"
#include "shared_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* One per communicator: what it is, and its copy of the rows. */
struct tuner {
  int nodes, ranks;
  log_function log;
  struct table_header *shared; /* NULL: no table */
  size_t mapped_bytes;
  uint64_t sequence; /* of the copy */
  uint32_t count;
  struct table_row *rows;
};

#define SAY(tuner, level, ...)                                                                      \
  do {                                                                                              \
    if ((tuner)->log) (tuner)->log(level, LOG_TUNING, __FILE__, __LINE__, __VA_ARGS__);             \
  } while (0)

/* ------------------------------------------------------------------ the shared table */

static const char *map_table(struct tuner *tuner, const char *path) {
  struct stat status;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return strerror(errno);
  if (fstat(file, &status) != 0 || status.st_size < (off_t)sizeof(struct table_header)) {
    close(file);
    return "shorter than a header";
  }
  size_t bytes = (size_t)status.st_size;
  void *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return strerror(errno);
  struct table_header *shared = memory;
  size_t room = (bytes - sizeof *shared) / sizeof(struct table_row);
  const char *wrong = NULL;
  if (memcmp(shared->magic, TABLE_MAGIC, sizeof shared->magic) != 0) {
    wrong = "not a table of this version";
  } else if (shared->capacity > room) {
    wrong = "cut short";
  } else if (!(tuner->rows = calloc(shared->capacity ? shared->capacity : 1, sizeof *tuner->rows))) {
    wrong = "too large for the memory";
  }
  if (wrong) {
    munmap(memory, bytes);
    return wrong;
  }
  tuner->shared = shared;
  tuner->mapped_bytes = bytes;
  return NULL;
}

/* Copy the rows if there is a newer generation; while one is being written, keep the old copy. */
static void follow(struct tuner *tuner) {
  struct table_header *shared = tuner->shared;
  if (!shared) return;
  uint64_t before = __atomic_load_n(&shared->sequence, __ATOMIC_ACQUIRE);
  if (before == tuner->sequence || before % 2) return;
  uint32_t count = shared->count, capacity = shared->capacity;
  if (count > capacity) return;
  const struct table_row *rows = (const struct table_row *)(shared + 1);
  struct table_row *copy = malloc((count ? count : 1) * sizeof *copy);
  if (!copy) return;
  memcpy(copy, rows, count * sizeof *copy);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  if (__atomic_load_n(&shared->sequence, __ATOMIC_RELAXED) == before) {
    free(tuner->rows);
    tuner->rows = copy;
    tuner->count = count;
    tuner->sequence = before;
    SAY(tuner, LOG_INFO, "jaxcoll: generation %llu of the table, %u rules",
        (unsigned long long)(before / 2), count);
  } else {
    free(copy);
  }
}

static int any_or(int wanted, int value) { return wanted == -1 || wanted == value; }

static int is_for(const struct table_row *row, const struct tuner *tuner, int collective,
                  size_t nbytes) {
  return row->collective == collective && row->min_bytes <= nbytes && nbytes <= row->max_bytes &&
         any_or(row->nodes, tuner->nodes) && any_or(row->ranks, tuner->ranks);
}

/* ------------------------------------------------------------------ what NCCL calls */

static int start(void **context, size_t ranks, size_t nodes, log_function log) {
  struct tuner *tuner = calloc(1, sizeof *tuner);
  if (!tuner) return RESULT_SYSTEM_ERROR;
  tuner->nodes = (int)nodes;
  tuner->ranks = (int)ranks;
  tuner->log = log;
  const char *path = getenv(TABLE_VARIABLE);
  const char *wrong = path ? map_table(tuner, path) : "the variable is not set";
  if (wrong) {
    SAY(tuner, LOG_WARN, "jaxcoll: no table, NCCL's own choices: " TABLE_VARIABLE "=%s: %s",
        path ? path : "", wrong);
  }
  *context = tuner;
  return RESULT_SUCCESS;
}

static int start_v5(void **context, uint64_t communicator, size_t ranks, size_t nodes,
                    log_function log, struct nvlink_domains *domains, struct constants_v5 *constants) {
  (void)communicator, (void)domains, (void)constants;
  return start(context, ranks, nodes, log);
}

static int start_v7(void **context, uint64_t communicator, size_t ranks, size_t nodes,
                    log_function log, struct nvlink_domains *domains, struct constants_v7 *constants) {
  (void)communicator, (void)domains, (void)constants;
  return start(context, ranks, nodes, log);
}

/* Make the algorithm and protocol of the first rule that NCCL can run cost nothing. */
static int choose(void *context, int collective, size_t nbytes, int pipelined_ops, float **costs,
                  int algorithms, int protocols, int registered, int *channels) {
  struct tuner *tuner = context;
  if (!tuner) return RESULT_INTERNAL_ERROR;
  follow(tuner);
  float *cost = (float *)costs;
  for (uint32_t i = 0; i < tuner->count; i++) {
    const struct table_row *row = &tuner->rows[i];
    if (!is_for(row, tuner, collective, nbytes) || !any_or(row->pipelined_ops, pipelined_ops) ||
        !any_or(row->registered, registered) || row->algorithm < 0 || row->protocol < 0 ||
        row->algorithm >= algorithms || row->protocol >= protocols) {
      continue;
    }
    float *entry = &cost[row->algorithm * protocols + row->protocol];
    if (*entry == COST_IGNORE) continue;
    *entry = 0.0f;
    if (row->channels > 0) *channels = row->channels;
    return RESULT_SUCCESS;
  }
  return RESULT_SUCCESS;
}

static int chunk(void *context, int collective, size_t nbytes, int algorithm, int protocol,
                 int channels, size_t *chunk_bytes) {
  struct tuner *tuner = context;
  (void)channels;
  if (!tuner) return RESULT_INTERNAL_ERROR;
  for (uint32_t i = 0; i < tuner->count; i++) {
    const struct table_row *row = &tuner->rows[i];
    if (is_for(row, tuner, collective, nbytes) && row->algorithm == algorithm &&
        row->protocol == protocol) {
      if (row->chunk_bytes) *chunk_bytes = (size_t)row->chunk_bytes;
      return RESULT_SUCCESS;
    }
  }
  return RESULT_SUCCESS;
}

static int stop(void *context) {
  struct tuner *tuner = context;
  if (!tuner) return RESULT_SUCCESS;
  if (tuner->shared) munmap(tuner->shared, tuner->mapped_bytes);
  free(tuner->rows);
  free(tuner);
  return RESULT_SUCCESS;
}

#define EXPORTED __attribute__((visibility("default")))
EXPORTED const struct tuner_v5 ncclTunerPlugin_v5 = {"jaxcoll", start_v5, choose, stop};
EXPORTED const struct tuner_v6 ncclTunerPlugin_v6 = {"jaxcoll", start_v5, choose, stop, chunk};
EXPORTED const struct tuner_v7 ncclTunerPlugin_v7 = {"jaxcoll", start_v7, choose, stop, chunk};
