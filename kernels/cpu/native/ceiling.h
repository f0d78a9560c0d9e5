// How quick the inner loop of a format's matmul can be: its multiplications on operands from the nearest cache and
// nothing around them. Included inside the level's namespace.

#if PAL_ISA == 512
enum { CEILING_ROWS = 12, CEILING_VECTORS = 2, CEILING_BYTE_ROWS = 8 };
#elif PAL_ISA == 256
enum { CEILING_ROWS = 6, CEILING_VECTORS = 2, CEILING_BYTE_ROWS = 4 };
#else
enum { CEILING_ROWS = 4, CEILING_VECTORS = 2, CEILING_BYTE_ROWS = 2 };
#endif

struct CeilingOperands {
  alignas(64) char w[CEILING_VECTORS * 64 * 2];
  float x[CEILING_ROWS];
  int8_t q[CEILING_ROWS * 8];
};

// Before each round the operands may have changed, as far as the compiler can tell.
#define PAL_ANEW(pointer) __asm__ volatile("" : "+r"(pointer)::"memory")

static float float_rounds(const CeilingOperands* o, int64_t rounds) {
  F acc[CEILING_ROWS][CEILING_VECTORS] = {}, total = {};
  for (int64_t i = 0; i < rounds; i++) {
    PAL_ANEW(o);
    PAL_UNROLL
    for (int r = 0; r < CEILING_ROWS; r++) {
      F x = set1(o->x[r]);
      PAL_UNROLL
      for (int v = 0; v < CEILING_VECTORS; v++) acc[r][v] = fma(x, load((const float*)(o->w + v * 4 * W)), acc[r][v]);
    }
  }
  PAL_UNROLL
  for (int i = 0; i < CEILING_ROWS * CEILING_VECTORS; i++) total += acc[i / CEILING_VECTORS][i % CEILING_VECTORS];
  return reduce_add(total);
}

#if PAL_BF16_DOT
static float pair_rounds(const CeilingOperands* o, int64_t rounds) {
  F acc[CEILING_ROWS][CEILING_VECTORS] = {}, total = {};
  for (int64_t i = 0; i < rounds; i++) {
    PAL_ANEW(o);
    PAL_UNROLL
    for (int r = 0; r < CEILING_ROWS; r++) {
      B x = broadcast4(o->q + 4 * r);
      PAL_UNROLL
      for (int v = 0; v < CEILING_VECTORS; v++) {
        acc[r][v] = dot_pairs(acc[r][v], load_bytes(o->w + v * 4 * W), x);
      }
    }
  }
  PAL_UNROLL
  for (int i = 0; i < CEILING_ROWS * CEILING_VECTORS; i++) total += acc[i / CEILING_VECTORS][i % CEILING_VECTORS];
  return reduce_add(total);
}
#endif

// Eight steps a round, of 32 k, as in a block; their sums are taken out where the kernel must.
template <int BITS>
static float byte_rounds(const CeilingOperands* o, int64_t rounds) {
  F total = {};
  for (int64_t i = 0; i < rounds; i++) {
    Dot8 eights[CEILING_BYTE_ROWS][CEILING_VECTORS] = {};
    Dot6 sixes[CEILING_BYTE_ROWS][CEILING_VECTORS] = {};
    Dot4 fours[CEILING_BYTE_ROWS][CEILING_VECTORS] = {};
    PAL_UNROLL
    for (int s = 0; s < 8; s += 2) {
      PAL_ANEW(o);
      PAL_UNROLL
      for (int v = 0; v < CEILING_VECTORS; v++) {
        B w0 = load_bytes(o->w + v * 4 * W), w1 = load_bytes(o->w + (v + CEILING_VECTORS) * 4 * W);
        PAL_UNROLL
        for (int r = 0; r < CEILING_BYTE_ROWS; r++) {
          B x0 = broadcast4(o->q + 8 * r), x1 = broadcast4(o->q + 8 * r + 4);
          if (BITS == 8) dot8(eights[r][v], w0, x0), dot8(eights[r][v], w1, x1);
          if (BITS == 6) dot6(sixes[r][v], w0, x0, w1, x1);
          if (BITS == 4) dot4(fours[r][v], w0, x0), dot4(fours[r][v], w1, x1);
        }
      }
    }
    I sum = {};
    PAL_UNROLL
    for (int n = 0; n < CEILING_BYTE_ROWS * CEILING_VECTORS; n++) {
      int r = n / CEILING_VECTORS, v = n % CEILING_VECTORS;
      sum += BITS == 8 ? dot8_sum(eights[r][v]) : BITS == 6 ? dot6_sum(sixes[r][v]) : dot4_sum(fours[r][v]);
    }
    total += to_float(sum);
  }
  return reduce_add(total);
}

struct CeilingJob {
  int kind;
  int64_t rounds;
};

static void ceiling_phase(void* argument, int) {
  const CeilingJob* job = (const CeilingJob*)argument;
  CeilingOperands operands;
  memset(&operands, 1, sizeof operands);
  volatile float sink = 0.0f;
  switch (job->kind) {
    case KIND_Q8: sink = byte_rounds<8>(&operands, job->rounds); break;
    case KIND_Q6K: sink = byte_rounds<6>(&operands, job->rounds); break;
    case KIND_Q4:
    case KIND_Q4M:
    case KIND_Q4K: sink = byte_rounds<4>(&operands, job->rounds); break;
#if PAL_BF16_DOT
    case KIND_BF16: sink = pair_rounds(&operands, job->rounds); break;
#endif
    default: sink = float_rounds(&operands, job->rounds);
  }
  (void)sink;
}

// Run the loop of a format in every thread; how many multiplications a thread did.
static int64_t run_ceiling(pal_team* team, int format, int64_t rounds) {
  CeilingJob job = {kind_of(format), rounds};
  team_run(team, ceiling_phase, &job);
  if (job.kind > KIND_BF16) return rounds * CEILING_BYTE_ROWS * CEILING_VECTORS * W * BLOCK;
  return rounds * CEILING_ROWS * CEILING_VECTORS * W * (PAL_BF16_DOT && job.kind == KIND_BF16 ? 2 : 1);
}
