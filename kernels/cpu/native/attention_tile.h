// What attention does with a tile of keys and values: it turns keys round, spreads values, and has the two products.
// Included by attention.h.

enum { ATTEND_VECTORS = (int)ATTEND_TILE / W, ATTEND_GROUP = 6 };
#if defined(__AVX512F__)
enum { ATTEND_LANES = 2 };  // vectors of a row that the inner loops hold at once, for few rows
#else
enum { ATTEND_LANES = 4 };
#endif

// ---- vectors

PAL_INLINE bool any(I mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_ps((__m128)mask) != 0;
#elif defined(__aarch64__)
  return vmaxvq_u32((uint32x4_t)mask) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < W; i++) all |= mask[i];
  return all != 0;
#endif
}

PAL_INLINE float attend_largest(F a) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(a);
#elif defined(__AVX2__)
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_shuffle_ps(half, half, 1)));
#else
  return reduce_max(a);
#endif
}

// 2^a[0..N) for a < 127, to about 1e-7 of its value; below 2^-126 next to nothing, and 0 from -127 down. NaN stays NaN.
template <int N>
PAL_INLINE void exp2_below(F a[N]) {
  F shifted[N], power[N];
  PAL_UNROLL
  for (int i = 0; i < N; i++) {
    F x = max(set1(-127.0f), a[i]);
    shifted[i] = x + 12582912.0f;  // the rounded integer is in its low bits
    a[i] = x - (shifted[i] - 12582912.0f);
  }
  exp2_parts<N>(a, power);
  PAL_UNROLL
  for (int i = 0; i < N; i++) a[i] = (F)((I)power[i] + ((I)shifted[i] << 23));
}

// Four words of each of TURN rows, turned round: r[j] becomes word j of all the rows. Two rows of four words lie in one
// vector where it has room for them, so that no word changes its half.
#if defined(__AVX2__)
enum { TURN = 8 };
#else
enum { TURN = 4 };
#endif
typedef int32_t Turn __attribute__((vector_size(4 * TURN)));
typedef float TurnF __attribute__((vector_size(4 * TURN)));
typedef int32_t UnalignedTurn __attribute__((vector_size(16), aligned(1), may_alias));
typedef TurnF UnalignedTurnF __attribute__((aligned(1), may_alias));

template <class Element>
PAL_INLINE void turn(const Element* from, const int64_t* offset, Turn r[4]) {
  Turn a[4];
  PAL_UNROLL
  for (int j = 0; j < 4; j++) {
#if defined(__AVX2__)
    const __m128i low = _mm_loadu_si128((const __m128i*)(from + offset[j]));
    const __m128i high = _mm_loadu_si128((const __m128i*)(from + offset[j + 4]));
    r[j] = (Turn)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
#else
    r[j] = *(const UnalignedTurn*)(from + offset[j]);
#endif
  }
#if defined(__AVX2__)
#define PAL_LOW_WORDS 0, 8, 1, 9, 4, 12, 5, 13
#define PAL_HIGH_WORDS 2, 10, 3, 11, 6, 14, 7, 15
#define PAL_LOW_PAIRS 0, 1, 8, 9, 4, 5, 12, 13
#define PAL_HIGH_PAIRS 2, 3, 10, 11, 6, 7, 14, 15
#else
#define PAL_LOW_WORDS 0, 4, 1, 5
#define PAL_HIGH_WORDS 2, 6, 3, 7
#define PAL_LOW_PAIRS 0, 1, 4, 5
#define PAL_HIGH_PAIRS 2, 3, 6, 7
#endif
  a[0] = __builtin_shufflevector(r[0], r[1], PAL_LOW_WORDS);
  a[1] = __builtin_shufflevector(r[0], r[1], PAL_HIGH_WORDS);
  a[2] = __builtin_shufflevector(r[2], r[3], PAL_LOW_WORDS);
  a[3] = __builtin_shufflevector(r[2], r[3], PAL_HIGH_WORDS);
  r[0] = __builtin_shufflevector(a[0], a[2], PAL_LOW_PAIRS);
  r[1] = __builtin_shufflevector(a[0], a[2], PAL_HIGH_PAIRS);
  r[2] = __builtin_shufflevector(a[1], a[3], PAL_LOW_PAIRS);
  r[3] = __builtin_shufflevector(a[1], a[3], PAL_HIGH_PAIRS);
}

// ---- the cache's element types. PACKED: elements in a word of 32 bits.

