// From one row of logits to a token: mask, temperature, top-k, top-p, min-p, the draw, log-probabilities.
//
// The meaning is runtime/sampler.py's: weights are exp((logit - largest) / temperature) in double, the filters come in
// the order top-k, top-p, min-p, of equal weights the lower id comes first, and the token is the first whose running
// sum exceeds uniform * total. Nothing is sorted but what a filter may keep: the row is cut into blocks of 64, and a
// block whose largest weight is below what matters is not looked at again. A row is computed by one thread from its own
// logits alone, in an order that its length fixes.

#include "sample_select.h"

// What a thread needs for a row of `vocab` logits, carved out of one piece of memory.
struct SampleScratch {
  float* largest;   // [blocks] of the logits; padded to a multiple of 64 with -inf
  double* weight;   // [blocks] weight of the block's largest
  double* sum;      // [blocks]
  int64_t* keys;    // [vocab] what is being selected from
  double* kept;     // [vocab] weights of the tokens that are left ...
  int32_t* ids;     // [vocab] ... and their ids, ascending
};

static inline int64_t sample_blocks(int64_t vocab) { return (vocab + kSampleBlock - 1) / kSampleBlock; }

static size_t sample_memory(int64_t vocab) {
  size_t blocks = (size_t)(sample_blocks(vocab) + kSampleBlock - 1) / kSampleBlock * kSampleBlock;
  return blocks * (4 + 8 + 8) + (size_t)(vocab + kSampleBlock) * (8 + 8 + 4) + 64;
}

static inline SampleScratch sample_scratch(char* memory, int64_t vocab) {
  size_t blocks = (size_t)(sample_blocks(vocab) + kSampleBlock - 1) / kSampleBlock * kSampleBlock;
  size_t room = (size_t)vocab + kSampleBlock;
  SampleScratch s;
  s.weight = (double*)memory;
  s.sum = s.weight + blocks;
  s.keys = (int64_t*)(s.sum + blocks);
  s.kept = (double*)(s.keys + room);
  s.largest = (float*)(s.kept + room);
  s.ids = (int32_t*)(s.largest + blocks);
  return s;
}

// A row as blocks of 64: the last one may be a copy that is filled up with -inf.
struct SampleRow {
  float* logits;
  int64_t vocab, blocks;
  float tail[kSampleBlock];
  double top, factor;  // largest logit, 1 / temperature
};

static inline const float* sample_block(const SampleRow& row, int64_t block) {
  return (block + 1) * kSampleBlock <= row.vocab ? row.logits + block * kSampleBlock : row.tail;
}

// The largest of 64; `strange` becomes nonzero where one of them is NaN.
static inline float sample_largest(const float* x, int* strange) {
  SampleF8 m;
  memcpy(&m, x, 32);
  SampleM8 odd = m != m;
  for (int i = 8; i < kSampleBlock; i += 8) {
    SampleF8 v;
    memcpy(&v, x + i, 32);
    odd |= v != v;
    m = v > m ? v : m;
  }
  float best = m[0];
  int any = odd[0];
  for (int i = 1; i < 8; i++) {
    best = m[i] > best ? m[i] : best;
    any |= odd[i];
  }
  *strange |= any;
  return best;
}

// -inf wherever the mask has no bit. mask: int32 words, bit t & 31 of word t >> 5.
static void sample_mask(float* logits, int64_t vocab, const int32_t* mask) {
  const SampleM8 lane = {1, 2, 4, 8, 16, 32, 64, 128};
  const float least = -__builtin_inff();
  for (int64_t at = 0; at < vocab; at += 32) {
    uint32_t word = (uint32_t)mask[at >> 5];
    int64_t n = vocab - at < 32 ? vocab - at : 32;
    if (word == 0xffffffffu) continue;
    float* x = logits + at;
    if (n == 32) {
      for (int i = 0; i < 32; i += 8) {
        SampleF8 v;
        memcpy(&v, x + i, 32);
        SampleM8 bits = ((int)(word >> i) & lane) != 0;
        SampleF8 low = {least, least, least, least, least, least, least, least};
        v = bits ? v : low;
        memcpy(x + i, &v, 32);
      }
    } else {
      for (int64_t i = 0; i < n; i++) x[i] = word >> i & 1 ? x[i] : least;
    }
  }
}

