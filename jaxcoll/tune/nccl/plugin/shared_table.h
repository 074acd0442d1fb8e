/* The table that a process shares with the plugin: a header, then rows, in a file that both map.
 *
 * The writer makes `sequence` odd, writes the rows and their number, and makes it even again: a
 * generation is half of an even sequence. jaxcoll/tune/nccl/shared_table.py is the writer.
 */
#ifndef JAXCOLL_SHARED_TABLE_H
#define JAXCOLL_SHARED_TABLE_H

#include <stdint.h>

#define TABLE_MAGIC "JXCTUNE1"
#define TABLE_VARIABLE "JAXCOLL_NCCL_TABLE"

struct table_header {
  char magic[8];
  uint64_t sequence;
  uint32_t capacity; /* rows that the file has room for */
  uint32_t count;    /* rows that are valid */
  char unused[40];
};

/* A rule; the first that matches decides. -1 in nodes, ranks, pipelined_ops and registered: any. */
struct table_row {
  int32_t collective, algorithm, protocol;
  int32_t channels; /* 0: NCCL's own number */
  uint64_t min_bytes, max_bytes;
  int32_t nodes, ranks, pipelined_ops, registered;
  uint64_t chunk_bytes; /* 0: NCCL's own size */
  char unused[8];
};

_Static_assert(sizeof(struct table_header) == 64, "header of 64 bytes");
_Static_assert(sizeof(struct table_row) == 64, "rows of 64 bytes");

#endif
