// Attention of a step's queries over slots. Included inside the level's namespace.
//
// The one order of summation (what makes a token's result independent of its company): the keys of a segment's list are
// taken in tiles of 32 from position 0; a score is a sum over the head's elements in order; within a chunk of 512
// positions a running maximum, the lanes of a running sum of weights, and each element of the running result take up
// the tiles' keys in order of position (online softmax: Milakov and Gimelshein 2018); chunks are merged in order. Every
// (query, head) does just that, whichever queries are computed beside it. Weights are powers of 2.
//
//   blocks of queries, ordered so that those with a common beginning stand side by side:
//     block 0   tile 0 1 2 3 | 4 5
//     block 1   tile 0 1 2 3 | 4 5 6      tiles 0-3 are loaded once for both (cascade attention)
//     block 2   tile 0 1 | 2 3

#include "attention_tile.h"

// Columns are filled up with zeros to whole vectors.
PAL_INLINE int64_t attend_width(int64_t head_dim) { return (head_dim + W - 1) / W * W; }

struct AttendCall {
  const float* q;  // head h of row r begins at q + r * q_stride + h * D
  int64_t q_stride;
  float* out;  // as q
  int64_t out_stride;
  float scale, softcap;
  int64_t window;
  const void *k, *v;              // of the layer
  const float *k_scale, *v_scale;  // int8 only: [slots][kv_heads]
  int32_t dtype;                  // PAL_KV_F32, PAL_KV_BF16, PAL_KV_I8
  int64_t slot_stride;            // elements
};

// A thread's memory for one item; `rows` of it counts (query, head).
struct AttendScratch {
  float* q;        // [rows][D] scaled
  float* sum;      // [rows][width] of the chunk
  float* merged;   // [rows][width] of the chunks before
  float* weight;   // [rows][W] lanes of the chunk's sum of weights
  float* top;      // [rows] what the chunk's weights stand in relation to, a score
  float* merged_top;
  float* merged_weight;
  int32_t* begin;  // [rows of a head] the first place that a row sees ...
  int32_t* end;    // ... and the one after the last
  float* keys;     // [D][32] a tile of keys, turned round
  float* values;   // [32][width]
};

static AttendScratch attend_scratch(const AttendPlan* plan, char* memory) {
  int64_t width = attend_width(plan->head_dim), rows = plan->rows;
  AttendScratch s;
  float* at = (float*)memory;
  s.keys = at;
  s.values = s.keys + ATTEND_TILE * width;
  s.sum = s.values + ATTEND_TILE * width;
  s.merged = s.sum + rows * width;
  s.weight = s.merged + rows * width;
  s.q = s.weight + rows * W;
  s.top = s.q + rows * plan->head_dim;
  s.merged_top = s.top + rows;
  s.merged_weight = s.merged_top + rows;
  s.begin = (int32_t*)(s.merged_weight + rows);
  s.end = s.begin + plan->block_rows;
  return s;
}

// ---- a tile for some rows

// What a tile is to its rows: scores in, weights out; the rows' state follows.
struct TileRows {
  const AttendCall* call;
  const AttendScratch* scratch;
  const float *k_scale, *v_scale;  // [32] of the tile's keys, or NULL
  int64_t place;                   // of the tile's first key
  int n;                           // keys of the tile
  bool whole;                      // every row sees every key
  int64_t width, head_dim;
};

// A chunk's weights stand in relation to its first tile's largest score, and to a larger one only when that is larger
// by more than this, as powers of 2: most tiles leave the running sums as they are, whose range has room for it.
constexpr float ATTEND_SLACK = 16.0f;
constexpr float ATTEND_NONE = -1e30f;  // no score yet