// -- filters ----------------------------------------------------------------------------------------------------------

// Tokens of weight >= least (and > 0), in order of id, into kept / ids; how many.
static int64_t sample_collect(const SampleRow& row, SampleScratch& s, double least) {
  double w[kSampleBlock];
  int64_t n = 0;
  for (int64_t b = 0; b < row.blocks; b++) {
    if (!(s.weight[b] >= least) || s.weight[b] == 0.0) continue;
    sample_weights(sample_block(row, b), row.top, row.factor, w);
    for (int i = 0; i < kSampleBlock; i++) {
      s.kept[n] = w[i];
      s.ids[n] = (int32_t)(b * kSampleBlock + i);
      n += w[i] >= least && w[i] > 0.0;
    }
  }
  return n;
}

// Of `n` kept tokens those above `least` and the first ones that equal it, `count` in all.
static int64_t sample_cut(SampleScratch& s, int64_t n, double least, int64_t count) {
  int64_t above = 0, m = 0;
  for (int64_t i = 0; i < n; i++) above += s.kept[i] > least;
  int64_t places = count - above;
  for (int64_t i = 0; i < n; i++) {
    bool equal = s.kept[i] == least;
    if (s.kept[i] > least || (equal && places > 0)) {
      places -= equal;
      s.kept[m] = s.kept[i];
      s.ids[m++] = s.ids[i];
    }
  }
  return m;
}

static int64_t sample_top_k(const SampleRow& row, SampleScratch& s, int64_t k) {
  double least = 0.0;
  if (k <= row.blocks) {
    // The k-th largest of the blocks' largest: so many tokens have at least this weight.
    memcpy(s.keys, s.weight, (size_t)row.blocks * 8);
    least = sample_double(sample_select(s.keys, row.blocks, k));
  }
  int64_t n = sample_collect(row, s, least);
  if (n <= k) return n;
  memcpy(s.keys, s.kept, (size_t)n * 8);
  return sample_cut(s, n, sample_double(sample_select(s.keys, n, k)), k);
}

// Tokens among which are the largest that together reach the limit. `light`: what is lighter than this adds up, over
// the whole vocabulary, to less than may be left out.
static int64_t sample_collect_share(const SampleRow& row, SampleScratch& s, double light, double limit) {
  for (double factor = 1024.0;; factor /= 32.0) {
    double least = light * factor * (1.0 - 1e-9);
    if (factor > 1.0 && least > 1.0) continue;
    int64_t n = sample_collect(row, s, least < 1.0 ? least : 1.0);
    if (factor <= 1.0) return n;
    // Where few of the heaviest reach it, no others matter.
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += s.kept[i];
    if (sum * (1.0 - 1e-9) >= limit) return n;
  }
}

// How many of the largest of n weights it takes until their sum reaches the limit, and the last of these.
static int64_t sample_reach(SampleScratch& s, int64_t n, double limit, double* least) {
  memcpy(s.keys, s.kept, (size_t)n * 8);
  int64_t* a = s.keys;
  int64_t left = n, count = 0;
  double base = 0.0;
  *least = 0.0;
  while (left > 0) {
    int64_t pivot = sample_pivot(a, left), above, equal;
    sample_partition(a, left, pivot, &above, &equal);
    double upper = base, value = sample_double(pivot);
    for (int64_t i = 0; i < above; i++) upper += sample_double(a[i]);
    if (above && upper >= limit) {
      left = above;
      continue;
    }
    *least = value;
    if (upper + (double)equal * value >= limit) {
      int64_t lo = 1, hi = equal;  // the first j with upper + j * value >= limit
      while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (upper + (double)mid * value >= limit) hi = mid;
        else lo = mid + 1;
      }
      count += above + lo;
      break;
    }
    base = upper + (double)equal * value;
    count += above + equal;
    a += above + equal;
    left -= above + equal;
  }
  if (count > 1024) return count;
  // Few: their sums once more from the largest down, which is how the definition rounds.
  int64_t m = 0;
  double below = *least * (1.0 - 1e-12);
  for (int64_t i = 0; i < n; i++) {
    if (s.kept[i] >= below) s.keys[m++] = sample_bits(s.kept[i]);
  }
  if (m > 2048) return count;
  sample_sort_down(s.keys, m);
  double sum = 0.0;
  for (int64_t i = 0; i < m; i++) {
    sum += sample_double(s.keys[i]);
    *least = sample_double(s.keys[i]);
    if (!(sum < limit)) return i + 1;
  }
  return m;
}

