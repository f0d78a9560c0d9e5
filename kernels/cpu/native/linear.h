// out = x @ weight^T on packed weights. Included inside the level's namespace.
//
// Numerics: every (row, column) sums over k from 0 upwards in one accumulator, whatever the other rows, their number or
// the threads. On F32, F16, BF16 weights that is fma by fma (avx512bf16: pair by pair of bf16); on blocks, exact
// integer sums of 32 (Q6K: 16) products, each scaled and added as float in the order of the blocks.
//
// For use in a team's phase (each thread calls it with the same arguments):
//   1. activation_forms(w): what the weight wants of its input; quantize_row for each row, then a barrier.
//   2. gemm(w, rows, count, epilogue, out, stride, counters, thread, threads) with a counter for each thread, all 0 at
//      the last barrier; a barrier before `out` is read or the rows are overwritten.

#include "linear_kernels.h"
#include "linear_bytes.h"

// ---- work

// EPI_GATE + ACT_...: act(first half of the columns) * second half, [rows][n / 2]; the second half of the sections has
// the columns of the first.
enum { EPI_STORE, EPI_ADD, EPI_GATE };

struct Output {
  int epilogue;
  float* out;
  int64_t stride;
};

// One kernel's results [rows][tiles * 16] (and those of `up`) into the output.
static void finish(const Output& to, const pal_weight* w, const pal_section& s, int64_t tile, int tiles, int64_t row,
                   int rows, const float* sums, const float* ups) {
  for (int t = 0; t < tiles; t++) {
    int64_t first = (tile + t) * TILE, column = s.column + first;
    int count = s.columns - first < TILE ? (int)(s.columns - first) : TILE;
    const float* bias = w->bias ? w->bias + column : nullptr;
    const float* up_bias = w->bias ? bias + w->n / 2 : nullptr;
    for (int r = 0; r < rows; r++) {
      float* out = to.out + (row + r) * to.stride + column;
      const float* sum = sums + (r * tiles + t) * TILE;
      const float* up = ups + (r * tiles + t) * TILE;
      for (int c = 0; c < count; c += W) {
        int width = count - c < W ? count - c : W;
        bool whole = width == W;
        F v = load(sum + c);
        if (bias) v += whole ? load(bias + c) : load_n(bias + c, width);
        if (to.epilogue >= EPI_GATE) {
          F u = load(up + c);
          if (up_bias) u += whole ? load(up_bias + c) : load_n(up_bias + c, width);
          v = activate(v, to.epilogue - EPI_GATE) * u;
        } else if (to.epilogue == EPI_ADD) {
          v += whole ? load(out + c) : load_n(out + c, width);
        }
        if (whole) store(out + c, v);
        else store_n(out + c, v, width);
      }
    }
  }
}

// Sums of `tiles` tiles of a section for rows [row, row + rows), to sums [rows][tiles * 16]. `more`: the thread's next
// tiles are probably those that follow.
static void sum_tiles(const pal_section& s, int64_t tile, int tiles, const Rows* a, int64_t row, int64_t rows, int64_t k,
                      bool more, float* sums) {
  enum { PANEL = 16 << 10 };  // bytes of weights that are used for all rows before the next
  int most = most_rows(s.kind);
  int64_t groups = (rows + most - 1) / most, step = k;
  if (groups > 1) {
    step = PANEL / (int64_t)((size_t)tiles * tile_bytes(s.kind, SUPER)) * SUPER;
    if (step < SUPER) step = SUPER;
  }
  // The first group asks for the tiles that come next, unless they would push these out of the second-level cache.
  size_t next = (size_t)tiles * s.tile_bytes;
  if (next > 96 << 10 || !more) next = 0;
  const char* data = s.data + (size_t)tile * s.tile_bytes;
  for (int64_t k0 = 0; k0 < k; k0 += step) {
    int64_t k1 = k0 + step < k ? k0 + step : k, at = 0;
    const char* panel = data + tile_bytes(s.kind, k0);
    for (int64_t group = groups; group > 0; group--) {
      int count = (int)((rows - at + group - 1) / group);  // groups of almost one size: a single row at the end is dear
      size_t ahead = group == groups ? next : 0;
      run_kernel(s.kind, count, tiles, panel, s.tile_bytes, a, row + at, k0, k1, ahead, sums + at * tiles * TILE);
      at += count;
    }
  }
}

