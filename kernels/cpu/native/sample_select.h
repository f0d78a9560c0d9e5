// Selection without sorting, and weights of logits, for sample.h.

static const int kSampleBlock = 64;

// Vectors of four doubles, however long the level's own are; none crosses a call.
#pragma GCC diagnostic ignored "-Wpsabi"
typedef double SampleD4 __attribute__((vector_size(32)));
typedef long long SampleI4 __attribute__((vector_size(32)));
typedef float SampleF4 __attribute__((vector_size(16)));
typedef float SampleF8 __attribute__((vector_size(32)));
typedef int SampleM8 __attribute__((vector_size(32)));

static inline int64_t sample_bits(double x) {
  int64_t b;
  memcpy(&b, &x, 8);
  return b;
}

static inline double sample_double(int64_t b) {
  double x;
  memcpy(&x, &b, 8);
  return x;
}

// -- selection among keys ---------------------------------------------------------------------------------------------

static inline int64_t sample_pivot(const int64_t* a, int64_t n) {
  int64_t x = a[0], y = a[n / 2], z = a[n - 1];
  if (x < y) {
    int64_t t = x;
    x = y;
    y = t;
  }
  return z >= x ? x : (z >= y ? z : y);
}

// Puts what exceeds the pivot first, what equals it next; `above` and `equal` say how many each.
static inline void sample_partition(int64_t* a, int64_t n, int64_t pivot, int64_t* above, int64_t* equal) {
  int64_t lo = 0, at = 0, hi = n;
  while (at < hi) {
    int64_t v = a[at];
    if (v > pivot) {
      a[at++] = a[lo];
      a[lo++] = v;
    } else if (v == pivot) {
      at++;
    } else {
      a[at] = a[--hi];
      a[hi] = v;
    }
  }
  *above = lo;
  *equal = hi - lo;
}

// The k-th largest of n keys, 1 <= k <= n; the k largest are first afterwards.
static int64_t sample_select(int64_t* a, int64_t n, int64_t k) {
  for (;;) {
    int64_t pivot = sample_pivot(a, n), above, equal;
    sample_partition(a, n, pivot, &above, &equal);
    if (k <= above) {
      n = above;
    } else if (k <= above + equal) {
      return pivot;
    } else {
      a += above + equal;
      n -= above + equal;
      k -= above + equal;
    }
  }
}

static void sample_sort_down(int64_t* a, int64_t n) {
  while (n > 16) {
    int64_t above, equal;
    sample_partition(a, n, sample_pivot(a, n), &above, &equal);
    int64_t rest = n - above - equal;
    if (above < rest) {
      sample_sort_down(a, above);
      a += above + equal;
      n = rest;
    } else {
      sample_sort_down(a + above + equal, rest);
      n = above;
    }
  }
  for (int64_t i = 1; i < n; i++) {
    int64_t v = a[i], j = i;
    for (; j > 0 && a[j - 1] < v; j--) a[j] = a[j - 1];
    a[j] = v;
  }
}

// -- weights ----------------------------------------------------------------------------------------------------------

static const double kSampleLeast = -708.0;  // below it a weight counts as 0

PAL_INLINE SampleD4 sample_fma(const SampleD4& a, const SampleD4& b, double c) {
#if defined(__FMA__)
  return (SampleD4)_mm256_fmadd_pd((__m256d)a, (__m256d)b, _mm256_set1_pd(c));
#else
  return a * b + c;
#endif
}

// exp to within an ulp for x <= 0. The polynomial interpolates exp at the Chebyshev nodes of +-ln(2)/2, relative error
// 4e-18.
PAL_INLINE SampleD4 sample_exp(const SampleD4& x) {
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves the rounded integer in the low bits
  SampleD4 shifted = x * 1.4426950408889634 + magic;
  SampleD4 n = shifted - magic;
  SampleD4 r = x - n * 6.93147180369123816490e-01;
  r = r - n * 1.90821492927058770002e-10;
  SampleD4 p = sample_fma(r, SampleD4{} + 2.5110049204818658e-08, 2.763265472252779e-07);
  p = sample_fma(p, r, 2.755724088722987e-06);
  p = sample_fma(p, r, 2.4801485441561313e-05);
  p = sample_fma(p, r, 0.00019841269890076403);
  p = sample_fma(p, r, 0.0013888888952352863);
  p = sample_fma(p, r, 0.008333333333319589);
  p = sample_fma(p, r, 0.04166666666648795);
  p = sample_fma(p, r, 0.1666666666666668);
  p = sample_fma(p, r, 0.5000000000000019);
  p = sample_fma(p, r, 1.0);
  p = sample_fma(p, r, 1.0);
  SampleI4 bits = (SampleI4)p + ((SampleI4)shifted << 52);
  return (SampleD4)(bits & (SampleI4)(x >= kSampleLeast));
}

// Weights of 64 logits, and their sum.
static __attribute__((noinline)) double sample_weights(const float* x, double top, double factor, double* out) {
  SampleD4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
  for (int i = 0; i < kSampleBlock; i += 8) {
    SampleF4 f0, f1;
    memcpy(&f0, x + i, 16);
    memcpy(&f1, x + i + 4, 16);
    SampleD4 w0 = sample_exp((__builtin_convertvector(f0, SampleD4) - top) * factor);
    SampleD4 w1 = sample_exp((__builtin_convertvector(f1, SampleD4) - top) * factor);
    memcpy(out + i, &w0, 32);
    memcpy(out + i + 4, &w1, 32);
    a += w0;
    b += w1;
  }
  a += b;
  return (a[0] + a[1]) + (a[2] + a[3]);
}
