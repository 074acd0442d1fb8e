/* Compiles only if nccl_abi.h has the layouts of NCCL's own header of the tuner interface. */
#include <stddef.h>
#include <string.h>

#include "tuner.h" /* NCCL's: plugins/tuner/example/nccl */

#include "nccl_abi.h"

#define SAME(ours, theirs) _Static_assert((ours) == (theirs), #ours " is not " #theirs)
#define SAME_PLACE(ours, field, theirs, their_field)                                               \
  SAME(offsetof(struct ours, field), offsetof(theirs, their_field))

#define SAME_TUNER(version)                                                                        \
  SAME(sizeof(struct tuner_v##version), sizeof(ncclTuner_v##version##_t));                         \
  SAME_PLACE(tuner_v##version, name, ncclTuner_v##version##_t, name);                              \
  SAME_PLACE(tuner_v##version, init, ncclTuner_v##version##_t, init);                              \
  SAME_PLACE(tuner_v##version, get_coll_info, ncclTuner_v##version##_t, getCollInfo);              \
  SAME_PLACE(tuner_v##version, finalize, ncclTuner_v##version##_t, finalize)
#define SAME_CHUNK(version)                                                                        \
  SAME_PLACE(tuner_v##version, get_chunk_size, ncclTuner_v##version##_t, getChunkSize)

SAME_TUNER(5);
SAME_TUNER(6);
SAME_TUNER(7);
SAME_CHUNK(6);
SAME_CHUNK(7);
SAME(sizeof(struct constants_v5), sizeof(ncclTunerConstants_v5_t));
SAME(sizeof(struct constants_v7), sizeof(ncclTunerConstants_v7_t));
SAME_PLACE(constants_v5, bandwidths, ncclTunerConstants_v5_t, llMaxBws);
SAME_PLACE(constants_v7, bandwidths, ncclTunerConstants_v7_t, llMaxBws);
SAME(sizeof(struct nvlink_domains), sizeof(ncclNvlDomainInfo_v5_t));
SAME(ALGORITHMS, NCCL_NUM_ALGORITHMS);
SAME(PROTOCOLS, NCCL_NUM_PROTOCOLS);
SAME((int)COST_IGNORE, (int)NCCL_ALGO_PROTO_IGNORE);
SAME((int)RESULT_SUCCESS, (int)ncclSuccess);
SAME((int)RESULT_SYSTEM_ERROR, (int)ncclSystemError);
SAME((int)RESULT_INTERNAL_ERROR, (int)ncclInternalError);
SAME((int)LOG_WARN, (int)NCCL_LOG_WARN);
SAME((int)LOG_INFO, (int)NCCL_LOG_INFO);
SAME((int)LOG_TUNING, (int)NCCL_TUNING);

/* The orders of words in jaxcoll/io/nccl/conf.py. */
SAME(0, (int)ncclFuncBroadcast);
SAME(1, (int)ncclFuncReduce);
SAME(2, (int)ncclFuncAllGather);
SAME(3, (int)ncclFuncReduceScatter);
SAME(4, (int)ncclFuncAllReduce);
SAME(0, NCCL_ALGO_TREE);
SAME(1, NCCL_ALGO_RING);
SAME(2, NCCL_ALGO_COLLNET_DIRECT);
SAME(3, NCCL_ALGO_COLLNET_CHAIN);
SAME(4, NCCL_ALGO_NVLS);
SAME(5, NCCL_ALGO_NVLS_TREE);
SAME(6, NCCL_ALGO_PAT);
SAME(0, NCCL_PROTO_LL);
SAME(1, NCCL_PROTO_LL128);
SAME(2, NCCL_PROTO_SIMPLE);
