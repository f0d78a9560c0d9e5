// Activations as the matmul wants them, and the kernels on float weights: a few rows times a few tiles. Included inside
// the level's namespace.

// ---- activations

enum { FORM_FLOAT = 1, FORM_BYTES = 2, FORM_BF16 = 4 };

// 32 consecutive elements of a row as int8, x = scale * q. The sums of q are negated, as the kernels want them.
struct ByteBlock {
  int8_t q[BLOCK];
  float scale;
  float scaled_sum;     // scale * the sum of q
  int32_t minus_sum;    // of all 32
  int32_t minus_first;  // of the first 16
};

// Rows of activations: float rows `stride` apart, and what quantize_row made of them.
struct Rows {
  const float* x;
  int64_t stride;
  ByteBlock* bytes;  // [rows][k / 32]
  int64_t blocks;
  uint16_t* bf16;  // [rows][bf16_stride], zeros from k on
  int64_t bf16_stride;
};

static int activation_forms(const pal_weight* w) {
  int forms = 0;
  for (int s = 0; s < w->sections; s++) {
#if PAL_BF16_DOT
    if (w->section[s].kind == KIND_BF16) forms |= FORM_BF16;
    else
#endif
      forms |= w->section[s].kind <= KIND_BF16 ? FORM_FLOAT : FORM_BYTES;
  }
  return forms;
}

static int64_t bf16_stride(int64_t k) { return (k + 31) / 32 * 32; }

// Bytes that a row of k takes in these forms besides its floats.
static size_t form_bytes(int64_t k, int forms) {
  size_t size = 0;
  if (forms & FORM_BYTES) size += (size_t)(k / BLOCK) * sizeof(ByteBlock);
  if (forms & FORM_BF16) size += (size_t)bf16_stride(k) * 2;
  return size;
}

// Rows whose forms lie in `memory` of rows * form_bytes(k, forms) bytes, aligned to 64.
static Rows rows_in(void* memory, const float* x, int64_t stride, int64_t rows, int64_t k, int forms) {
  Rows a = {x, stride, nullptr, k / BLOCK, nullptr, bf16_stride(k)};
  char* p = (char*)memory;
  if (forms & FORM_BF16) {
    a.bf16 = (uint16_t*)p;
    p += (size_t)rows * (size_t)a.bf16_stride * 2;
  }
  if (forms & FORM_BYTES) a.bytes = (ByteBlock*)p;
  return a;
}

// Symmetric int8 by block: scale = largest / 127, q = x * (127 / largest) to the nearest, halves to even. A block with
// a NaN or an infinity has scale NaN, and so has every result that it enters.
static void quantize_bytes(const float* x, int64_t blocks, ByteBlock* out) {
  enum { N = BLOCK / W };
  for (int64_t b = 0; b < blocks; b++, x += BLOCK, out++) {
    F v[N], most = {}, poison = {};
    PAL_UNROLL
    for (int i = 0; i < N; i++) {
      v[i] = load(x + i * W);
      most = max(most, abs(v[i]));
      poison += v[i] * 0.0f;
    }
    float nothing = reduce_add(poison);  // 0 or NaN
    if (nothing != 0.0f) {
      memset(out, 0, sizeof *out);
      out->scale = out->scaled_sum = nothing;
      continue;
    }
    float largest = reduce_max(most);
    bool counts = largest > 1e-30f;  // below that 127 / largest may overflow
    float inverse = counts ? 127.0f / largest : 0.0f;
    out->scale = counts ? largest / 127.0f : 0.0f;
    F first = {}, second = {};  // sums of q as floats: whole numbers, far below 2^24
    PAL_UNROLL
    for (int i = 0; i < N; i++) {
      F q = round_even(v[i] * inverse);
      int8_store(out->q + i * W, round_to_int(q));
      if (i < N / 2) first += q;
      else second += q;
    }
    float half = reduce_add(first), all = half + reduce_add(second);
    out->scaled_sum = out->scale * all;
    out->minus_sum = -(int32_t)all;
    out->minus_first = -(int32_t)half;
  }
}

static void quantize_row(const float* x, int64_t k, int forms, const Rows* to, int64_t row) {
  if (forms & FORM_BYTES) quantize_bytes(x, k / BLOCK, to->bytes + row * to->blocks);
  if (forms & FORM_BF16) {
    uint16_t* out = to->bf16 + row * to->bf16_stride;
    for (int64_t i = 0; i < to->bf16_stride; i += W) {
      F v = i + W <= k ? load(x + i) : i < k ? load_n(x + i, (int)(k - i)) : F{};
      bf16_store(out + i, v);
    }
  }
}

// ---- kernels: MR rows times NT tiles, k in [k0, k1), `tile` where k0 begins; sums to out [MR][NT * 16]. From k0 = 0 on
// the sums start, later they go on from what is in `out`: a long k can be done in parts that fit the nearest cache.

enum { PER_TILE = TILE / W };  // vectors of a tile's 16 columns

