// The kernels on blocks of 8, 6 and 4 bits, times int8 activations. Included inside the level's namespace.

typedef uint16_t Shorts __attribute__((vector_size(4 * W)));

PAL_INLINE B nibbles(B bytes, int high) {
  return (B)((high ? (Shorts)bytes >> 4 : (Shorts)bytes) & 0x0f0f);
}

// Integer sums of one block of 32 k of Q8.
template <int MR, int NV>
PAL_INLINE void sums_of_bytes(const char* quants, size_t stride, const ByteBlock* x, int64_t xs, I (&sum)[MR][NV]) {
  Dot8 dots[MR][NV] = {};
  PAL_UNROLL
  for (int s = 0; s < 8; s++) {
    B w[NV];
    PAL_UNROLL
    for (int v = 0; v < NV; v++) w[v] = load_bytes(quants + s * 64 + PAL_AT(v, 4));
    PAL_UNROLL
    for (int r = 0; r < MR; r++) {
      B xr = broadcast4(x[r * xs].q + 4 * s);
      PAL_UNROLL
      for (int v = 0; v < NV; v++) dot8(dots[r][v], w[v], xr);
    }
  }
  PAL_UNROLL
  for (int r = 0; r < MR; r++) {
    PAL_UNROLL
    for (int v = 0; v < NV; v++) {
      sum[r][v] = dot8_sum(dots[r][v]);
      if (Q8_ZERO) sum[r][v] += set1i(x[r * xs].minus_sum) * Q8_ZERO;
    }
  }
}

// The same for 4 bits; `zero` is taken off every weight.
template <int MR, int NV>
PAL_INLINE void sums_of_nibbles(const char* quants, size_t stride, const ByteBlock* x, int64_t xs, int zero,
                                I (&sum)[MR][NV]) {
  Dot4 dots[MR][NV] = {};
  PAL_UNROLL
  for (int s = 0; s < 8; s++) {
    B w[NV];
    PAL_UNROLL
    for (int v = 0; v < NV; v++) w[v] = nibbles(load_bytes(quants + (s & 3) * 64 + PAL_AT(v, 4)), s >> 2);
    PAL_UNROLL
    for (int r = 0; r < MR; r++) {
      B xr = broadcast4(x[r * xs].q + 4 * s);
      PAL_UNROLL
      for (int v = 0; v < NV; v++) dot4(dots[r][v], w[v], xr);
    }
  }
  PAL_UNROLL
  for (int r = 0; r < MR; r++) {
    PAL_UNROLL
    for (int v = 0; v < NV; v++) {
      sum[r][v] = dot4_sum(dots[r][v]);
      if (zero) sum[r][v] += set1i(x[r * xs].minus_sum) * zero;
    }
  }
}

// Q8, Q4, Q4M and Q4K: one scale, and in the last two one minimum, for each 32 k of a column.
template <int KIND, int MR, int NT>
static void block_kernel(const char* tile, size_t stride, const Rows* a, int64_t row, int64_t k0, int64_t k1,
                         size_t ahead, float* out) {
  enum { NV = NT * PER_TILE, HEAD = KIND == KIND_Q4M ? 64 : 32 };
  constexpr bool shifted = KIND == KIND_Q4M || KIND == KIND_Q4K;
  const ByteBlock* x = a->bytes + row * a->blocks + k0 / BLOCK;
  const int64_t xs = a->blocks;
  const char* super = nullptr;
  F acc[MR][NV];
  start_sums<MR, NV>(acc, k0, out);
  for (int64_t b = k0 / BLOCK; b < k1 / BLOCK; b++, x++) {
    if (KIND == KIND_Q4K && b % (SUPER / BLOCK) == 0) {
      super = tile;
      tile += 64;
    }
    look_ahead<NT>(tile, stride, ahead, HEAD + (KIND == KIND_Q8 ? 512 : 256));
    I sum[MR][NV];
    if constexpr (KIND == KIND_Q8) sums_of_bytes<MR, NV>(tile + HEAD, stride, x, xs, sum);
    else sums_of_nibbles<MR, NV>(tile + HEAD, stride, x, xs, KIND == KIND_Q4 ? 8 : 0, sum);
    PAL_UNROLL
    for (int v = 0; v < NV; v++) {
      F d, m = {};
      if constexpr (KIND == KIND_Q4K) {
        d = f16_load((const uint16_t*)(super + PAL_AT(v, 2))) * to_float(uint8_load(tile + PAL_AT(v, 1)));
        m = f16_load((const uint16_t*)(super + 32 + PAL_AT(v, 2))) * -to_float(uint8_load(tile + 16 + PAL_AT(v, 1)));
      } else {
        d = f16_load((const uint16_t*)(tile + PAL_AT(v, 2)));
        if (shifted) m = f16_load((const uint16_t*)(tile + 32 + PAL_AT(v, 2)));
      }
      PAL_UNROLL
      for (int r = 0; r < MR; r++) {
        acc[r][v] = fma(to_float(sum[r][v]) * set1(x[r * xs].scale), d, acc[r][v]);
        if (shifted) acc[r][v] = fma(m, set1(x[r * xs].scaled_sum), acc[r][v]);
      }
    }
    tile += HEAD + (KIND == KIND_Q8 ? 512 : 256);
  }
  store_sums<MR, NV>(acc, out);
}

// The lower six bits of each byte.
PAL_INLINE B sixes(B bytes) { return bytes & 63; }
// Six bits put together from the upper two of three bytes.
PAL_INLINE B top_twos(B a, B b, B c) {
  return (B)(((Shorts)a >> 6 & 0x0303) | ((Shorts)b >> 4 & 0x0c0c) | ((Shorts)c >> 2 & 0x3030));
}