static int64_t sample_top_p(SampleScratch& s, int64_t n, double limit) {
  double least;
  int64_t count = sample_reach(s, n, limit, &least);
  return count >= n ? n : sample_cut(s, n, least, count);
}

// -- the draw ---------------------------------------------------------------------------------------------------------

static inline double sample_point(double uniform, double total) {
  double point = uniform * total;
  return point < total ? point : sample_double(sample_bits(total) - 1);
}

static int64_t sample_draw_kept(const SampleScratch& s, int64_t n, double uniform) {
  double total = 0.0, sum = 0.0;
  for (int64_t i = 0; i < n; i++) total += s.kept[i];
  double point = sample_point(uniform, total);
  for (int64_t i = 0; i < n; i++) {
    sum += s.kept[i];
    if (sum > point) return s.ids[i];
  }
  return s.ids[n - 1];
}

static double sample_sums(const SampleRow& row, SampleScratch& s) {
  double w[kSampleBlock], total = 0.0;
  for (int64_t b = 0; b < row.blocks; b++) {
    s.sum[b] = s.weight[b] == 0.0 ? 0.0 : sample_weights(sample_block(row, b), row.top, row.factor, w);
    total += s.sum[b];
  }
  return total;
}

static int64_t sample_draw_all(const SampleRow& row, SampleScratch& s, double uniform) {
  double point = sample_point(uniform, sample_sums(row, s)), sum = 0.0, w[kSampleBlock];
  int64_t b = 0, last = 0;
  for (; b + 1 < row.blocks && !(sum + s.sum[b] > point); b++) sum += s.sum[b];
  sample_weights(sample_block(row, b), row.top, row.factor, w);
  for (int i = 0; i < kSampleBlock; i++) {
    sum += w[i];
    if (w[i] > 0.0) last = i;
    if (sum > point) break;
  }
  return b * kSampleBlock + last;
}

static int64_t sample_draw(const SampleRow& row, SampleScratch& s, const pal_sample_row& asked) {
  bool top_k = asked.top_k > 0 && asked.top_k < row.vocab, top_p = asked.top_p < 1.0, min_p = asked.min_p > 0.0;
  // The weights of the blocks' largest logits, by the very function that the tokens' weights come from.
  for (int64_t b = 0; b < row.blocks; b += kSampleBlock) {
    sample_weights(s.largest + b, row.top, row.factor, s.weight + b);
  }
  if (!top_k && !top_p && !min_p) return sample_draw_all(row, s, asked.uniform);
  int64_t n;
  if (top_k) {
    n = sample_top_k(row, s, asked.top_k);
    if (top_p) {
      double total = 0.0;
      for (int64_t i = 0; i < n; i++) total += s.kept[i];
      n = sample_top_p(s, n, asked.top_p * total);
    }
  } else if (top_p) {
    double total = sample_sums(row, s);
    const double limit = asked.top_p * total;
    n = sample_collect_share(row, s, total * (1.0 - asked.top_p) / (double)row.vocab, limit);
    n = sample_top_p(s, n, limit);
  } else {
    n = sample_collect(row, s, asked.min_p);
  }
  if (min_p) {
    int64_t m = 0;
    for (int64_t i = 0; i < n; i++) {
      s.kept[m] = s.kept[i];
      s.ids[m] = s.ids[i];
      m += s.kept[i] >= asked.min_p;
    }
    n = m;
  }
  return n ? sample_draw_kept(s, n, asked.uniform) : -1;
}

// -- log-probabilities ------------------------------------------------------------------------------------------------

// Larger for larger values, and among equal ones for lower ids.
static inline int64_t sample_rank(float value, int64_t id) {
  int32_t bits;
  memcpy(&bits, &value, 4);
  bits ^= (bits >> 31) & 0x7fffffff;
  return (int64_t)((uint64_t)(uint32_t)bits << 32 | (uint32_t)~(uint32_t)id);
}

