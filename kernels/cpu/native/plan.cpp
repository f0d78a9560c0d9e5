#include "plan.h"

#include <string.h>

#include <algorithm>
#include <new>

#include "grow.h"

namespace pal {

struct Run {
  int32_t begin, end;
  int64_t rows, tiles;
  double cost;  // for one key head
};

struct PlanMemory {
  Grow<int32_t> order;
  Grow<int64_t> shared;
  Grow<AttendBlock> blocks;
  Grow<Run> runs;
  Grow<AttendItem> items;
  Grow<AttendSplit> splits;
  Grow<float> parts;
  AttendPlan plan;
};

PlanMemory* plan_memory_new() { return new (std::nothrow) PlanMemory(); }
void plan_memory_free(PlanMemory* memory) { delete memory; }

namespace {

const int64_t kRows = 96;             // rows (query, head) of one key head in a block of queries
const int64_t kStateBytes = 96 << 10;  // of running results that an item keeps
const int64_t kPartFloats = 16 << 20;  // of parts that split items may store

struct Lists {
  const pal_batch* batch;
  const int64_t* of(int32_t s) const { return batch->kv_slots + batch->kv_start[s]; }
  int64_t length(int32_t s) const { return batch->kv_start[s + 1] - batch->kv_start[s]; }
};

// Put order[a..b), whose lists agree in the first `tile` tiles, so that lists that agree longer stand side by side.
// shared[i]: whole tiles in which order[i] and order[i + 1] agree. The cost is that of reading what is shared.
void arrange(const Lists& lists, int32_t* order, int64_t* shared, int32_t a, int32_t b, int64_t tile) {
  const size_t bytes = ATTEND_TILE * sizeof(int64_t);
  while (b - a > 1) {
    int32_t leader = order[a], end = a + 1;
    if ((tile + 1) * ATTEND_TILE <= lists.length(leader)) {
      const int64_t* wanted = lists.of(leader) + tile * ATTEND_TILE;
      for (int32_t i = a + 1; i < b; i++) {
        int32_t s = order[i];
        if ((tile + 1) * ATTEND_TILE > lists.length(s)) continue;
        if (memcmp(lists.of(s) + tile * ATTEND_TILE, wanted, bytes) != 0) continue;
        std::swap(order[i], order[end++]);
      }
      if (end == b) {
        tile++;
        continue;
      }
      arrange(lists, order, shared, a, end, tile + 1);
    }
    shared[end - 1] = tile;
    a = end;
  }
}

// How many blocks the segments make; -1 when memory is out.
int64_t cut_blocks(PlanMemory& m, const Lists& lists, int group, bool share) {
  const pal_batch* batch = lists.batch;
  const int32_t count = (int32_t)batch->segments;
  const int64_t most = std::max<int64_t>(1, kRows / group);
  int64_t needed = 0;
  for (int32_t s = 0; s < count; s++) needed += (batch->seg_start[s + 1] - batch->seg_start[s] + most - 1) / most;
  if (!m.order.room(count) || !m.shared.room(count) || !m.blocks.room(needed)) return -1;
  for (int32_t s = 0; s < count; s++) m.order[s] = s;
  memset(m.shared.data, 0, (size_t)count * sizeof(int64_t));
  if (share) arrange(lists, m.order.data, m.shared.data, 0, count, 0);
  AttendBlock* block = m.blocks.data;
  for (int32_t i = 0; i < count; i++) {
    int32_t s = m.order[i];
    int64_t begin = batch->seg_start[s], end = batch->seg_start[s + 1], length = lists.length(s);
    int64_t context = length - (end - begin);
    for (int64_t row = begin; row < end; row += most, block++) {
      block->row = row;
      block->queries = std::min(most, end - row);
      block->first = context + row - begin;
      block->slots = lists.of(s);
      int64_t seen = block->first + block->queries;
      block->tiles = (seen + ATTEND_TILE - 1) / ATTEND_TILE;
      // Blocks of one segment share all whole tiles of the shorter; those of others what `arrange` found.
      block->shared = !share ? 0 : row + most < end ? seen / ATTEND_TILE : m.shared[i];
      if (block > m.blocks.data) block[-1].shared = std::min(block[-1].shared, seen / ATTEND_TILE);
      block->shared = std::min(block->shared, seen / ATTEND_TILE);
    }
  }
  if (needed) m.blocks[needed - 1].shared = 0;
  return needed;
}

// How dear a run of blocks is for one key head: a tile costs as much as some rows of arithmetic to load.
double cost_of(const AttendBlock* blocks, int32_t begin, int32_t end, int group, int64_t from, int64_t to) {
  double cost = 0;
  for (int32_t i = begin; i < end; i++) {
    int64_t tiles = std::max<int64_t>(0, std::min(blocks[i].tiles, to) - from);
    int64_t had = i > begin ? std::max<int64_t>(0, std::min(blocks[i - 1].shared, to) - from) : 0;
    cost += (double)(tiles * blocks[i].queries * group) + 4.0 * (double)std::max<int64_t>(0, tiles - had);
  }
  return cost;
}

}  // namespace

const AttendPlan* plan_attention(PlanMemory* memory, const pal_batch* batch, int heads, int kv_heads, int head_dim,
                                 int threads, bool share) {
  PlanMemory& m = *memory;
  AttendPlan& plan = m.plan;
  plan.heads = heads;
  plan.kv_heads = kv_heads;
  plan.head_dim = head_dim;
  plan.group = heads / kv_heads;
  plan.part_stride = head_dim + 2;
  plan.rows = plan.block_rows = 0;
  Lists lists{batch};
  const int64_t count = cut_blocks(m, lists, plan.group, share);
  if (count < 0 || !m.runs.room(count)) return nullptr;
  const AttendBlock* blocks = m.blocks.data;

  // Neighbours that share tiles make a run, as long as what is kept of their rows stays in the second-level cache.
  const int64_t room = std::max(kRows, kStateBytes / (head_dim * (int64_t)sizeof(float)));
  double total = 0;
  int64_t runs = 0, most_items = 0;
  for (int32_t i = 0; i < (int32_t)count; runs++) {
    Run run{i, i + 1, blocks[i].queries * plan.group, blocks[i].tiles, 0};
    while (run.end < (int32_t)count && blocks[run.end - 1].shared > 0) {
      int64_t more = blocks[run.end].queries * plan.group;
      if (run.rows + more > room) break;
      run.rows += more;
      run.tiles = std::max(run.tiles, blocks[run.end].tiles);
      run.end++;
    }
    run.cost = cost_of(blocks, run.begin, run.end, plan.group, 0, run.tiles);
    total += run.cost * kv_heads;
    most_items += kv_heads * ((run.tiles + ATTEND_TILES - 1) / ATTEND_TILES);
    m.runs[runs] = run;
    i = run.end;
  }
  if (!m.items.room(most_items) || !m.splits.room(runs * kv_heads)) return nullptr;

  // An item may take so much that the threads still end together; above that it is cut by heads, then by chunks.
  const double most = threads > 1 ? total / (threads * 3.0) : total;
  int64_t items = 0, splits = 0, floats = 0;
  for (int64_t r = 0; r < runs; r++) {
    const Run& run = m.runs[r];
    int32_t together = (int32_t)std::min<int64_t>(kv_heads, std::max<int64_t>(1, room / run.rows));
    while (together > 1 && run.cost * together > most) together = (together + 1) / 2;
    const int64_t chunks = (run.tiles + ATTEND_TILES - 1) / ATTEND_TILES;
    plan.rows = std::max(plan.rows, run.rows * together);
    plan.block_rows = std::max(plan.block_rows, run.rows);
    for (int32_t head = 0; head < kv_heads; head += together) {
      const int32_t head_end = std::min(kv_heads, head + together);
      const int64_t size = chunks * run.rows * (head_end - head) * plan.part_stride;
      if (chunks == 1 || run.cost <= most || floats + size > kPartFloats) {
        m.items[items++] = {run.begin, run.end, head, head_end, -1, -1, run.cost * (head_end - head)};
        continue;
      }
      for (int64_t c = 0; c < chunks; c++) {
        double cost = cost_of(blocks, run.begin, run.end, plan.group, c * ATTEND_TILES, (c + 1) * ATTEND_TILES);
        m.items[items++] = {run.begin, run.end, head, head_end, (int32_t)splits, c, cost * (head_end - head)};
      }
      m.splits[splits++] = {run.begin, run.end, head, head_end, chunks, chunks, floats, nullptr};
      floats += size;
    }
  }
  if (!m.parts.room(floats)) return nullptr;
  for (int64_t i = 0; i < splits; i++) m.splits[i].parts = m.parts.data + m.splits[i].offset;
  // The longest first: what is left at the end is short.
  auto dearer = [](const AttendItem& a, const AttendItem& b) { return a.cost > b.cost; };
  std::sort(m.items.data, m.items.data + items, dearer);
  plan.blocks = blocks;
  plan.items = m.items.data;
  plan.splits = m.splits.data;
  plan.count = items;
  return &plan;
}

}  // namespace pal