struct KvF32 {
  typedef float Element;
  enum { PACKED = 1, SCALED = 0 };
  PAL_INLINE F read(const float* p) { return load(p); }
  PAL_INLINE float scalar(float x) { return x; }
  PAL_INLINE TurnF part(Turn words, int) { return (TurnF)words; }
};

struct KvBf16 {
  typedef uint16_t Element;
  enum { PACKED = 2, SCALED = 0 };
  PAL_INLINE F read(const uint16_t* p) {
#if defined(__AVX512F__)
    return (F)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
#elif defined(__AVX2__)
    return (F)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#else
    return bf16_load(p);
#endif
  }
  PAL_INLINE float scalar(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
  }
  PAL_INLINE TurnF part(Turn words, int i) { return (TurnF)(i == 0 ? words << 16 : words & (int32_t)0xffff0000); }
};

struct KvI8 {
  typedef int8_t Element;
  enum { PACKED = 4, SCALED = 1 };
  PAL_INLINE F read(const int8_t* p) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    typedef int8_t Bytes __attribute__((vector_size(W)));
    Bytes bytes;
    memcpy(&bytes, p, W);
    return __builtin_convertvector(__builtin_convertvector(bytes, I), F);
#endif
  }
  PAL_INLINE float scalar(int8_t x) { return (float)x; }
  PAL_INLINE TurnF part(Turn words, int i) {
    return __builtin_convertvector((words << (24 - 8 * i)) >> 24, TurnF);
  }
};

// ---- a tile's keys and values

// Where a tile's keys and values lie in the cache, and those of the tile that comes after it. Counted from the head's
// first key or value.
struct TileSlots {
  int64_t here[ATTEND_TILE];  // elements; from n on those of the last
  int64_t next[ATTEND_TILE];  // bytes
  const int64_t* slots;
  int n;
  bool coming;
};

static void find_slots(const int64_t* slots, int64_t n, int64_t coming, int64_t stride, int64_t size, TileSlots& tile) {
  tile.slots = slots;
  tile.n = (int)n;
  tile.coming = coming > 0;
  for (int64_t i = 0; i < ATTEND_TILE; i++) tile.here[i] = slots[i < n ? i : n - 1] * stride;
  for (int64_t i = 0; coming > 0 && i < ATTEND_TILE; i++) {
    tile.next[i] = slots[n + (i < coming ? i : coming - 1)] * stride * size;
  }
}

// keys[d][i] = element d of key i, for n keys (whole groups of TURN).
template <class Kv>
static __attribute__((noinline)) void turn_keys(const typename Kv::Element* from, const int64_t* offset, int n,
                                                int64_t head_dim, float* keys) {
  const int64_t step = 4 * Kv::PACKED, whole = head_dim / step * step;
  for (int i = 0; i < n; i += TURN) {
    float* to = keys + i;
    for (int64_t d = 0; d < whole; d += step) {
      Turn r[4];
      turn(from + d, offset + i, r);
      PAL_UNROLL
      for (int j = 0; j < 4; j++) {
        PAL_UNROLL
        for (int p = 0; p < Kv::PACKED; p++) {
          *(UnalignedTurnF*)(to + (d + j * Kv::PACKED + p) * ATTEND_TILE) = Kv::part(r[j], p);
        }
      }
    }
    for (int64_t d = whole; d < head_dim; d++) {
      for (int j = 0; j < TURN; j++) to[d * ATTEND_TILE + j] = Kv::scalar(from[offset[i + j] + d]);
    }
  }
}

template <class Kv>
static void spread_values(const typename Kv::Element* from, const int64_t* offset, int n, int64_t head_dim,
                          int64_t width, float* values) {
  for (int i = 0; i < n; i++) {
    float* to = values + i * width;
    int64_t d = 0;
    for (; d + W <= head_dim; d += W) store(to + d, Kv::read(from + offset[i] + d));
    if (d < head_dim) {
      store(to + d, F{});
      for (; d < head_dim; d++) to[d] = Kv::scalar(from[offset[i] + d]);
    }
  }
}

// Lines of memory that will be read soon. A few are asked for at a time: all at once would be more than a core has
// outstanding, and would hold up what it computes meanwhile.
struct Ahead {
  const char* const* column;  // [count / 32] a line of the head's keys or values in slot 0
  const int64_t* offset;      // [32] of the slots
  uint64_t at, count;
  PAL_INLINE void step(Ahead& a) {
    if (a.at >= a.count) return;
    // Not nearer: a tile of all heads is as large as a first-level cache.
    __builtin_prefetch(a.column[a.at / ATTEND_TILE] + a.offset[a.at % ATTEND_TILE], 0, 2);
    a.at++;
  }
  static __attribute__((noinline)) void several(Ahead& a) {
    for (int i = 0; i < 8; i++) step(a);
  }
  PAL_INLINE void some(Ahead& a) {
    if (a.at < a.count) several(a);
  }
};