// Tiles [first, last) of a section (with `up`: and of that one beside them) for rows [row, row + rows). `more`: the
// thread will probably go on with the tiles after them.
static void run_tiles(const pal_weight* w, const pal_section& s, const pal_section* up, int64_t first, int64_t last,
                      bool more, const Rows* a, int64_t row, int64_t rows, const Output& to) {
  alignas(64) float sums[MOST_SUMS], ups[MOST_SUMS];
  int wide = most_tiles(s.kind, rows < most_rows(s.kind) ? (int)rows : most_rows(s.kind));
  if (up && most_rows(up->kind) != most_rows(s.kind)) wide = 1;
  for (int64_t tile = first; tile < last;) {
    int tiles = wide;
    while (tile + tiles > last) tiles /= 2;
    const bool follow = more || tile + tiles < last;
    sum_tiles(s, tile, tiles, a, row, rows, w->k, follow, sums);
    if (up) sum_tiles(*up, tile, tiles, a, row, rows, w->k, follow, ups);
    finish(to, w, s, tile, tiles, row, (int)rows, sums, ups);
    tile += tiles;
  }
}

// `count` items of a phase, cut into as many parts as there are threads. A thread takes those of its own part in order,
// so that it knows what it will read next, and then what is left of the others'.
struct Items {
  Counter* counters;  // one a thread, all 0 when the phase began
  int64_t count;
  int thread, threads, passed;  // passed: parts with nothing left

  int64_t begin(int whose) const { return count * whose / threads; }

  // Whether what follows an item is this thread's, too, unless another is ahead of it.
  bool goes_on(int64_t item) const { return passed == 0 && item + 1 < begin(thread + 1); }

  // -1 when all are taken.
  int64_t next() {
    for (; passed < threads; passed++) {
      const int whose = (thread + passed) % threads;
      const int64_t item = begin(whose) + take(counters + whose);
      if (item < begin(whose + 1)) return item;
    }
    return -1;
  }
};

// How a gemm is cut into items: chunks of tiles times blocks of rows, the rows of one chunk following each other so
// that its weights stay near. Depends on nothing that changes a result.
struct Split {
  int sections;
  int64_t chunk, row_block, row_blocks, items;
};

static Split split(const pal_weight* w, int64_t rows, bool gated, int threads) {
  enum { NEAR = 160 << 10 };  // bytes of a chunk's weights, and of a block's rows, that share the second-level cache
  Split split;
  split.sections = gated ? w->sections / 2 : w->sections;
  int64_t units = 0;
  for (int s = 0; s < split.sections; s++) units += w->section[s].tiles;
  int64_t row_bytes = w->k * (activation_forms(w) & FORM_FLOAT ? 4 : 2);
  split.row_block = NEAR / row_bytes / 24 * 24;
  if (split.row_block < 24) split.row_block = 24;
  if (split.row_block > MOST_ROWS) split.row_block = MOST_ROWS;
  split.row_blocks = (rows + split.row_block - 1) / split.row_block;
  split.row_block = (rows + split.row_blocks - 1) / split.row_blocks;
  int64_t unit_bytes = w->bytes / units + 1;
  split.chunk = units * split.row_blocks / (8 * threads);
  if (split.row_blocks > 1 && split.chunk > NEAR / unit_bytes) split.chunk = NEAR / unit_bytes;
  if (split.chunk > 4) split.chunk = split.chunk / 4 * 4;
  if (split.chunk < 1) split.chunk = 1;
  split.items = 0;
  for (int s = 0; s < split.sections; s++) {
    split.items += (w->section[s].tiles + split.chunk - 1) / split.chunk * split.row_blocks;
  }
  return split;
}