// Scores as they count: scaled, capped, -inf where a row does not see a key. What lies behind the last key seen may
// never have been written.
static __attribute__((noinline)) void finish_scores(const TileRows& t, int64_t seen, int rows, float* scores) {
  const AttendScratch& s = *t.scratch;
  const float softcap = t.call->softcap;
  I lane = {};
  for (int i = 0; i < W; i++) lane[i] = i;
  for (int r = 0; r < rows; r++, seen++, scores += ATTEND_TILE) {
    const int64_t begin = s.begin[seen] - t.place, end = s.end[seen] - t.place;
    const int32_t first = (int32_t)(begin < 0 ? 0 : begin), last = (int32_t)(end < ATTEND_TILE ? end : ATTEND_TILE);
    for (int32_t at = 0; at < ATTEND_TILE; at += W) {
      F z = set1(-INFINITY);
      if (at < last && at + W > first) {
        z = load(scores + at);
        if (t.k_scale) z *= load(t.k_scale + at);
        if (softcap > 0.0f) z = tanh(z) * (softcap * 1.44269504f);
        I place = lane + at;
        z = select((place >= first) & (place < last), z, set1(-INFINITY));
      }
      store(scores + at, z);
    }
  }
}

// The row's results so far, in relation to this tile's largest score.
static __attribute__((noinline)) void raise_top(const TileRows& t, int64_t row, F most) {
  const AttendScratch& s = *t.scratch;
  const float before = s.top[row], top = attend_largest(most);
  s.top[row] = top;
  F factor = exp2(set1(before - top));
  store(s.weight + row * W, load(s.weight + row * W) * factor);
  float* sum = s.sum + row * t.width;
  for (int64_t d = 0; d < t.width; d += W) store(sum + d, load(sum + d) * factor);
}

// Weights of some rows' scores, in their place. `row` counts the rows of all heads, `seen` those of one. The rows'
// steps depend on nothing of each other's, so that many are under way at once.
static __attribute__((noinline)) void weigh_rows(const TileRows& t, int64_t row, int64_t seen, int rows,
                                                 float* scores) {
  const AttendScratch& s = *t.scratch;
  if (!t.whole || t.k_scale || t.call->softcap > 0.0f) finish_scores(t, seen, rows, scores);
  F most[ATTEND_GROUP];
  I above = {};
  for (int r = 0; r < rows; r++) {
    F largest = load(scores + r * ATTEND_TILE);
    PAL_UNROLL
    for (int v = 1; v < ATTEND_VECTORS; v++) largest = max(largest, load(scores + r * ATTEND_TILE + v * W));
    most[r] = largest;
    above |= largest > s.top[row + r] + ATTEND_SLACK;
  }
  if (any(above)) {
    for (int r = 0; r < rows; r++) {
      if (any(most[r] > s.top[row + r] + ATTEND_SLACK)) raise_top(t, row + r, most[r]);
    }
  }
  for (int r = 0; r < rows; r++, scores += ATTEND_TILE) {
    const float top = s.top[row + r];
    float* weight = s.weight + (row + r) * W;
    F total = load(weight), w[ATTEND_VECTORS];
    PAL_UNROLL
    for (int v = 0; v < ATTEND_VECTORS; v++) w[v] = load(scores + v * W) - top;
    exp2_below<ATTEND_VECTORS>(w);
    PAL_UNROLL
    for (int v = 0; v < ATTEND_VECTORS; v++) {
      total += w[v];
      store(scores + v * W, w[v]);
    }
    store(weight, total);
    for (int v = 0; t.v_scale && v < ATTEND_VECTORS; v++) store(scores + v * W, w[v] * load(t.v_scale + v * W));
  }
}

template <int MR, class Values>
static __attribute__((noinline)) void attend_rows(const TileRows& t, const Values& values, int64_t row, int64_t seen,
                                                  Ahead& lines) {
  Ahead ahead = lines;
  const AttendScratch& s = *t.scratch;
  alignas(64) float scores[MR * ATTEND_TILE];
  int64_t first = 0, last = ATTEND_TILE;
  if (!t.whole) {
    first = ATTEND_TILE, last = 0;
    for (int r = 0; r < MR; r++) {
      int64_t begin = s.begin[seen + r] - t.place, end = s.end[seen + r] - t.place;
      first = begin < first ? begin : first;
      last = end > last ? end : last;
    }
    first = first < 0 ? 0 : first;
    last = last < t.n ? last : t.n;
    if (first >= last) return;
  }
  constexpr int NV = MR <= 3 && ATTEND_LANES > 2 ? 4 : 2;
  score_rows<MR, NV, Values::FINE>(s.q + row * t.head_dim, t.head_dim, s.keys, t.head_dim, (int)last, ahead, scores);
  weigh_rows(t, row, seen, MR, scores);
  float* sums = s.sum + row * t.width;
  int64_t d = 0;
  for (; d + NV * W <= t.width; d += NV * W) {
    add_columns<MR, NV>(scores, values, (int)first, (int)last, d, ahead, sums, t.width);
  }
  for (; d < t.width; d += W) add_columns<MR, 1>(scores, values, (int)first, (int)last, d, ahead, sums, t.width);
  lines = ahead;
}

