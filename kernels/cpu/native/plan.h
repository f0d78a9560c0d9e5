// Which thread attends to what in a step: queries cut into blocks, blocks that begin with the same slots put together,
// work items of about equal cost. Made once a step, used by every layer. It decides who computes and what is loaded
// how often, never a result: each (query, head) has one order of summation whatever the plan.
#ifndef PALMETTE_PLAN_H
#define PALMETTE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "palmette_cpu.h"

namespace pal {

constexpr int64_t ATTEND_TILE = 32;    // keys that are loaded and scored together, counted from position 0
constexpr int64_t ATTEND_CHUNK = 512;  // positions that have a softmax of their own; chunks are merged in order
constexpr int64_t ATTEND_TILES = ATTEND_CHUNK / ATTEND_TILE;

// Some queries in a row of one segment. `first`: place of the first in the segment's list of slots.
struct AttendBlock {
  int64_t row, queries, first;
  const int64_t* slots;
  int64_t tiles;    // up to the last query
  int64_t shared;   // tiles that the next block in order has too, at the same places
};

// Blocks begin..end for the key heads head..head_end, over the whole context (split < 0), or over one chunk of it.
struct AttendItem {
  int32_t begin, end, head, head_end, split;
  int64_t chunk;
  double cost;
};

// Blocks whose chunks are separate items. Who ends last puts the parts together, in order.
struct AttendSplit {
  int32_t begin, end, head, head_end;
  int64_t chunks, left, offset;
  float* parts;  // [chunks][rows of all heads][stride]: sums of D, then the maximum and the sum of weights
};

struct AttendPlan {
  const AttendBlock* blocks;
  const AttendItem* items;
  AttendSplit* splits;
  int64_t count;  // of items
  int32_t heads, kv_heads, head_dim, group;
  int64_t rows;        // the most rows (query, head) of an item
  int64_t block_rows;  // the most of them of one key head
  int64_t part_stride;
};

// Bytes of one thread's memory for the plan's items (attention.h lays it out), for any width of vectors.
static inline size_t attend_memory(const AttendPlan* plan) {
  int64_t width = (plan->head_dim + 15) / 16 * 16, row = plan->head_dim + 2 * width + 16 + 3;
  size_t bytes = (size_t)(plan->rows * row + 2 * plan->block_rows + 2 * ATTEND_TILE * width) * 4;
  return (bytes + 127) / 64 * 64;
}

struct PlanMemory;  // what a plan's arrays live in; kept from step to step
PlanMemory* plan_memory_new();
void plan_memory_free(PlanMemory*);

// `share` false: every block stands for itself, as if no slots were shared. NULL when memory is out.
const AttendPlan* plan_attention(PlanMemory*, const pal_batch* batch, int heads, int kv_heads, int head_dim,
                                 int threads, bool share);

}  // namespace pal
#endif