// Q6K: a scale for each 16 k.
template <int MR, int NT>
static void q6k_kernel(const char* tile, size_t stride, const Rows* a, int64_t row, int64_t k0, int64_t k1,
                         size_t ahead, float* out) {
  enum { NV = NT * PER_TILE, HEAD = 32 };
  const ByteBlock* x = a->bytes + row * a->blocks + k0 / BLOCK;
  const int64_t xs = a->blocks;
  const char* super = nullptr;
  F acc[MR][NV];
  start_sums<MR, NV>(acc, k0, out);
  for (int64_t b = k0 / BLOCK; b < k1 / BLOCK; b++, x++) {
    if (b % (SUPER / BLOCK) == 0) {
      super = tile;
      tile += 32;
    }
    look_ahead<NT>(tile, stride, ahead, HEAD + 384);
    F sum[MR][NV];
    PAL_UNROLL
    for (int half = 0; half < 2; half++) {
      Dot6 dots[MR][NV] = {};
      PAL_UNROLL
      for (int v = 0; v < NV; v++) {
        const char* p = tile + HEAD + half * 192 + PAL_AT(v, 4);
        B w0 = sixes(load_bytes(p)), w1 = sixes(load_bytes(p + 64));
        PAL_UNROLL
        for (int r = 0; r < MR; r++) {
          const int8_t* q = x[r * xs].q + 16 * half;
          dot6(dots[r][v], w0, broadcast4(q), w1, broadcast4(q + 4));
        }
        w0 = sixes(load_bytes(p + 128));
        w1 = top_twos(load_bytes(p), load_bytes(p + 64), load_bytes(p + 128));
        PAL_UNROLL
        for (int r = 0; r < MR; r++) {
          const int8_t* q = x[r * xs].q + 16 * half + 8;
          dot6(dots[r][v], w0, broadcast4(q), w1, broadcast4(q + 4));
        }
      }
      PAL_UNROLL
      for (int v = 0; v < NV; v++) {
        F scale = to_float(int8_load(tile + half * 16 + PAL_AT(v, 1)));
        PAL_UNROLL
        for (int r = 0; r < MR; r++) {
          int32_t minus = half ? x[r * xs].minus_sum - x[r * xs].minus_first : x[r * xs].minus_first;
          F part = to_float(dot6_sum(dots[r][v]) + set1i(minus * 32)) * scale;  // below 2^24: exact
          sum[r][v] = half ? sum[r][v] + part : part;
        }
      }
    }
    PAL_UNROLL
    for (int v = 0; v < NV; v++) {
      F d = f16_load((const uint16_t*)(super + PAL_AT(v, 2)));
      PAL_UNROLL
      for (int r = 0; r < MR; r++) acc[r][v] = fma(sum[r][v] * set1(x[r * xs].scale), d, acc[r][v]);
    }
    tile += HEAD + 384;
  }
  store_sums<MR, NV>(acc, out);
}

// ---- the kernel for a kind, a number of rows and of tiles (a power of two)

typedef void (*Kernel)(const char* tile, size_t stride, const Rows* a, int64_t row, int64_t k0, int64_t k1,
                         size_t ahead, float* out);

template <int KIND, int MR, int NT>
constexpr Kernel kernel_of() {
#if PAL_BF16_DOT
  if constexpr (KIND == KIND_BF16) return bf16_kernel<MR, NT>;
  else
#endif
  if constexpr (KIND <= KIND_BF16) return float_kernel<KIND, MR, NT>;
  else if constexpr (KIND == KIND_Q6K) return q6k_kernel<MR, NT>;
  else return block_kernel<KIND, MR, NT>;
}

template <int KIND, int MR>
static Kernel kernel_of_tiles(int tiles) {
  constexpr int most = most_tiles(KIND, MR);
  if constexpr (most >= 4) {
    if (tiles == 4) return kernel_of<KIND, MR, 4>();
  }
  if constexpr (most >= 2) {
    if (tiles == 2) return kernel_of<KIND, MR, 2>();
  }
  return kernel_of<KIND, MR, 1>();
}

template <int KIND, int MR = 1>
static Kernel kernel_of_rows(int rows, int tiles) {
  if constexpr (MR < most_rows(KIND)) {
    if (rows > MR) return kernel_of_rows<KIND, MR + 1>(rows, tiles);
  }
  return kernel_of_tiles<KIND, MR>(tiles);
}

static Kernel choose_kernel(int kind, int rows, int tiles) {
  switch (kind) {
    case KIND_F32: return kernel_of_rows<KIND_F32>(rows, tiles);
    case KIND_F16: return kernel_of_rows<KIND_F16>(rows, tiles);
    case KIND_BF16: return kernel_of_rows<KIND_BF16>(rows, tiles);
    case KIND_Q8: return kernel_of_rows<KIND_Q8>(rows, tiles);
    case KIND_Q4: return kernel_of_rows<KIND_Q4>(rows, tiles);
    case KIND_Q4M: return kernel_of_rows<KIND_Q4M>(rows, tiles);
    case KIND_Q4K: return kernel_of_rows<KIND_Q4K>(rows, tiles);
    default: return kernel_of_rows<KIND_Q6K>(rows, tiles);
  }
}

PAL_INLINE void run_kernel(int kind, int rows, int tiles, const char* tile, size_t stride, const Rows* a, int64_t row,
                           int64_t k0, int64_t k1, size_t ahead, float* out) {
  choose_kernel(kind, rows, tiles)(tile, stride, a, row, k0, k1, ahead, out);
}