template <class Values>
static void attend_group(const TileRows& t, const Values& values, int64_t row, int64_t seen, int64_t rows,
                         Ahead& ahead) {
  static_assert(ATTEND_GROUP == 6, "one case for each number of rows");
  switch (rows) {
    case 1: return attend_rows<1>(t, values, row, seen, ahead);
    case 2: return attend_rows<2>(t, values, row, seen, ahead);
    case 3: return attend_rows<3>(t, values, row, seen, ahead);
    case 4: return attend_rows<4>(t, values, row, seen, ahead);
    case 5: return attend_rows<5>(t, values, row, seen, ahead);
    default: return attend_rows<6>(t, values, row, seen, ahead);
  }
}

// A tile for `rows` rows of one key head, whose first is `row` among all rows and `seen` among the head's.
template <class Kv>
static void attend_tile(const AttendCall& call, const AttendPlan& plan, const AttendScratch& s, int64_t head,
                        const TileSlots& slots, int64_t place, bool whole, int64_t row, int64_t seen, int64_t rows) {
  typedef typename Kv::Element Element;
  const Element* k = (const Element*)call.k + head * plan.head_dim;
  const Element* v = (const Element*)call.v + head * plan.head_dim;
  constexpr int64_t MOST = 32;
  const char* column[2 * MOST];
  int64_t lines = (plan.head_dim * (int64_t)sizeof(Element) + 63) / 64;
  lines = lines < MOST ? lines : MOST;
  for (int64_t i = 0; i < lines; i++) {
    column[i] = (const char*)k + i * 64;  // keys first: they are wanted first
    column[lines + i] = (const char*)v + i * 64;
  }
  Ahead ahead = {column, slots.next, 0, slots.coming ? 2 * (uint64_t)(lines * ATTEND_TILE) : 0};
  alignas(64) float k_scale[ATTEND_TILE], v_scale[ATTEND_TILE];
  TileRows t = {&call, &s, nullptr, nullptr, place, slots.n, whole, attend_width(plan.head_dim), plan.head_dim};
  if (Kv::SCALED) {
    for (int i = 0; i < ATTEND_TILE; i++) {
      int64_t at = slots.slots[i < slots.n ? i : slots.n - 1] * plan.kv_heads + head;
      k_scale[i] = call.k_scale[at];
      v_scale[i] = call.v_scale[at];
    }
    t.k_scale = k_scale;
    t.v_scale = v_scale;
  }
  // Scores are computed for whole strips of vectors; those beyond n count for nothing.
  const int strip = ATTEND_LANES * W < ATTEND_TILE ? ATTEND_LANES * W : (int)ATTEND_TILE;
  turn_keys<Kv>(k, slots.here, (slots.n + strip - 1) / strip * strip, plan.head_dim, s.keys);
  if (rows <= ATTEND_GROUP && plan.head_dim % W == 0) {
    attend_group(t, ValuesInPlace<Kv>{v, slots.here}, row, seen, rows, ahead);
  } else {
    spread_values<Kv>(v, slots.here, slots.n, plan.head_dim, t.width, s.values);
    int64_t groups = (rows + ATTEND_GROUP - 1) / ATTEND_GROUP;
    for (int64_t g = 0; g < groups; g++) {
      int64_t a = rows * g / groups, b = rows * (g + 1) / groups;
      attend_group(t, ValuesSpread{s.values, t.width}, row + a, seen + a, b - a, ahead);
    }
  }
  while (ahead.at < ahead.count) Ahead::step(ahead);
}

// ---- items

