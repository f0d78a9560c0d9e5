// GGUF's blocks: reading them as float, and packing them into tiles (weight.h). Included inside the level's namespace.
// The layouts of the blocks are those of ggml (block_q4_0 ... block_q6_K), as gguf-py's quants.py reads them.

enum { Q8_0_BYTES = 34, Q4_0_BYTES = 18, Q4_1_BYTES = 20, Q4_K_BYTES = 144, Q6_K_BYTES = 210 };

// ---- scalars

static float f16_value(const void* p) {
  uint16_t half;
  memcpy(&half, p, 2);
  uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = (uint32_t)(half & 0x7fff) << 13;
  float value;
  if (magnitude >= 0x7c00u << 13) {
    magnitude |= 0x7f800000;
    memcpy(&value, &magnitude, 4);
  } else {
    memcpy(&value, &magnitude, 4);
    value *= 0x1p112f;
  }
  return sign ? -value : value;
}

// Q4_K's eight scales and minima of 6 bits each, in 12 bytes.
static void q4_k_scale(const uint8_t* packed, int block, int* scale, int* minimum) {
  if (block < 4) {
    *scale = packed[block] & 63;
    *minimum = packed[block + 4] & 63;
  } else {
    *scale = (packed[block + 4] & 15) | (packed[block - 4] >> 6) << 4;
    *minimum = (packed[block + 4] >> 4) | (packed[block] >> 6) << 4;
  }
}

// q + 32 (0..63) of element i of a Q6_K block.
PAL_INLINE int q6_k_value(const uint8_t* block, int i) {
  int half = i >> 7, quarter = (i >> 5) & 3, l = i & 31;
  int low = block[half * 64 + (quarter & 1) * 32 + l] >> (quarter >> 1) * 4 & 15;
  int high = block[128 + half * 32 + l] >> quarter * 2 & 3;
  return low | high << 4;
}

// ---- as float

static void dequantize(int format, const void* data, int64_t count, float* out) {
  const uint8_t* p = (const uint8_t*)data;
  switch (format) {
    case PAL_F32: memcpy(out, data, 4 * (size_t)count); break;
    case PAL_F16:
    case PAL_BF16: {
      const uint16_t* half = (const uint16_t*)data;
      int64_t i = 0;
      for (; i + W <= count; i += W) store(out + i, format == PAL_F16 ? f16_load(half + i) : bf16_load(half + i));
      for (; i < count; i++) {
        uint32_t bits = (uint32_t)half[i] << 16;
        if (format == PAL_F16) out[i] = f16_value(half + i);
        else memcpy(out + i, &bits, 4);
      }
      break;
    }
    case PAL_Q8_0:
      for (; count > 0; count -= BLOCK, p += Q8_0_BYTES, out += BLOCK) {
        float d = f16_value(p);
        for (int i = 0; i < BLOCK; i++) out[i] = d * (int8_t)p[2 + i];
      }
      break;
    case PAL_Q4_0:
      for (; count > 0; count -= BLOCK, p += Q4_0_BYTES, out += BLOCK) {
        float d = f16_value(p);
        for (int i = 0; i < 16; i++) {
          out[i] = d * ((p[2 + i] & 15) - 8);
          out[i + 16] = d * ((p[2 + i] >> 4) - 8);
        }
      }
      break;
    case PAL_Q4_1:
      for (; count > 0; count -= BLOCK, p += Q4_1_BYTES, out += BLOCK) {
        float d = f16_value(p), m = f16_value(p + 2);
        for (int i = 0; i < 16; i++) {
          out[i] = d * (p[4 + i] & 15) + m;
          out[i + 16] = d * (p[4 + i] >> 4) + m;
        }
      }
      break;
    case PAL_Q4_K:
      for (; count > 0; count -= SUPER, p += Q4_K_BYTES, out += SUPER) {
        float d = f16_value(p), m = f16_value(p + 2);
        for (int b = 0; b < 8; b++) {
          int scale, minimum;
          q4_k_scale(p + 4, b, &scale, &minimum);
          float ds = d * scale, ms = m * minimum;
          const uint8_t* q = p + 16 + b / 2 * 32;
          for (int i = 0; i < BLOCK; i++) out[b * BLOCK + i] = ds * (q[i] >> (b & 1) * 4 & 15) - ms;
        }
      }
      break;
    case PAL_Q6_K:
      for (; count > 0; count -= SUPER, p += Q6_K_BYTES, out += SUPER) {
        float d = f16_value(p + 208);
        for (int i = 0; i < SUPER; i++) out[i] = d * (int8_t)p[192 + i / 16] * (q6_k_value(p, i) - 32);
      }
      break;
  }
}

