/* The binary interface between NCCL and a tuner plugin, versions 5 to 7.
 *
 * Written from NCCL's documentation of the interface (plugins/tuner/README.md) and the layout of its
 * headers (src/include/plugin/tuner/tuner_v5.h to tuner_v7.h, NCCL 2.28 to 2.32). v6 adds
 * getChunkSize to v5; v7 has one generation of GPUs more in its constants. The names of types are
 * ours: only layouts and exported symbols matter.
 */
#ifndef JAXCOLL_NCCL_ABI_H
#define JAXCOLL_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

enum result { RESULT_SUCCESS = 0, RESULT_SYSTEM_ERROR = 2, RESULT_INTERNAL_ERROR = 3 };
enum log_level { LOG_WARN = 2, LOG_INFO = 3 };
#define LOG_TUNING 64UL

enum { ALGORITHMS = 7, PROTOCOLS = 3, HARDWARE_LINKS = 3, SCALES = 3 };
enum { GENERATIONS_V5 = 4, GENERATIONS_V7 = 5 };
/* The cost of what NCCL cannot run; a plugin must not change it. */
#define COST_IGNORE (-1.0f)

typedef void (*log_function)(int level, unsigned long flags, const char *file, int line,
                             const char *format, ...);

struct nvlink_domains {
  int domains, least_ranks, most_ranks;
};

/* NCCL's own cost model, in and out; this plugin leaves it as it is. */
struct constants_v5 {
  double base_latencies[ALGORITHMS][PROTOCOLS];
  double hardware_latencies[HARDWARE_LINKS][ALGORITHMS][PROTOCOLS];
  double bandwidths[5][GENERATIONS_V5][SCALES];
};
struct constants_v7 {
  double base_latencies[ALGORITHMS][PROTOCOLS];
  double hardware_latencies[HARDWARE_LINKS][ALGORITHMS][PROTOCOLS];
  double bandwidths[5][GENERATIONS_V7][SCALES];
};

typedef int init_v5(void **context, uint64_t communicator, size_t ranks, size_t nodes,
                    log_function log, struct nvlink_domains *domains, struct constants_v5 *constants);
typedef int init_v7(void **context, uint64_t communicator, size_t ranks, size_t nodes,
                    log_function log, struct nvlink_domains *domains, struct constants_v7 *constants);
/* costs: a matrix of ALGORITHMS x PROTOCOLS floats, though NCCL declares it float **. */
typedef int get_coll_info(void *context, int collective, size_t nbytes, int pipelined_ops,
                          float **costs, int algorithms, int protocols, int registered,
                          int *channels);
typedef int get_chunk_size(void *context, int collective, size_t nbytes, int algorithm, int protocol,
                           int channels, size_t *chunk_bytes);
typedef int finalize(void *context);

struct tuner_v5 {
  const char *name;
  init_v5 *init;
  get_coll_info *get_coll_info;
  finalize *finalize;
};
struct tuner_v6 {
  const char *name;
  init_v5 *init;
  get_coll_info *get_coll_info;
  finalize *finalize;
  get_chunk_size *get_chunk_size;
};
struct tuner_v7 {
  const char *name;
  init_v7 *init;
  get_coll_info *get_coll_info;
  finalize *finalize;
  get_chunk_size *get_chunk_size;
};

#endif