#if PAL_ISA == 512 || defined(PALMETTE_WIDE)
enum { FLOAT_ROWS = 12, BYTE_ROWS = 4 };
constexpr int float_tiles(int rows) { return rows <= 4 ? 4 : 2; }
constexpr int byte_tiles(int rows) { return rows == 1 ? 4 : 2; }
#elif PAL_ISA == 256
enum { FLOAT_ROWS = 6, BYTE_ROWS = 4 };
constexpr int float_tiles(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
constexpr int byte_tiles(int rows) { return rows == 1 ? 2 : 1; }
#elif PAL_ISA == 64
enum { FLOAT_ROWS = 4, BYTE_ROWS = 2 };
constexpr int float_tiles(int rows) { return rows <= 2 ? 2 : 1; }
constexpr int byte_tiles(int) { return 1; }
#else
enum { FLOAT_ROWS = 2, BYTE_ROWS = 2 };
constexpr int float_tiles(int) { return 1; }
constexpr int byte_tiles(int) { return 1; }
#endif
enum { MOST_ROWS = 96, MOST_SUMS = MOST_ROWS * 2 * TILE };  // rows of an item; their sums for two tiles

constexpr int most_rows(int kind) { return kind <= KIND_BF16 ? FLOAT_ROWS : BYTE_ROWS; }
constexpr int most_tiles(int kind, int rows) { return kind <= KIND_BF16 ? float_tiles(rows) : byte_tiles(rows); }

// Vector v of NT tiles: where its columns begin, for elements of `bytes` bytes a column.
#define PAL_AT(v, bytes) ((size_t)((v) / PER_TILE) * stride + (size_t)((v) % PER_TILE) * W * (bytes))

// Ask for `bytes` of each of NT tiles, `ahead` of where the kernel is; not at all if that is 0.
template <int NT>
PAL_INLINE void look_ahead(const char* tile, size_t stride, size_t ahead, int bytes) {
  if (!ahead) return;
  PAL_UNROLL
  for (int t = 0; t < NT; t++) {
    PAL_UNROLL
    for (int line = 0; line < bytes; line += 64) prefetch_far(tile + ahead + t * stride + line);
  }
}

template <int MR, int NV>
PAL_INLINE void start_sums(F (&acc)[MR][NV], int64_t k0, const float* out) {
  PAL_UNROLL
  for (int r = 0; r < MR; r++) {
    PAL_UNROLL
    for (int v = 0; v < NV; v++) acc[r][v] = k0 ? load(out + (r * NV + v) * W) : F{};
  }
}

template <int MR, int NV>
PAL_INLINE void store_sums(const F (&acc)[MR][NV], float* out) {
  PAL_UNROLL
  for (int r = 0; r < MR; r++) {
    PAL_UNROLL
    for (int v = 0; v < NV; v++) store(out + (r * NV + v) * W, acc[r][v]);
  }
}

template <int KIND, int MR, int NT>
static void float_kernel(const char* tile, size_t stride, const Rows* a, int64_t row, int64_t k0, int64_t k1,
                         size_t ahead, float* out) {
  enum { NV = NT * PER_TILE };
  const float* x = a->x + row * a->stride;
  const int64_t xs = a->stride;
  F acc[MR][NV];
  start_sums<MR, NV>(acc, k0, out);
  constexpr int bytes = KIND == KIND_F32 ? 4 : 2;
  for (int64_t i = k0; i < k1; i++, tile += TILE * bytes) {
    look_ahead<NT>(tile, stride, bytes == 4 || i % 2 ? ahead : 0, 64);
    F w[NV];
    PAL_UNROLL
    for (int v = 0; v < NV; v++) {
      const char* p = tile + PAL_AT(v, bytes);
      if constexpr (KIND == KIND_F32) w[v] = load((const float*)p);
      else if constexpr (KIND == KIND_F16) w[v] = f16_load((const uint16_t*)p);
      else w[v] = bf16_load((const uint16_t*)p);
    }
    PAL_UNROLL
    for (int r = 0; r < MR; r++) {
      F xr = set1(x[r * xs + i]);
      PAL_UNROLL
      for (int v = 0; v < NV; v++) acc[r][v] = fma(xr, w[v], acc[r][v]);
    }
  }
  store_sums<MR, NV>(acc, out);
}

#if PAL_BF16_DOT
template <int MR, int NT>
static void bf16_kernel(const char* tile, size_t stride, const Rows* a, int64_t row, int64_t k0, int64_t k1,
                         size_t ahead, float* out) {
  const uint16_t* x = a->bf16 + row * a->bf16_stride;
  const int64_t xs = a->bf16_stride;
  F acc[MR][NT];
  start_sums<MR, NT>(acc, k0, out);
  for (int64_t i = k0; i < k1; i += 2, tile += 64) {
    look_ahead<NT>(tile, stride, ahead, 64);
    B w[NT];
    PAL_UNROLL
    for (int v = 0; v < NT; v++) w[v] = load_bytes(tile + PAL_AT(v, 4));
    PAL_UNROLL
    for (int r = 0; r < MR; r++) {
      B pair = broadcast4(x + r * xs + i);
      PAL_UNROLL
      for (int v = 0; v < NT; v++) acc[r][v] = dot_pairs(acc[r][v], w[v], pair);
    }
  }
  store_sums<MR, NT>(acc, out);
}
#endif