// ---- packing: `column` of a tile from the row that holds it; the tile starts out as zeros

PAL_INLINE uint32_t word(const void* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
// The words of one column in [..][16][4]: 64 bytes apart.
PAL_INLINE void put_word(char* tile_words, int column, int step, uint32_t v) {
  memcpy(tile_words + step * 64 + column * 4, &v, 4);
}
PAL_INLINE void put_half(char* halves, int column, const void* p) { memcpy(halves + column * 2, p, 2); }

static void pack_column(int kind, char* tile, int column, const void* row, int64_t k) {
  const uint8_t* p = (const uint8_t*)row;
  const uint16_t* half = (const uint16_t*)row;
  switch (kind) {
    case KIND_F32:
      for (int64_t i = 0; i < k; i++) ((float*)tile)[i * TILE + column] = ((const float*)row)[i];
      break;
    case KIND_F16:
    case KIND_BF16:
      for (int64_t i = 0; i < k; i++) {
        bool pairs = PAL_BF16_DOT && kind == KIND_BF16;
        ((uint16_t*)tile)[pairs ? (i / 2 * TILE + column) * 2 + i % 2 : i * TILE + column] = half[i];
      }
      break;
    case KIND_Q8:
      for (int64_t b = 0; b < k / BLOCK; b++, p += Q8_0_BYTES, tile += 32 + 512) {
        put_half(tile, column, p);
        for (int s = 0; s < 8; s++) put_word(tile + 32, column, s, word(p + 2 + 4 * s) ^ Q8_ZERO * 0x01010101u);
      }
      break;
    case KIND_Q4:
      for (int64_t b = 0; b < k / BLOCK; b++, p += Q4_0_BYTES, tile += 32 + 256) {
        put_half(tile, column, p);
        for (int s = 0; s < 4; s++) put_word(tile + 32, column, s, word(p + 2 + 4 * s));
      }
      break;
    case KIND_Q4M:
      for (int64_t b = 0; b < k / BLOCK; b++, p += Q4_1_BYTES, tile += 64 + 256) {
        put_half(tile, column, p);
        put_half(tile + 32, column, p + 2);
        for (int s = 0; s < 4; s++) put_word(tile + 64, column, s, word(p + 4 + 4 * s));
      }
      break;
    case KIND_Q4K:
      for (int64_t super = 0; super < k / SUPER; super++, p += Q4_K_BYTES) {
        put_half(tile, column, p);
        put_half(tile + 32, column, p + 2);
        tile += 64;
        for (int b = 0; b < 8; b++, tile += 32 + 256) {
          int scale, minimum;
          q4_k_scale(p + 4, b, &scale, &minimum);
          tile[column] = (char)scale;
          tile[16 + column] = (char)minimum;
          const uint8_t* q = p + 16 + b / 2 * 32;
          int shift = (b & 1) * 4;
          for (int s = 0; s < 4; s++) {
            uint32_t low = word(q + 4 * s) >> shift & 0x0f0f0f0f, high = word(q + 16 + 4 * s) >> shift & 0x0f0f0f0f;
            put_word(tile + 32, column, s, low | high << 4);
          }
        }
      }
      break;
    case KIND_Q6K:
      for (int64_t super = 0; super < k / SUPER; super++, p += Q6_K_BYTES) {
        put_half(tile, column, p + 208);
        tile += 32;
        for (int b = 0; b < 8; b++, tile += 32 + 384) {
          tile[column] = (char)p[192 + 2 * b];
          tile[16 + column] = (char)p[192 + 2 * b + 1];
          const uint8_t* low = p + (b >> 2) * 64 + (b & 1) * 32;
          const uint8_t* high = p + 128 + (b >> 2) * 32;
          int low_shift = (b >> 1 & 1) * 4, high_shift = (b & 3) * 2;
          for (int s = 0; s < 8; s += 4) {
            uint32_t six[4];
            for (int i = 0; i < 4; i++) {
              six[i] = (word(low + 4 * (s + i)) >> low_shift & 0x0f0f0f0f) |
                       (word(high + 4 * (s + i)) >> high_shift & 0x03030303) << 4;
            }
            for (int i = 0; i < 3; i++) {
              uint32_t two = six[3] >> 2 * i & 0x03030303;
              put_word(tile + 32, column, s / 4 * 3 + i, six[i] | two << 6);
            }
          }
        }
      }
      break;
  }
}

static size_t tile_bytes(int kind, int64_t k) {
  size_t n = (size_t)k;
  switch (kind) {
    case KIND_F32: return n * 64;
    case KIND_F16: return n * 32;
    case KIND_BF16: return PAL_BF16_DOT ? (n + 1) / 2 * 64 : n * 32;
    case KIND_Q8: return n / BLOCK * (32 + 512);
    case KIND_Q4: return n / BLOCK * (32 + 256);
    case KIND_Q4M: return n / BLOCK * (64 + 256);
    case KIND_Q4K: return n / SUPER * (64 + 8 * (32 + 256));
    default: return n / SUPER * (32 + 8 * (32 + 384));
  }
}

static size_t row_bytes(int format, int64_t k) {
  size_t n = (size_t)k;
  switch (format) {
    case PAL_F32: return n * 4;
    case PAL_F16:
    case PAL_BF16: return n * 2;
    case PAL_Q8_0: return n / BLOCK * Q8_0_BYTES;
    case PAL_Q4_0: return n / BLOCK * Q4_0_BYTES;
    case PAL_Q4_1: return n / BLOCK * Q4_1_BYTES;
    case PAL_Q4_K: return n / SUPER * Q4_K_BYTES;
    default: return n / SUPER * Q6_K_BYTES;
  }
}

PAL_INLINE int kind_of(int format) {
  static const int kinds[PAL_FORMATS] = {KIND_F32, KIND_F16, KIND_BF16, KIND_Q8, KIND_Q4, KIND_Q4M, KIND_Q4K, KIND_Q6K};
  return kinds[format];
}

struct PackJob {
  pal_weight* weight;
  const pal_part* parts;
  Counter next;
};

static void pack_phase(void* argument, int) {
  PackJob* job = (PackJob*)argument;
  const pal_weight* w = job->weight;
  for (int64_t tile; (tile = take(&job->next)) < w->tiles;) {
    int s = 0;
    for (; tile >= w->section[s].tiles; s++) tile -= w->section[s].tiles;
    const pal_section& section = w->section[s];
    char* data = section.data + (size_t)tile * section.tile_bytes;
    memset(data, 0, section.tile_bytes);
    size_t stride = row_bytes(job->parts[s].format, w->k);
    for (int c = 0; c < TILE && tile * TILE + c < section.columns; c++) {
      pack_column(section.kind, data, c, (const char*)job->parts[s].data + (size_t)(tile * TILE + c) * stride, w->k);
    }
  }
}

// Fill in a weight whose k, sections (columns) and bias are set: kinds, tiles and their data.
static int pack_weight(pal_team* team, pal_weight* w, const pal_part* parts) {
  PackJob job = {w, parts, {0}};
  for (int s = 0; s < w->sections; s++) {
    pal_section& section = w->section[s];
    section.kind = kind_of(parts[s].format);
    section.tiles = (section.columns + TILE - 1) / TILE;
    section.tile_bytes = tile_bytes(section.kind, w->k);
    section.data = (char*)allocate((size_t)section.tiles * section.tile_bytes);
    if (!section.data) return fail(PAL_NO_MEMORY, "no memory for a weight of %lld x %lld", (long long)w->n, (long long)w->k);
    w->tiles += section.tiles;
    w->bytes += section.tiles * (int64_t)section.tile_bytes;
  }
  team_run(team, pack_phase, &job);
  return PAL_OK;
}
