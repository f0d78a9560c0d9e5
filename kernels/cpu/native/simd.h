// Vectors of the level's own width, in GCC's vector extensions: + - * / and comparisons are the compiler's, and only
// what those lack is written per instruction set. Included inside the level's namespace.
//
// F: W floats. I: W int32. B: 4 * W int8, for each of W columns four consecutive k.

// PAL_ISA: which intrinsics there are; 0 leaves all to the compiler. PALMETTE_WIDE: vectors and packing as with AVX-512
// and nothing else of it, for tests on processors without.
#if defined(PALMETTE_WIDE)
#define PAL_ISA 0
enum { W = 16 };
#elif defined(__AVX512F__)
#define PAL_ISA 512
enum { W = 16 };
#elif defined(__AVX2__)
#define PAL_ISA 256
enum { W = 8 };
#elif defined(__SSE2__)
#define PAL_ISA 128
enum { W = 4 };
#elif defined(__aarch64__)
#define PAL_ISA 64
enum { W = 4 };
#else
#define PAL_ISA 0
enum { W = 4 };
#endif

// Whether bf16 pairs are multiplied by an instruction, which rounds the activations to bf16 too.
#if defined(__AVX512BF16__) || defined(PALMETTE_WIDE)
#define PAL_BF16_DOT 1
#else
#define PAL_BF16_DOT 0
#endif

#define PAL_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define PAL_UNROLL _Pragma("unroll")
#else
#define PAL_UNROLL _Pragma("GCC unroll 32")
#endif

typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
typedef int8_t B __attribute__((vector_size(4 * W)));
typedef uint16_t H __attribute__((vector_size(2 * W)));  // W halves: bf16 or fp16 bits

// ---- memory: no alignment is asked for

typedef F UnalignedF __attribute__((aligned(1), may_alias));
typedef I UnalignedI __attribute__((aligned(1), may_alias));
typedef B UnalignedB __attribute__((aligned(1), may_alias));
typedef H UnalignedH __attribute__((aligned(1), may_alias));

PAL_INLINE F load(const float* p) { return *(const UnalignedF*)p; }
PAL_INLINE void store(float* p, F v) { *(UnalignedF*)p = v; }
PAL_INLINE F set1(float v) { return v - F{}; }
PAL_INLINE I set1i(int32_t v) { return v - I{}; }
PAL_INLINE I load_i32(const int32_t* p) { return *(const UnalignedI*)p; }
PAL_INLINE B load_bytes(const void* p) { return *(const UnalignedB*)p; }
PAL_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
PAL_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // no nearer than the second-level cache

// The first n < W floats; the rest of the vector is 0, the rest of the memory is not touched.
PAL_INLINE F load_n(const float* p, int n) {
  F v = {};
  for (int i = 0; i < n; i++) v[i] = p[i];
  return v;
}
PAL_INLINE void store_n(float* p, F v, int n) {
  for (int i = 0; i < n; i++) p[i] = v[i];
}

// ---- arithmetic

