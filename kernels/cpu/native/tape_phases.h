// A tape as the threads of a team run it: phases with a barrier between each two. tape.cpp makes them, tape.h runs
// them.
#ifndef PALMETTE_TAPE_PHASES_H
#define PALMETTE_TAPE_PHASES_H

#include "plan.h"
#include "team.h"
#include "weight.h"

namespace pal {

enum { REG_X, REG_H, REG_QKV, REG_A, REG_G, REG_PICKED, REG_ANGLES = 8, REGISTERS = 32 };

enum { PHASE_ROWS, PHASE_GEMM, PHASE_ATTEND };

struct Phase {
  int32_t kind;
  int32_t begin, end;         // ROWS: operations that each row goes through by itself; else: the operation at `begin`
  bool picked;                // rows are those whose logits are wanted
  int32_t source;             // ROWS: register that is then put into the forms that `weight` wants
  const pal_weight* weight;   // ROWS: or NULL; GEMM: the matrix
  int32_t target;             // GEMM: register, -1: the batch's logits
  int32_t gate;               // GEMM: kind of activation, -1: none
  bool add;                   // GEMM: added to the target
  bool own;                   // ROWS: where rows are few, each thread does it for itself
};

// Up to so many rows it costs less that each thread norms, turns and quantises all of them than that all wait for it.
enum { FEW_ROWS = 4 };

// One step of a tape.
struct TapeRun {
  pal_team* team;
  const pal_op* ops;
  const Phase* phases;
  int64_t count;
  const pal_kv* kv;
  const pal_batch* batch;
  const AttendPlan* plan;
  float* reg[REGISTERS];
  int64_t width[REGISTERS];
  void* forms;        // what quantize_row makes
  char* memory;       // [threads][memory_stride]
  size_t memory_stride;
  Counter* counters;  // [2][threads], 0: of a phase and of the next
  // [threads][own_stride], or NULL: what a thread writes for itself, each register at its place, and the forms of it.
  char* own;
  size_t own_stride, own_register[REGISTERS], own_forms;
};

}  // namespace pal
#endif