// ---- the two products. FINE: lines are asked for at each turn of the inner loop, for there are few; else some before
// it, so that nothing stands in the way of the multiplications.

// sum[r] += x[r * stride] * y(v), for MR rows and NV vectors. Kept in registers: what there is less of, and one of the
// others.
template <int MR, int NV, class Vector>
PAL_INLINE void add_product(F sum[MR][NV], const float* x, int64_t stride, const Vector& y) {
  if constexpr (MR > NV) {
    F all[NV];
    PAL_UNROLL
    for (int v = 0; v < NV; v++) all[v] = y(v);
    PAL_UNROLL
    for (int r = 0; r < MR; r++) {
      F one = set1(x[r * stride]);
      PAL_UNROLL
      for (int v = 0; v < NV; v++) sum[r][v] = fma(one, all[v], sum[r][v]);
    }
  } else {
    F all[MR];
    PAL_UNROLL
    for (int r = 0; r < MR; r++) all[r] = set1(x[r * stride]);
    PAL_UNROLL
    for (int v = 0; v < NV; v++) {
      F one = y(v);
      PAL_UNROLL
      for (int r = 0; r < MR; r++) sum[r][v] = fma(all[r], one, sum[r][v]);
    }
  }
}

// step(i) for i from first to n, in order.
template <bool FINE, class Step>
PAL_INLINE void each_step(int64_t first, int64_t n, Ahead& ahead, const Step& step) {
  if constexpr (!FINE) Ahead::some(ahead);
  for (int64_t i = first; i < n; i++) {
    if constexpr (FINE) Ahead::step(ahead);
    step(i);
  }
}

// scores[r][0..n) = q[r] . keys, for MR rows.
template <int MR, int NV, bool FINE>
PAL_INLINE void score_rows(const float* q, int64_t stride, const float* keys, int64_t head_dim, int n, Ahead& ahead,
                           float* scores) {
  for (int at = 0; at < n; at += NV * W) {
    F sum[MR][NV];
    PAL_UNROLL
    for (int r = 0; r < MR; r++) {
      PAL_UNROLL
      for (int v = 0; v < NV; v++) sum[r][v] = F{};
    }
    each_step<FINE>(0, head_dim, ahead, [&](int64_t d) __attribute__((always_inline)) {
      const float* key = keys + d * ATTEND_TILE + at;
      add_product<MR, NV>(sum, q + d, stride, [&](int v) __attribute__((always_inline)) { return load(key + v * W); });
    });
    PAL_UNROLL
    for (int r = 0; r < MR; r++) {
      PAL_UNROLL
      for (int v = 0; v < NV; v++) store(scores + r * ATTEND_TILE + at + v * W, sum[r][v]);
    }
  }
}

// Values as they lie in the cache, for few rows, or spread to float.
template <class Kv>
struct ValuesInPlace {
  enum { FINE = 1 };
  const typename Kv::Element* from;
  const int64_t* offset;
  PAL_INLINE F read(const ValuesInPlace& v, int64_t i, int64_t d) { return Kv::read(v.from + v.offset[i] + d); }
};
struct ValuesSpread {
  enum { FINE = 0 };
  const float* from;
  int64_t width;
  PAL_INLINE F read(const ValuesSpread& v, int64_t i, int64_t d) { return load(v.from + i * v.width + d); }
};

// sum[r][d..] += weights[r][first..n) . values, for MR rows and NV vectors.
template <int MR, int NV, class Values>
PAL_INLINE void add_columns(const float* weights, const Values& values, int first, int n, int64_t d, Ahead& ahead,
                            float* sums, int64_t width) {
  F sum[MR][NV];
  PAL_UNROLL
  for (int r = 0; r < MR; r++) {
    PAL_UNROLL
    for (int v = 0; v < NV; v++) sum[r][v] = load(sums + r * width + d + v * W);
  }
  each_step<Values::FINE>(first, n, ahead, [&](int64_t i) __attribute__((always_inline)) {
    add_product<MR, NV>(sum, weights + i, ATTEND_TILE,
                        [&](int v) __attribute__((always_inline)) { return Values::read(values, i, d + v * W); });
  });
  PAL_UNROLL
  for (int r = 0; r < MR; r++) {
    PAL_UNROLL
    for (int v = 0; v < NV; v++) store(sums + r * width + d + v * W, sum[r][v]);
  }
}