PAL_INLINE F fma(F a, F b, F c) {  // a * b + c: rounded once where the level has such an instruction
#if PAL_ISA == 512
  return _mm512_fmadd_ps(a, b, c);
#elif PAL_ISA == 256
  return _mm256_fmadd_ps(a, b, c);
#elif PAL_ISA == 64
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// Where one of the two is not a number, b on x86: put the value that may be NaN second.
PAL_INLINE F max(F a, F b) {
#if PAL_ISA == 512
  return _mm512_max_ps(a, b);
#elif PAL_ISA == 256
  return _mm256_max_ps(a, b);
#elif PAL_ISA == 128
  return _mm_max_ps(a, b);
#elif PAL_ISA == 64
  return vmaxq_f32(a, b);
#else
  return a > b ? a : b;
#endif
}
PAL_INLINE F min(F a, F b) {
#if PAL_ISA == 512
  return _mm512_min_ps(a, b);
#elif PAL_ISA == 256
  return _mm256_min_ps(a, b);
#elif PAL_ISA == 128
  return _mm_min_ps(a, b);
#elif PAL_ISA == 64
  return vminq_f32(a, b);
#else
  return a < b ? a : b;
#endif
}
PAL_INLINE F abs(F a) { return (F)((I)a & 0x7fffffff); }
PAL_INLINE F to_float(I a) { return __builtin_convertvector(a, F); }
// mask has all bits of a lane set or none, as comparisons give it.
PAL_INLINE F select(I mask, F yes, F no) { return (F)((mask & (I)yes) | (~mask & (I)no)); }

// To the nearest integer, halves to the even one; |a| below 2^22.
PAL_INLINE F round_even(F a) { return (a + 12582912.0f) - 12582912.0f; }
PAL_INLINE I round_to_int(F a) { return (I)(a + 12582912.0f) - 0x4b400000; }

// 2^part[0..N) for |part| <= 1/2: Taylor's series, a term of all of them at a time, for each waits for the one before.
template <int N>
PAL_INLINE void exp2_parts(const F* part, F* power) {
  constexpr float term[] = {1.5403530393e-4f, 1.3333558146e-3f, 9.6181291076e-3f, 5.5504108665e-2f,
                            2.4022650696e-1f, 6.9314718056e-1f, 1.0f};
  PAL_UNROLL
  for (int i = 0; i < N; i++) power[i] = set1(1.5252733804e-5f);
  PAL_UNROLL
  for (int t = 0; t < 7; t++) {
    PAL_UNROLL
    for (int i = 0; i < N; i++) power[i] = fma(power[i], part[i], set1(term[t]));
  }
}

// 2^a, to about 1e-7 of its value; 0 below 2^-126, 2^127.5 above that.
PAL_INLINE F exp2(F a) {
  F x = max(set1(-127.0f), min(set1(127.5f), a));
  F whole = round_even(x), part = x - whole;
  F power = (F)((round_to_int(x) + 127) << 23);
  F scale;
  exp2_parts<1>(&part, &scale);
  return select(a < -126.0f, F{}, scale * power);
}

// Sums and maxima over the lanes, in one fixed order: halves, down to two.
#if PAL_ISA >= 128
#if PAL_ISA >= 256
PAL_INLINE __m128 low_half(__m256 a) { return _mm256_castps256_ps128(a); }
PAL_INLINE __m128 high_half(__m256 a) { return _mm256_extractf128_ps(a, 1); }
#endif
#if PAL_ISA == 512
PAL_INLINE __m256 low_half(__m512 a) { return _mm512_castps512_ps256(a); }
PAL_INLINE __m256 high_half(__m512 a) { return _mm512_extractf32x8_ps(a, 1); }
#endif
PAL_INLINE float reduce_add(F a) {
#if PAL_ISA == 512
  __m256 eight = low_half(a) + high_half(a);
#elif PAL_ISA == 256
  __m256 eight = a;
#endif
#if PAL_ISA == 128
  __m128 four = a;
#else
  __m128 four = low_half(eight) + high_half(eight);
#endif
  __m128 two = four + _mm_movehl_ps(four, four);
  return two[0] + two[1];
}
PAL_INLINE float reduce_max(F a) {
#if PAL_ISA == 512
  __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
#elif PAL_ISA == 256
  __m256 eight = a;
#endif
#if PAL_ISA == 128
  __m128 four = a;
#else
  __m128 four = _mm_max_ps(low_half(eight), high_half(eight));
#endif
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return two[0] > two[1] ? two[0] : two[1];
}
#else
PAL_INLINE float reduce_add(F a) {
  float lane[W];
  store(lane, a);
  PAL_UNROLL
  for (int half = W / 2; half; half /= 2) {
    PAL_UNROLL
    for (int i = 0; i < half; i++) lane[i] += lane[i + half];
  }
  return lane[0];
}
PAL_INLINE float reduce_max(F a) {
  float lane[W];
  store(lane, a);
  PAL_UNROLL
  for (int half = W / 2; half; half /= 2) {
    PAL_UNROLL
    for (int i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  }
  return lane[0];
}
#endif

#if PAL_BF16_DOT
// sum + the two products of each column's pair of bf16.
PAL_INLINE F dot_pairs(F sum, B w, B x) {
#if PAL_ISA == 512
  return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
#else
  sum += (F)((U)w << 16) * (F)((U)x << 16);
  return sum + (F)((U)w & 0xffff0000u) * (F)((U)x & 0xffff0000u);
#endif
}
#endif

// ---- bytes: W of them as int32, or W int32 (-128..127) as bytes

typedef int8_t Bytes __attribute__((vector_size(W)));
typedef uint8_t UBytes __attribute__((vector_size(W)));

PAL_INLINE I int8_load(const void* p) {
#if PAL_ISA == 512
  return (I)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif PAL_ISA == 256
  return (I)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  Bytes v;
  memcpy(&v, p, W);
  return __builtin_convertvector(v, I);
#endif
}
PAL_INLINE I uint8_load(const void* p) {
#if PAL_ISA == 512
  return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif PAL_ISA == 256
  return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
  UBytes v;
  memcpy(&v, p, W);
  return __builtin_convertvector(v, I);
#endif
}
PAL_INLINE void int8_store(void* p, I v) {
#if PAL_ISA == 512
  _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8((__m512i)v));
#elif PAL_ISA == 256
  __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(halves, halves));
#elif PAL_ISA == 128
  __m128i halves = _mm_packs_epi32((__m128i)v, (__m128i)v);
  int32_t four = _mm_cvtsi128_si32(_mm_packs_epi16(halves, halves));
  memcpy(p, &four, 4);
#else
  Bytes bytes = __builtin_convertvector(v, Bytes);
  memcpy(p, &bytes, W);
#endif
}