// Take up a chunk's results into those of the chunks before it. `top`, `weight`, sums: of the chunk.
static __attribute__((noinline)) void merge_chunk(float top, float weight, const float* sum, int64_t size,
                                                  float* merged_top, float* merged_weight, float* merged) {
  if (top == ATTEND_NONE) return;
  if (*merged_top == ATTEND_NONE) {
    *merged_top = top;
    *merged_weight = weight;
    for (int64_t d = 0; d < size; d++) merged[d] = sum[d];
    return;
  }
  float most = top > *merged_top ? top : *merged_top;
  float old_share = exp2(set1(*merged_top - most))[0], new_share = exp2(set1(top - most))[0];
  *merged_top = most;
  *merged_weight = *merged_weight * old_share + weight * new_share;
  for (int64_t d = 0; d < size; d++) merged[d] = merged[d] * old_share + sum[d] * new_share;
}

// Where the results of row (block, query and head of the group) go; rows are counted block by block.
template <class Take>
PAL_INLINE void each_row(const AttendPlan& plan, int32_t begin, int32_t end, int32_t head, int32_t head_end,
                         const Take& take) {
  int64_t row = 0;
  for (int32_t h = head; h < head_end; h++) {
    for (int32_t j = begin; j < end; j++) {
      const AttendBlock& block = plan.blocks[j];
      for (int64_t i = 0; i < block.queries; i++) {
        for (int32_t g = 0; g < plan.group; g++) take(row++, block.row + i, (int64_t)h * plan.group + g);
      }
    }
  }
}

// The last of a split's items to end puts its parts together.
static void attend_merge(const AttendCall& call, const AttendPlan& plan, AttendSplit& split) {
  int64_t rows = 0;
  for (int32_t j = split.begin; j < split.end; j++) rows += plan.blocks[j].queries * plan.group;
  rows *= split.head_end - split.head;
  const int64_t size = plan.head_dim;
  each_row(plan, split.begin, split.end, split.head, split.head_end, [&](int64_t row, int64_t r, int64_t h) {
    float top = ATTEND_NONE, weight = 0.0f;
    float* out = call.out + r * call.out_stride + h * size;
    for (int64_t c = 0; c < split.chunks; c++) {
      const float* part = split.parts + (c * rows + row) * plan.part_stride;
      merge_chunk(part[size], part[size + 1], part, size, &top, &weight, out);
    }
    for (int64_t d = 0; d < size; d++) out[d] /= weight;
  });
}