// Where an item lies: tiles [first, last) of a section, and its block of rows.
struct Piece {
  int section;
  int64_t first, last, block;
};

static Piece piece(const pal_weight* w, const Split& cut, int64_t item) {
  int s = 0;
  for (int64_t chunks;; s++) {
    chunks = (w->section[s].tiles + cut.chunk - 1) / cut.chunk;
    if (item < chunks * cut.row_blocks) break;
    item -= chunks * cut.row_blocks;
  }
  const int64_t first = item / cut.row_blocks * cut.chunk, last = first + cut.chunk;
  return {s, first, last < w->section[s].tiles ? last : w->section[s].tiles, item % cut.row_blocks};
}

// What a thread reads first of a gemm's weights, to `soon` (one piece, or two with a gate); how many pieces.
static int first_read(const pal_weight* w, int64_t rows, bool gated, int thread, int threads, Soon* soon) {
  const size_t most = 48 << 10;
  const Split cut = split(w, rows, gated, threads);
  const Piece at = piece(w, cut, cut.items * thread / threads);
  for (int i = 0; i <= (gated ? 1 : 0); i++) {
    const pal_section& section = w->section[at.section + i * cut.sections];
    const size_t bytes = (size_t)(section.tiles - at.first) * section.tile_bytes;
    soon[i] = {section.data + (size_t)at.first * section.tile_bytes, bytes < most ? bytes : most};
  }
  return gated ? 2 : 1;
}

static void gemm(const pal_weight* w, const Rows* a, int64_t rows, int epilogue, float* out, int64_t stride,
                 Counter* counters, int thread, int threads) {
  if (!rows) return;
  const bool gated = epilogue >= EPI_GATE;
  const Split cut = split(w, rows, gated, threads);
  const Output to = {epilogue, out, stride};
  Items items = {counters, cut.items, thread, threads, 0};
  for (int64_t item; (item = items.next()) >= 0;) {
    const Piece at = piece(w, cut, item);
    const int64_t row = at.block * cut.row_block;
    const int64_t count = row + cut.row_block < rows ? cut.row_block : rows - row;
    const pal_section* up = gated ? &w->section[at.section + cut.sections] : nullptr;
    if (count > 0) run_tiles(w, w->section[at.section], up, at.first, at.last, items.goes_on(item), a, row, count, to);
  }
}

// ---- one linear by itself

struct LinearJob {
  const pal_weight* w;
  Rows rows;
  int64_t count;
  float* out;
  int epilogue, threads, forms;
  pal_team* team;
  Counter next_row, *next;
};

static void linear_phase(void* argument, int thread) {
  LinearJob* job = (LinearJob*)argument;
  if (job->forms & ~FORM_FLOAT) {
    enum { AT_ONCE = 8 };
    for (int64_t row; (row = take(&job->next_row) * AT_ONCE) < job->count;) {
      int64_t end = row + AT_ONCE < job->count ? row + AT_ONCE : job->count;
      for (; row < end; row++) quantize_row(job->rows.x + row * job->rows.stride, job->w->k, job->forms, &job->rows, row);
    }
    team_barrier(job->team);
  }
  gemm(job->w, &job->rows, job->count, job->epilogue, job->out, job->w->n, job->next, thread,
       job->threads);
}

static int run_linear(pal_team* team, const pal_weight* w, const float* x, int64_t rows, float* out, int add) {
  const int forms = activation_forms(w), threads = team_threads(team);
  const size_t counters = (size_t)threads * sizeof(Counter);
  char* memory = (char*)allocate(counters + (size_t)rows * form_bytes(w->k, forms));
  if (!memory) return fail(PAL_NO_MEMORY, "no memory for the activations of %lld rows", (long long)rows);
  memset(memory, 0, counters);
  LinearJob job = {w, {}, rows, out, add ? EPI_ADD : EPI_STORE, threads, forms, team, {0}, (Counter*)memory};
  job.rows = rows_in(memory + counters, x, w->k, rows, w->k, forms);
  team_run(team, linear_phase, &job);
  release(memory);
  return PAL_OK;
}