// ---- halves

PAL_INLINE F bf16_load(const uint16_t* p) {
#if PAL_ISA == 512
  return (F)((U)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)) << 16);
#elif PAL_ISA == 256
  return (F)((U)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)) << 16);
#elif PAL_ISA == 128
  return (F)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i*)p));
#else
  return (F)(__builtin_convertvector(*(const UnalignedH*)p, U) << 16);
#endif
}

// To the nearest, halves to the even one; NaN stays NaN.
PAL_INLINE void bf16_store(uint16_t* p, F v) {
#if PAL_ISA == 512 && PAL_BF16_DOT
  *(UnalignedH*)p = (H)_mm512_cvtneps_pbh(v);
#else
  U bits = (U)v;
  U rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  U quiet = (bits >> 16) | 0x40;
  U result = (U)select((I)(v == v), (F)rounded, (F)quiet);
#if PAL_ISA == 256
  __m128i low = _mm256_castsi256_si128((__m256i)result), high = _mm256_extracti128_si256((__m256i)result, 1);
  _mm_storeu_si128((__m128i*)p, _mm_packus_epi32(low, high));
#else
  *(UnalignedH*)p = __builtin_convertvector(result, H);
#endif
#endif
}

PAL_INLINE F f16_load(const uint16_t* p) {
#if PAL_ISA == 512
  return _mm512_cvtph_ps((__m256i) * (const UnalignedH*)p);
#elif PAL_ISA == 256
  return _mm256_cvtph_ps((__m128i) * (const UnalignedH*)p);
#elif PAL_ISA == 64
  return vcvt_f32_f16((float16x4_t) * (const UnalignedH*)p);
#else
  U bits = __builtin_convertvector(*(const UnalignedH*)p, U);
  U sign = (bits & 0x8000) << 16;
  U magnitude = (bits & 0x7fff) << 13;
  F finite = (F)magnitude * 0x1p112f;  // moves the exponent's bias from 15 to 127, subnormal halves too
  F special = (F)(magnitude | 0x7f800000);
  return (F)(sign | (U)select((I)(magnitude >= (0x7c00u << 13)), special, finite));
#endif
}

// ---- dot products of bytes. w: W columns of four k. x: the same four k of one row, in every column's place.
//
// Dot4: weights 0..15, at most eight steps between dot4_zero and dot4_sum (AVX2 keeps the sums in 16 bits).
// Dot6: weights 0..63, two steps at a time. Dot8: weights -128..127, kept with Q8_ZERO added.
// x is -127..127. The sums are exact.

PAL_INLINE B broadcast4(const void* p) {
  int32_t v;
  memcpy(&v, p, 4);
  return (B)set1i(v);
}

#if PAL_ISA == 512

constexpr int Q8_ZERO = 128;
typedef I Dot4, Dot6, Dot8;
PAL_INLINE void dot4(Dot4& sum, B w, B x) { sum = (I)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x); }
PAL_INLINE void dot6(Dot6& sum, B w0, B x0, B w1, B x1) {
  dot4(sum, w0, x0);
  dot4(sum, w1, x1);
}
PAL_INLINE void dot8(Dot8& sum, B w, B x) { dot4(sum, w, x); }
PAL_INLINE I dot4_sum(Dot4 sum) { return sum; }
PAL_INLINE I dot6_sum(Dot6 sum) { return sum; }
PAL_INLINE I dot8_sum(Dot8 sum) { return sum; }