template <class Kv>
static void attend_item(const AttendCall& call, const AttendPlan& plan, const AttendItem& item, AttendScratch& s) {
  const AttendBlock* blocks = plan.blocks;
  const int64_t size = plan.head_dim, width = attend_width(size);
  // Without a softcap scores come out as exponents of 2; with one, tanh stands between.
  const float factor = call.softcap > 0.0f ? call.scale / call.softcap : call.scale * 1.44269504f;
  int64_t rows = 0, tiles = 0;
  for (int32_t j = item.begin; j < item.end; j++) {
    const AttendBlock& block = blocks[j];
    for (int64_t i = 0; i < block.queries; i++) {
      int64_t end = block.first + i + 1, begin = call.window > 0 && end > call.window ? end - call.window : 0;
      for (int32_t g = 0; g < plan.group; g++, rows++) {
        s.begin[rows] = (int32_t)begin;
        s.end[rows] = (int32_t)end;
      }
    }
    tiles = block.tiles > tiles ? block.tiles : tiles;
  }
  const int64_t all = rows * (item.head_end - item.head);
  each_row(plan, item.begin, item.end, item.head, item.head_end, [&](int64_t row, int64_t r, int64_t h) {
    const float* from = call.q + r * call.q_stride + h * size;
    float* to = s.q + row * size;
    // Queries lie far apart, one kind of head of them.
    for (int64_t d = 0; d < size; d += 16) prefetch(from + 4 * call.q_stride + d);
    for (int64_t d = 0; d < size; d++) to[d] = from[d] * factor;
    s.merged_top[row] = ATTEND_NONE;
    s.merged_weight[row] = 0.0f;
  });
  const bool split = item.split >= 0;
  int64_t chunk = split ? item.chunk : 0, chunks = split ? chunk + 1 : (tiles + ATTEND_TILES - 1) / ATTEND_TILES;
  const bool only = !split && chunks == 1;
  for (; chunk < chunks; chunk++) {
    for (int64_t row = 0; row < all; row++) s.top[row] = ATTEND_NONE;
    memset(s.weight, 0, (size_t)(all * W) * 4);
    memset(s.sum, 0, (size_t)(all * width) * 4);
    int64_t end = (chunk + 1) * ATTEND_TILES;
    end = end < tiles ? end : tiles;
    for (int64_t tile = chunk * ATTEND_TILES; tile < end; tile++) {
      int64_t seen = 0;
      for (int32_t j = item.begin; j < item.end;) {
        // Blocks j .. last share this tile.
        int32_t last = j;
        int64_t here = blocks[j].queries * plan.group;
        while (last + 1 < item.end && blocks[last].shared > tile) here += blocks[++last].queries * plan.group;
        const int64_t place = tile * ATTEND_TILE;
        int64_t from = s.begin[seen];
        bool whole = true;
        for (int32_t i = j; i <= last; i++) {
          int64_t begin = blocks[i].first + 1 - call.window;
          if (call.window > 0 && begin < from) from = begin;
          whole = whole && place + ATTEND_TILE <= blocks[i].first + 1 &&
                  (call.window <= 0 || blocks[i].first + blocks[i].queries <= place + call.window);
        }
        const AttendBlock& block = blocks[last];  // any: all of them have this whole tile
        if (tile < block.tiles && place + ATTEND_TILE > from) {
          int64_t length = block.first + block.queries;
          int64_t n = length - place < ATTEND_TILE ? length - place : ATTEND_TILE;
          int64_t coming = length - place - n < ATTEND_TILE ? length - place - n : ATTEND_TILE;
          if (tile + 1 >= end) coming = 0;
          TileSlots slots;
          find_slots(block.slots + place, n, coming, call.slot_stride, (int64_t)sizeof(typename Kv::Element), slots);
          for (int32_t h = item.head; h < item.head_end; h++) {
            attend_tile<Kv>(call, plan, s, h, slots, place, whole, (h - item.head) * rows + seen, seen, here);
          }
          for (int64_t i = 0; Kv::SCALED && i < coming; i++) {
            int64_t at = block.slots[place + n + i] * plan.kv_heads;
            prefetch(call.k_scale + at);
            prefetch(call.v_scale + at);
          }
        }
        seen += here;
        j = last + 1;
      }
    }
    if (only) break;
    for (int64_t row = 0; row < all; row++) {
      float weight = reduce_add(load(s.weight + row * W));
      if (split) {
        float* part = plan.splits[item.split].parts + (item.chunk * all + row) * plan.part_stride;
        memcpy(part, s.sum + row * width, (size_t)size * 4);
        part[size] = s.top[row];
        part[size + 1] = weight;
      } else {
        merge_chunk(s.top[row], weight, s.sum + row * width, size, s.merged_top + row, s.merged_weight + row,
                    s.merged + row * width);
      }
    }
  }
  if (split) {
    AttendSplit& parts = plan.splits[item.split];
    if (__atomic_sub_fetch(&parts.left, 1, __ATOMIC_ACQ_REL) == 0) {
      attend_merge(call, plan, parts);
      parts.left = parts.chunks;  // for the next layer, which begins after a barrier
    }
    return;
  }
  each_row(plan, item.begin, item.end, item.head, item.head_end, [&](int64_t row, int64_t r, int64_t h) {
    float weight = only ? reduce_add(load(s.weight + row * W)) : s.merged_weight[row];
    const float* from = (only ? s.sum : s.merged) + row * width;
    float* out = call.out + r * call.out_stride + h * size;
    for (int64_t d = 0; d < size; d += 16) __builtin_prefetch(out + 4 * call.out_stride + d, 1);
    for (int64_t d = 0; d < size; d++) out[d] = from[d] / weight;
  });
}

// One thread's share of the attention: items from the counter until there are no more.
static void attend(const AttendCall& call, const AttendPlan& plan, Counter* counter, char* memory) {
  AttendScratch s = attend_scratch(&plan, memory);
  for (;;) {
    int64_t i = take(counter);
    if (i >= plan.count) return;
    switch (call.dtype) {
      case PAL_KV_F32: attend_item<KvF32>(call, plan, plan.items[i], s); break;
      case PAL_KV_BF16: attend_item<KvBf16>(call, plan, plan.items[i], s); break;
      default: attend_item<KvI8>(call, plan, plan.items[i], s); break;
    }
  }
}
