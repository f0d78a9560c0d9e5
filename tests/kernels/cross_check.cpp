// The C++ kernels checked by themselves, for builds that Python cannot load here: another processor under qemu, or
// vectors as wide as AVX-512's on a processor without. Matmul in every format, at every level that runs, against plain
// loops on the dequantised weight; a row alone against the row in a batch; one thread against three.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "palmette_cpu.h"

#if defined(PALMETTE_WIDE)
enum { BF16_PAIRS = 1 };  // the wide build rounds activations to bf16 as avx512bf16 does
#else
enum { BF16_PAIRS = 0 };
#endif

static const char* const NAMES[PAL_FORMATS] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"};
static const int BLOCK_BYTES[PAL_FORMATS] = {4, 2, 2, 34, 18, 20, 144, 210};
static const int BLOCK_LENGTH[PAL_FORMATS] = {1, 1, 1, 32, 32, 32, 256, 256};

static uint32_t state = 1;
static uint32_t next_number() { return (state = state * 1664525u + 1013904223u) >> 8; }
static float next_float() { return (float)(next_number() & 0xffff) / 32768.0f - 1.0f; }

static void put_half(unsigned char* p) {  // a small positive fp16: 2^-8 and up to twice that
  uint16_t half = (uint16_t)(7 << 10 | (next_number() & 1023));
  memcpy(p, &half, 2);
}

static unsigned char* random_weight(int format, int64_t n, int64_t k) {
  int64_t blocks = n * k / BLOCK_LENGTH[format], size = BLOCK_BYTES[format];
  unsigned char* data = (unsigned char*)malloc((size_t)(blocks * size));
  for (int64_t b = 0; b < blocks; b++) {
    unsigned char* p = data + b * size;
    float value = next_float();
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if (format == PAL_F32) memcpy(p, &value, 4);
    else if (format == PAL_F16) put_half(p), p[1] |= (unsigned char)(next_number() & 128);
    else if (format == PAL_BF16) memcpy(p, (char*)&bits + 2, 2);
    else {
      for (int64_t i = 0; i < size; i++) p[i] = (unsigned char)next_number();
      put_half(format == PAL_Q6_K ? p + 208 : p);
      if (format == PAL_Q4_1 || format == PAL_Q4_K) put_half(p + 2);
    }
  }
  return data;
}

// As the kernels round activations: by blocks of 32.
static void round_rows(const float* x, int64_t count, float* out) {
  for (int64_t b = 0; b < count; b += 32) {
    float largest = 0;
    for (int i = 0; i < 32; i++) largest = fmaxf(largest, fabsf(x[b + i]));
    float inverse = largest > 0 ? 127.0f / largest : 0.0f, scale = largest / 127.0f;
    for (int i = 0; i < 32; i++) out[b + i] = nearbyintf(x[b + i] * inverse) * scale;
  }
}

static float as_bf16(float v) {
  uint32_t bits;
  memcpy(&bits, &v, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  memcpy(&v, &bits, 4);
  return v;
}

static int failures = 0;

static void check(const char* level, int format, int64_t n, int64_t k, int64_t rows) {
  unsigned char* data = random_weight(format, n, k);
  float* plain = (float*)malloc((size_t)(n * k) * 4);
  float* x = (float*)malloc((size_t)(rows * k) * 4);
  float* rounded = (float*)malloc((size_t)(rows * k) * 4);
  float* bias = (float*)malloc((size_t)n * 4);
  float* out = (float*)malloc((size_t)(rows * n) * 4);
  float* again = (float*)malloc((size_t)(rows * n) * 4);
  for (int64_t i = 0; i < rows * k; i++) x[i] = next_float();
  for (int64_t i = 0; i < n; i++) bias[i] = next_float();
  if (format >= PAL_Q8_0) round_rows(x, rows * k, rounded);
  else {
    bool pairs = format == PAL_BF16 && (BF16_PAIRS || !strcmp(level, "avx512bf16"));
    for (int64_t i = 0; i < rows * k; i++) rounded[i] = pairs ? as_bf16(x[i]) : x[i];
  }
  int bad = pal_dequantize(format, data, n * k, plain);
  pal_team* one = pal_team_new(1, level);
  pal_team* three = pal_team_new(3, level);
  pal_part part = {format, 0, n, data};
  pal_weight* w = pal_weight_new(one, k, &part, 1, bias);
  double worst = 0;
  if (!w || bad || pal_linear(one, w, x, rows, out, 0) || pal_linear(three, w, x, rows, again, 0)) {
    printf("FAILED: %s\n", pal_error());
    failures++;
  } else {
    for (int64_t r = 0; r < rows; r++) {
      for (int64_t c = 0; c < n; c++) {
        double sum = bias[c], size = fabs(bias[c]);
        for (int64_t i = 0; i < k; i++) {
          double product = (double)rounded[r * k + i] * plain[c * k + i];
          sum += product;
          size += fabs(product);
        }
        worst = fmax(worst, fabs(sum - out[r * n + c]) / size);
      }
    }
    bool same = !memcmp(out, again, (size_t)(rows * n) * 4);
    for (int64_t r = 0; r < rows; r++) {
      same &= !pal_linear(one, w, x + r * k, 1, again, 0) && !memcmp(again, out + r * n, (size_t)n * 4);
    }
    bool good = worst < 3e-6 && same;
    failures += !good;
    if (!good) printf("FAILED: %s %s n %d k %d rows %d: error %.1e, %s bits\n", level, NAMES[format], (int)n, (int)k,
                      (int)rows, worst, same ? "same" : "other");
  }
  pal_weight_free(w);
  pal_team_free(one);
  pal_team_free(three);
  free(data), free(plain), free(x), free(rounded), free(bias), free(out), free(again);
}

int main() {
  char levels[200];
  snprintf(levels, sizeof levels, "%s", pal_levels());
  for (char* level = strtok(levels, " "); level; level = strtok(nullptr, " ")) {
    for (int format = 0; format < PAL_FORMATS; format++) {
      int64_t odd = format < PAL_Q8_0 ? 3 : 0;
      check(level, format, 37, 256 + odd, 1);
      check(level, format, 80, 768, 7);
      check(level, format, 150, 256 + odd, 29);
      check(level, format, 16, 1280, 100);
    }
    printf("%s: %s\n", level, failures ? "FAILED" : "ok");
  }
  return failures != 0;
}