#elif PAL_ISA == 256

constexpr int Q8_ZERO = 0;
typedef int16_t Dot4 __attribute__((vector_size(32)));
typedef I Dot6, Dot8;
PAL_INLINE Dot4 pairs(B w, B x) { return (Dot4)_mm256_maddubs_epi16((__m256i)w, (__m256i)x); }
PAL_INLINE I widen(Dot4 sums) { return (I)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1)); }
PAL_INLINE void dot4(Dot4& sum, B w, B x) { sum += pairs(w, x); }  // 8 steps * 2 * 15 * 127 < 2^15
PAL_INLINE void dot6(Dot6& sum, B w0, B x0, B w1, B x1) { sum += widen(pairs(w0, x0) + pairs(w1, x1)); }
PAL_INLINE void dot8(Dot8& sum, B w, B x) {  // |w| * (x with w's sign): 2 * 128 * 127 < 2^15
  sum += widen(pairs((B)_mm256_abs_epi8((__m256i)w), (B)_mm256_sign_epi8((__m256i)x, (__m256i)w)));
}
PAL_INLINE I dot4_sum(Dot4 sum) { return widen(sum); }
PAL_INLINE I dot6_sum(Dot6 sum) { return sum; }
PAL_INLINE I dot8_sum(Dot8 sum) { return sum; }

#else

#if PAL_ISA == 64 && defined(__ARM_FEATURE_DOTPROD)
constexpr int Q8_ZERO = 0;
typedef I Dot8;
PAL_INLINE void dot8(Dot8& sum, B w, B x) { sum = vdotq_s32(sum, w, x); }
PAL_INLINE I dot8_sum(Dot8 sum) { return sum; }
#elif PAL_ISA == 64
constexpr int Q8_ZERO = 0;
struct Dot8 {
  I low, high;  // two sums for each of two columns
};
PAL_INLINE void dot8(Dot8& sum, B w, B x) {
  sum.low = vpadalq_s16(sum.low, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
  sum.high = vpadalq_s16(sum.high, vmull_high_s8(w, x));
}
PAL_INLINE I dot8_sum(Dot8 sum) { return vpaddq_s32(sum.low, sum.high); }
#elif PAL_ISA == 128
constexpr int Q8_ZERO = 0;
struct Dot8 {
  I low, high;
};
PAL_INLINE void dot8(Dot8& sum, B w, B x) {
  __m128i v = (__m128i)w, sign = _mm_cmpgt_epi8(_mm_setzero_si128(), v);
  __m128i wide = _mm_srai_epi16(_mm_unpacklo_epi8((__m128i)x, (__m128i)x), 8);  // both halves of x are alike
  sum.low += (I)_mm_madd_epi16(_mm_unpacklo_epi8(v, sign), wide);
  sum.high += (I)_mm_madd_epi16(_mm_unpackhi_epi8(v, sign), wide);
}
PAL_INLINE I dot8_sum(Dot8 sum) {
  __m128 low = (__m128)sum.low, high = (__m128)sum.high;
  return (I)_mm_shuffle_ps(low, high, 0x88) + (I)_mm_shuffle_ps(low, high, 0xdd);
}
#else
constexpr int Q8_ZERO = W == 16 ? 128 : 0;
typedef I Dot8;
PAL_INLINE void dot8(Dot8& sum, B w, B x) {
  for (int c = 0; c < W; c++) {
    for (int i = 4 * c; i < 4 * c + 4; i++) sum[c] += (Q8_ZERO ? (uint8_t)w[i] : w[i]) * x[i];
  }
}
PAL_INLINE I dot8_sum(Dot8 sum) { return sum; }
#endif
// Weights up to 63 are signed bytes as well.
typedef Dot8 Dot4, Dot6;
PAL_INLINE void dot4(Dot4& sum, B w, B x) { dot8(sum, w, x); }
PAL_INLINE void dot6(Dot6& sum, B w0, B x0, B w1, B x1) {
  dot8(sum, w0, x0);
  dot8(sum, w1, x1);
}
PAL_INLINE I dot4_sum(Dot4 sum) { return dot8_sum(sum); }
PAL_INLINE I dot6_sum(Dot6 sum) { return dot8_sum(sum); }

#endif
