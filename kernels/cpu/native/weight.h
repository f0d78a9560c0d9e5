// A packed weight. Its sections lie in the order of their columns; each has one packed kind and tiles of 16 columns,
// the last of them filled up with zeros.
//
//   section 0 (Q4_K)            section 1 (Q6_K)
//   | tile 0 | tile 1 | tile 2. | tile 3 | tile 4 |     "." columns that are not there
//
// Tiles, by kind; k inner, so that one pass over a tile is one stream. [..][16][4] holds for each of the 16 columns
// four consecutive k; d, m are fp16.
//   F32    [k][16] float                        F16  [k][16] fp16
//   BF16   [k][16] bf16; where pairs are multiplied by an instruction [ceil(k/2)][16][2]
//   Q8     per 32 k: d[16], int8 [8][16][4]     (w = d * q)
//   Q4     per 32 k: d[16], nibbles [4][16][4]  (w = d * (q - 8)); low nibbles k 0..15, high nibbles k 16..31
//   Q4M    per 32 k: d[16], m[16], nibbles      (w = d * q + m)
//   Q4K    per 256 k: d[16], m[16], then 8 times: uint8 scale[16], uint8 minimum[16], nibbles
//                                               (w = d * scale * q - m * minimum)
//   Q6K    per 256 k: d[16], then 8 times: int8 scale[2][16], bytes [2][3][16][4]: for each 16 k the lower six bits are
//          k 0..3, 4..7 and 8..11, and the upper two together (lowest first) k 12..15
//                                               (w = d * scale[k >= 16] * (q - 32))
#ifndef PALMETTE_WEIGHT_H
#define PALMETTE_WEIGHT_H

#include <stddef.h>
#include <stdint.h>

#include "palmette_cpu.h"

enum { TILE = 16, BLOCK = 32, SUPER = 256 };
enum { KIND_F32, KIND_F16, KIND_BF16, KIND_Q8, KIND_Q4, KIND_Q4M, KIND_Q4K, KIND_Q6K, KINDS };

struct pal_section {
  int32_t kind;
  int64_t column, columns, tiles;  // its first output column, how many, in how many tiles
  size_t tile_bytes;
  char* data;
};

struct pal_weight {
  const struct pal_level_table* level;
  int64_t k, n, tiles;
  int32_t sections;
  pal_section* section;
  float* bias;  // [n] or NULL
  int64_t bytes;
};
#endif
