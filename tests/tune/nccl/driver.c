/* Plays NCCL: loads the plugin, makes a communicator, asks about collectives, and prints answers.
 *
 * usage: driver LIBRARY VERSION RANKS NODES < questions
 * A question is a line "COLLECTIVE NBYTES PIPELINED REGISTERED IGNORED", IGNORED being the place of a
 * cost that NCCL cannot run, or -1. The answer is "ALGORITHM PROTOCOL CHANNELS CHUNK"; -1 -1 where
 * the plugin decides nothing. The line "wait" is answered by "ready".
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);

/* The tuner as NCCL's headers lay it out: a name, then functions. */
struct tuner {
  const char *name;
  int (*init)(void **, uint64_t, size_t, size_t, logger, int *, double *);
  int (*get_coll_info)(void *, int, size_t, int, float **, int, int, int, int *);
  int (*finalize)(void *);
  int (*get_chunk_size)(void *, int, size_t, int, int, int, size_t *);
};

static void say(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  va_list arguments;
  (void)file, (void)line;
  fprintf(stderr, "%d %lu ", level, flags);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  fputc('\n', stderr);
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  char symbol[64], question[256];
  int version = atoi(argv[2]), domains[3] = {1, 8, 8};
  snprintf(symbol, sizeof symbol, "ncclTunerPlugin_v%d", version);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
  const struct tuner *tuner = dlsym(library, symbol);
  if (!tuner) return fprintf(stderr, "%s\n", dlerror()), 4;
  /* 21 + 63 latencies and 5 x 3 bandwidths per generation of GPUs: 4 up to v6, 5 in v7. */
  size_t numbers = 84 + 15 * (version < 7 ? 4 : 5);
  double *constants = malloc((numbers + 1) * sizeof *constants);
  for (size_t i = 0; i <= numbers; i++) constants[i] = (double)i;
  void *context = NULL;
  if (tuner->init(&context, 7, strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10), say, domains,
                  constants)) {
    return 5;
  }
  for (size_t i = 0; i <= numbers; i++) {
    if (constants[i] != (double)i) return 6;
  }
  while (fgets(question, sizeof question, stdin)) {
    int collective, pipelined, registered, ignored, channels = 0, algorithm = -1, protocol = -1;
    unsigned long long nbytes;
    if (strncmp(question, "wait", 4) == 0) {
      puts("ready");
      fflush(stdout);
      continue;
    }
    if (sscanf(question, "%d %llu %d %d %d", &collective, &nbytes, &pipelined, &registered,
               &ignored) != 5) {
      return 7;
    }
    float costs[7][3];
    for (int i = 0; i < 21; i++) costs[i / 3][i % 3] = i == ignored ? -1.0f : 1.0f + (float)i;
    if (tuner->get_coll_info(context, collective, nbytes, pipelined, (float **)costs, 7, 3,
                             registered, &channels)) {
      return 8;
    }
    for (int i = 0; i < 21; i++) {
      float before = i == ignored ? -1.0f : 1.0f + (float)i;
      if (costs[i / 3][i % 3] == before) continue;
      if (costs[i / 3][i % 3] != 0.0f || algorithm >= 0) return 9;
      algorithm = i / 3, protocol = i % 3;
    }
    size_t chunk = 1;
    if (version >= 6 && tuner->get_chunk_size(context, collective, nbytes, algorithm, protocol,
                                              channels, &chunk)) {
      return 10;
    }
    printf("%d %d %d %zu\n", algorithm, protocol, channels, chunk);
    fflush(stdout);
  }
  free(constants);
  return tuner->finalize(context) ? 11 : dlclose(library);
}
