// What one level offers to main.cpp. Each level_*.cpp defines one table; entries are appended, never reordered.
#ifndef PALMETTE_LEVEL_TABLE_H
#define PALMETTE_LEVEL_TABLE_H

#include "palmette_cpu.h"
#include "plan.h"

struct pal_level_table {
  const char* name;
  // linear.h
  int (*pack)(pal_team*, pal_weight*, const pal_part*);
  int (*linear)(pal_team*, const pal_weight*, const float*, int64_t, float*, int);
  void (*dequantize)(int, const void*, int64_t, float*);
  // tape.h
  void (*run_tape)(void*, int);
  void (*norm)(const float*, int64_t, int64_t, const float*, float, float*);
  void (*gate)(const float*, int64_t, int64_t, int, float*);
  void (*embed)(const pal_op*, const int64_t*, int64_t, float*);
  void (*rotate)(const pal_op*, const pal_kv*, const int64_t*, const int64_t*, int64_t, const float*, float*, float*);
  void (*attend)(pal_team*, const pal_op*, const pal_kv*, const pal::AttendPlan*, const float*, float*, char*, size_t);
  // sample.h
  size_t (*sample_memory)(int64_t);
  void (*sample)(float*, int64_t, const pal_sample_row*, pal_sample_out*, char*);
  // ceiling.h
  int64_t (*ceiling)(pal_team*, int format, int64_t rounds);
};
#endif