static void sample_logprobs(SampleRow& row, SampleScratch& s, const pal_sample_row& asked, pal_sample_out& out) {
  double w[kSampleBlock], total = 0.0;
  float top = (float)row.top;
  for (int64_t b = 0; b < row.blocks; b++) {
    if (s.largest[b] != -__builtin_inff()) total += sample_weights(sample_block(row, b), row.top, 1.0, w);
  }
  float log_total = (float)log(total);
  out.logprob = row.logits[out.token] - top - log_total;
  for (int32_t i = 0; i < asked.asked_count; i++) {
    int64_t id = asked.asked[i];
    asked.asked_values[i] = row.logits[id] - top - log_total;
  }
  int64_t count = asked.top < row.vocab ? asked.top : row.vocab;
  out.top_count = 0;
  if (count <= 0) return;
  float least = -__builtin_inff();
  if (count <= row.blocks) {
    for (int64_t b = 0; b < row.blocks; b++) s.keys[b] = sample_rank(s.largest[b], b);
    sample_select(s.keys, row.blocks, count);
    for (int64_t i = 0; i < count; i++) {
      float value = s.largest[(uint32_t)~(uint32_t)s.keys[i]];
      least = i == 0 || value < least ? value : least;
    }
    least = least - top - log_total;
  }
  int64_t n = 0;
  for (int64_t b = 0; b < row.blocks; b++) {
    if (s.largest[b] == -__builtin_inff() || s.largest[b] - top - log_total < least) continue;
    const float* x = sample_block(row, b);
    for (int i = 0; i < kSampleBlock; i++) {
      float value = x[i] - top - log_total;
      s.keys[n] = sample_rank(value, b * kSampleBlock + i);
      n += value >= least && value != -__builtin_inff();
    }
  }
  if (n > count) {
    sample_select(s.keys, n, count);
    n = count;
  }
  sample_sort_down(s.keys, n);
  for (int64_t i = 0; i < n; i++) {
    int64_t id = (uint32_t)~(uint32_t)s.keys[i];
    asked.top_ids[i] = id;
    asked.top_values[i] = row.logits[id] - top - log_total;
  }
  out.top_count = (int32_t)n;
}

// One row; its logits are changed where they are masked or banned. token -1: all are -inf, -2: NaN or +inf among them.
static void sample_row(float* logits, int64_t vocab, const pal_sample_row* wanted, pal_sample_out* result,
                       char* memory) {
  const pal_sample_row& asked = *wanted;
  pal_sample_out& out = *result;
  SampleScratch s = sample_scratch(memory, vocab);
  SampleRow row;
  row.logits = logits;
  row.vocab = vocab;
  row.blocks = sample_blocks(vocab);
  out.token = -1;
  out.logprob = 0.0f;
  out.top_count = 0;
  if (asked.mask) sample_mask(logits, vocab, asked.mask);
  for (int32_t i = 0; i < asked.banned_count; i++) logits[asked.banned[i]] = -__builtin_inff();
  int64_t whole = vocab / kSampleBlock * kSampleBlock;
  for (int64_t i = 0; i < kSampleBlock; i++) row.tail[i] = whole + i < vocab ? logits[whole + i] : -__builtin_inff();
  int strange = 0;
  float best = -__builtin_inff();
  int64_t where = 0;
  for (int64_t b = 0; b < row.blocks; b++) {
    float largest = sample_largest(sample_block(row, b), &strange);
    s.largest[b] = largest;
    if (largest > best) {
      best = largest;
      where = b;
    }
  }
  for (int64_t b = row.blocks; b % kSampleBlock; b++) s.largest[b] = -__builtin_inff();
  if (strange || best == __builtin_inff()) {
    out.token = -2;
    return;
  }
  if (best == -__builtin_inff()) return;
  row.top = best;
  if (asked.temperature > 0.0) {
    double factor = 1.0 / asked.temperature;
    row.factor = factor <= 1.7976931348623157e308 ? factor : 1.7976931348623157e308;
    out.token = sample_draw(row, s, asked);
  } else {
    const float* x = sample_block(row, where);
    int i = 0;
    while (x[i] != best) i++;
    out.token = where * kSampleBlock + i;
  }
  if (asked.top >= 0 && out.token >= 0) sample_logprobs(row, s, asked, out);
}
