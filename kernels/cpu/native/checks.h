// Whether a cache and a batch are what a step may be run on. Not for level files.
#ifndef PALMETTE_CHECKS_H
#define PALMETTE_CHECKS_H

#include "palmette_cpu.h"
#include "team.h"

namespace pal {

static inline bool within(const int64_t* values, int64_t count, int64_t limit) {
  uint64_t worst = 0;
  for (int64_t i = 0; i < count; i++) worst = (uint64_t)values[i] > worst ? (uint64_t)values[i] : worst;
  return count == 0 || worst < (uint64_t)limit;
}

static inline int check_kv(const pal_kv* kv) {
  if (!kv || !kv->k || !kv->v) return fail(PAL_BAD_ARGUMENT, "no cache of keys and values");
  if (kv->dtype < PAL_KV_F32 || kv->dtype > PAL_KV_I8) {
    return fail(PAL_BAD_ARGUMENT, "unknown type of cache %d", kv->dtype);
  }
  if (kv->dtype == PAL_KV_I8 && (!kv->k_scale || !kv->v_scale)) {
    return fail(PAL_BAD_ARGUMENT, "an int8 cache needs scales");
  }
  if (kv->slot_stride != kv->kv_heads * kv->head_dim) {
    return fail(PAL_BAD_ARGUMENT, "the heads of a slot do not lie side by side");
  }
  return PAL_OK;
}

// Segments and their slots; `rows` are theirs together.
static inline int check_segments(const pal_kv* kv, const pal_batch* batch) {
  if (batch->segments < 0 || (batch->segments && (!batch->seg_start || !batch->kv_start || !batch->kv_slots))) {
    return fail(PAL_BAD_ARGUMENT, "a batch without segments");
  }
  if (batch->rows && !batch->segments) return fail(PAL_BAD_ARGUMENT, "rows that belong to no segment");
  for (int64_t s = 0; s < batch->segments; s++) {
    int64_t n = batch->seg_start[s + 1] - batch->seg_start[s], seen = batch->kv_start[s + 1] - batch->kv_start[s];
    if (n < 1 || seen < n) {
      return fail(PAL_BAD_ARGUMENT, "segment %lld has %lld tokens and %lld slots", (long long)s, (long long)n,
                  (long long)seen);
    }
  }
  if (!batch->segments) return PAL_OK;
  if (batch->seg_start[0] != 0 || batch->seg_start[batch->segments] != batch->rows || batch->kv_start[0] != 0) {
    return fail(PAL_BAD_ARGUMENT, "the segments do not span the batch");
  }
  if (!within(batch->kv_slots, batch->kv_start[batch->segments], kv->slots)) {
    return fail(PAL_BAD_ARGUMENT, "a segment reads a slot that the cache lacks");
  }
  return PAL_OK;
}

static inline int no_memory(const char* what) { return fail(PAL_NO_MEMORY, "no memory for %s", what); }

}  // namespace pal
#endif
