// Tapes: operations are checked and made into phases once; a step finds its memory and lets the level run them.
#include <string.h>

#include <new>

#include "checks.h"
#include "grow.h"
#include "level_table.h"
#include "palmette_cpu.h"
#include "plan.h"
#include "tape_phases.h"
#include "team.h"
#include "weight.h"

using namespace pal;

struct pal_tape {
  Grow<pal_op> ops;
  Grow<Phase> phases;
  int64_t count = 0;  // of phases
  int64_t width[REGISTERS] = {};
  int64_t vocab = 0, columns = 0, form_bytes = 0;  // tokens of the embedding, of the logits; bytes of a row's forms
  int32_t heads = 0, kv_heads = 0, head_dim = 0, layers = 0;
  bool share = true, own = false;  // own: some phases each thread may do for itself
  PlanMemory* plan = nullptr;
  Grow<float> registers;
  Grow<char> forms, memory, own_memory;
  Grow<Counter> counters;
};

namespace {

// Whether gate and up lie apart in the weight, tile beside tile, so that one pass computes both.
bool side_by_side(const pal_weight* w) {
  for (int s = 0; s < w->sections / 2; s++) {
    if (w->section[s].columns != w->section[s + w->sections / 2].columns) return false;
  }
  return w->sections % 2 == 0;
}

// Turns operations into phases and finds the registers' widths.
struct Compiler {
  pal_tape& tape;
  const pal_op* ops;
  int count;
  bool picked = false, rows_open = false;
  int at = 0;

  int wrong(const char* what) { return fail(PAL_BAD_ARGUMENT, "operation %d of the tape: %s", at, what); }

  int32_t place(int32_t reg) const { return picked && reg == REG_X ? (int32_t)REG_PICKED : reg; }

  void add(const Phase& phase) { tape.phases[tape.count++] = phase; }

  Phase& rows() {
    if (!rows_open) add({PHASE_ROWS, at, at, picked, 0, nullptr, 0, -1, false, false});
    rows_open = true;
    return tape.phases[tape.count - 1];
  }

  int widen(int32_t reg, int64_t width) {
    if (reg < 0 || reg >= REGISTERS) return wrong("no such register");
    int64_t& known = tape.width[reg];
    if (reg == REG_X || reg == REG_PICKED) {
      if (known && known != width) return wrong("the residual stream changes its width");
    }
    // Registers other than x may be narrower for one operation than for another: each has the widest as its stride.
    if (width > known) known = width;
    return PAL_OK;
  }

  // The widths that operations read: of what was written last.
  int64_t now[REGISTERS] = {};

  int written(int32_t reg, int64_t width) {
    if (int code = widen(reg, width)) return code;
    now[reg] = width;
    return PAL_OK;
  }

  int gemm(pal_op& op, int32_t target, int gate, bool added) {
    const pal_weight* w = (const pal_weight*)op.weight;
    Phase& before = rows();
    before.source = op.src;
    before.weight = w;
    rows_open = false;
    add({PHASE_GEMM, at, at + 1, picked, op.src, w, target, gate, added, false});
    int64_t bytes = (w->k / BLOCK + 1) * 64 + (w->k + 31) / 32 * 64;
    if (bytes > tape.form_bytes) tape.form_bytes = bytes;
    return PAL_OK;
  }

  int row(int32_t dst, int64_t width) {
    rows().end = at + 1;
    return written(dst, width);
  }

  int one(pal_op& op) {
    if (op.src < 0 || op.src >= REGISTERS || op.dst < 0 || op.dst >= REGISTERS) return wrong("no such register");
    op.src = place(op.src);
    op.dst = place(op.dst);
    const bool linear = op.code == PAL_LINEAR || op.code == PAL_LINEAR_ADD || op.code == PAL_LOGITS;
    const pal_weight* w = (const pal_weight*)op.weight;
    if (linear && !w) return wrong("no weight");
    if (linear && now[op.src] != w->k) return wrong("the weight's k is not the width of what it is to multiply");
    switch (op.code) {
      case PAL_EMBED:
        if (!op.weight || op.rows < 1 || op.columns < 1) return wrong("an embedding without rows");
        if (op.kind < 0 || op.kind >= PAL_FORMATS) return wrong("unknown format");
        if (op.columns % (op.kind < PAL_Q8_0 ? 1 : op.kind < PAL_Q4_K ? BLOCK : SUPER)) return wrong("no whole blocks");
        tape.vocab = op.rows;
        return row(op.dst, op.columns);
      case PAL_ANGLES:
        if (!op.weight || op.rot < 2 || op.rot % 2) return wrong("angles without frequencies");
        if (op.dst < REG_ANGLES) return wrong("angles go to registers from 8 on");
        return row(op.dst, op.rot);
      case PAL_NORM:
        if (!op.weight || op.columns != now[op.src]) return wrong("a norm of another width than its source");
        return row(op.dst, op.columns);
      case PAL_ADD:
        if (now[op.src] != now[op.dst]) return wrong("widths differ");
        op.columns = now[op.dst];
        return row(op.dst, op.columns);
      case PAL_GATE:
        if (op.kind < 0 || op.kind > 2) return wrong("unknown activation");
        if (now[op.src] % 2) return wrong("gate and up need an even width");
        op.columns = now[op.src] / 2;
        return row(op.dst, op.columns);
      case PAL_ROTATE_WRITE: {
        if (op.heads < 1 || op.kv_heads < 1 || op.head_dim < 1 || op.heads % op.kv_heads) return wrong("odd heads");
        if (op.rot < 0 || op.rot % 2 || op.rot > op.head_dim) return wrong("more to turn than a head has");
        if (op.src < REG_ANGLES || now[op.src] != op.rot) return wrong("no angles for this rotation");
        if (!op.weight != !op.weight2) return wrong("one of two head norms");
        int64_t width = (int64_t)(op.heads + 2 * op.kv_heads) * op.head_dim;
        if (now[REG_QKV] != width) return wrong("qkv has another width than its heads");
        if (tape.heads && (tape.heads != op.heads || tape.kv_heads != op.kv_heads || tape.head_dim != op.head_dim)) {
          return wrong("heads differ between layers");
        }
        tape.heads = op.heads;
        tape.kv_heads = op.kv_heads;
        tape.head_dim = op.head_dim;
        if (op.layer < 0) return wrong("no such layer");
        if (op.layer >= tape.layers) tape.layers = op.layer + 1;
        op.dst = REG_QKV;
        return row(REG_QKV, width);
      }
      case PAL_ATTEND:
        if (!tape.heads || op.layer < 0 || op.layer >= tape.layers) return wrong("attention before its keys");
        rows_open = false;
        add({PHASE_ATTEND, at, at + 1, picked, 0, nullptr, 0, -1, false, false});
        return written(REG_A, (int64_t)tape.heads * tape.head_dim);
      case PAL_LINEAR: {
        const bool gated = at + 1 < count && ops[at + 1].code == PAL_GATE && ops[at + 1].src == op.dst &&
                           op.src != REG_A && side_by_side(w);
        if (gated) {
          const int kind = ops[at + 1].kind;
          if (kind < 0 || kind > 2) return wrong("unknown activation");
          if (int code = gemm(op, REG_A, kind, false)) return code;
          at++;
          return written(REG_A, w->n / 2);
        }
        if (op.dst == op.src) return wrong("a linear cannot replace its source");
        if (int code = gemm(op, op.dst, -1, false)) return code;
        return written(op.dst, w->n);
      }
      case PAL_LINEAR_ADD:
        if (w->n != now[op.dst]) return wrong("the weight's columns are not the width of what it is added to");
        if (op.dst == op.src) return wrong("a linear cannot replace its source");
        return gemm(op, op.dst, -1, true);
      case PAL_PICK_ROWS: {
        if (picked) return wrong("rows are picked twice");
        rows_open = false;
        picked = true;
        op.columns = now[REG_X];
        op.src = REG_X;
        op.dst = REG_PICKED;
        return row(REG_PICKED, op.columns);
      }
      case PAL_LOGITS:
        if (!picked) return wrong("logits of all rows");
        tape.columns = op.columns = w->n;
        if (int code = gemm(op, -1, -1, false)) return code;
        if (op.softcap > 0.0f) rows().end = at + 1;
        return PAL_OK;
      default: return wrong("unknown operation");
    }
  }

  // Whether each thread may do the phase of rows at `i` for itself and go on with the next without waiting: it writes
  // nothing that others read, and they may still read what the next phase writes. mine: what threads have for themselves.
  bool own(int64_t i, const bool* mine) const {
    const Phase& phase = tape.phases[i];
    if (i + 1 == tape.count || tape.phases[i + 1].kind == PHASE_ROWS) return false;
    const Phase& next = tape.phases[i + 1];
    const int32_t target = next.kind == PHASE_ATTEND ? (int32_t)REG_A : next.target;
    bool written[REGISTERS] = {};
    auto shared = [&](int32_t reg) { return reg == target && !mine[reg] && !written[reg]; };
    for (int32_t o = phase.begin; o < phase.end; o++) {
      const pal_op& op = tape.ops[o];
      const bool turns = op.code == PAL_ROTATE_WRITE;
      if (op.code != PAL_NORM && op.code != PAL_GATE && op.code != PAL_PICK_ROWS && !turns) return false;
      if (op.dst == REG_X || op.dst >= REG_ANGLES || shared(op.src) || (turns && shared(op.dst))) return false;
      written[op.dst] = true;
    }
    return !phase.weight || !shared(phase.source);
  }

  // Marks the phases that threads may do for themselves; none where another phase would change what they then have.
  void find_own() {
    bool mine[REGISTERS] = {}, clash = false;
    for (int64_t i = 0; i < tape.count; i++) {
      Phase& phase = tape.phases[i];
      phase.own = phase.kind == PHASE_ROWS && own(i, mine);
      for (int32_t o = phase.begin; phase.kind == PHASE_ROWS && o < phase.end; o++) {
        clash |= !phase.own && mine[tape.ops[o].dst];
        mine[tape.ops[o].dst] |= phase.own;
      }
      if (phase.kind == PHASE_ATTEND) mine[REG_A] = false;
      if (phase.kind == PHASE_GEMM && phase.target >= 0) {
        clash |= phase.add && mine[phase.target];
        mine[phase.target] = false;
      }
    }
    tape.own = !clash;
  }

  int all() {
    for (at = 0; at < count; at++) {
      if (int code = one(tape.ops[at])) return code;
    }
    if (!count || ops[count - 1].code != PAL_LOGITS) return fail(PAL_BAD_ARGUMENT, "a tape ends with its logits");
    find_own();
    return PAL_OK;
  }
};

}  // namespace

extern "C" {

pal_tape* pal_tape_new(const pal_op* ops, int count) {
  pal_tape* tape = new (std::nothrow) pal_tape;
  bool room = tape && ops && count > 0 && tape->ops.room(count) && tape->phases.room(3 * (int64_t)count);
  if (room) tape->plan = plan_memory_new();
  if (!room || !tape->plan) {
    fail(ops && count > 0 ? PAL_NO_MEMORY : PAL_BAD_ARGUMENT, "no operations, or no memory for them");
    pal_tape_free(tape);
    return nullptr;
  }
  memcpy(tape->ops.data, ops, (size_t)count * sizeof(pal_op));
  Compiler compiler{*tape, tape->ops.data, count};
  if (compiler.all()) {
    pal_tape_free(tape);
    return nullptr;
  }
  return tape;
}

void pal_tape_free(pal_tape* tape) {
  if (!tape) return;
  plan_memory_free(tape->plan);
  delete tape;
}

void pal_tape_share(pal_tape* tape, int share) { tape->share = share != 0; }

int pal_run(pal_team* team, pal_tape* tape, const pal_kv* kv, const pal_batch* batch) {
  if (!team || !tape || !batch) return fail(PAL_BAD_ARGUMENT, "pal_run: a NULL pointer");
  if (int code = check_kv(kv)) return code;
  if (kv->layers < tape->layers || kv->kv_heads != tape->kv_heads || kv->head_dim != tape->head_dim) {
    return fail(PAL_BAD_ARGUMENT, "the cache has another shape than the model");
  }
  if (int code = check_segments(kv, batch)) return code;
  const int64_t rows = batch->rows, outputs = batch->outputs;
  if (!within(batch->tokens, rows, tape->vocab)) return fail(PAL_BAD_ARGUMENT, "a token that the embedding lacks");
  if (!within(batch->slots, rows, kv->slots)) {
    return fail(PAL_BAD_ARGUMENT, "a token goes to a slot that the cache lacks");
  }
  if (!within(batch->out_rows, outputs, rows)) {
    return fail(PAL_BAD_ARGUMENT, "logits are wanted of a row that is not there");
  }
  if (rows == 0) return PAL_OK;

  TapeRun run = {};
  const int threads = team_threads(team);
  run.plan = plan_attention(tape->plan, batch, tape->heads, tape->kv_heads, tape->head_dim, threads, tape->share);
  if (!run.plan) return no_memory("the plan of a step");
  int64_t floats = 0;
  for (int r = 0; r < REGISTERS; r++) floats += (tape->width[r] * (r == REG_PICKED ? outputs : rows) + 15) / 16 * 16;
  run.memory_stride = attend_memory(run.plan);
  if (!tape->registers.room(floats) || !tape->forms.room(tape->form_bytes * (rows > outputs ? rows : outputs)) ||
      !tape->memory.room((int64_t)run.memory_stride * threads) || !tape->counters.room(2 * threads)) {
    return no_memory("a step");
  }
  if (tape->own && threads > 1 && rows <= FEW_ROWS && outputs <= FEW_ROWS) {
    for (int r = 0; r < REG_ANGLES; r++) {
      run.own_register[r] = run.own_stride;
      if (r != REG_X) run.own_stride += (size_t)(tape->width[r] * FEW_ROWS + 15) / 16 * 64;
    }
    run.own_forms = run.own_stride;
    run.own_stride += (size_t)(tape->form_bytes * FEW_ROWS + 63) / 64 * 64;
    if (!tape->own_memory.room((int64_t)run.own_stride * threads)) return no_memory("a step");
    run.own = tape->own_memory.data;
  }
  float* at = tape->registers.data;
  for (int r = 0; r < REGISTERS; r++) {
    run.reg[r] = at;
    run.width[r] = tape->width[r];
    at += (tape->width[r] * (r == REG_PICKED ? outputs : rows) + 15) / 16 * 16;
  }
  memset(tape->counters.data, 0, 2 * (size_t)threads * sizeof(Counter));
  run.team = team;
  run.ops = tape->ops.data;
  run.phases = tape->phases.data;
  run.count = tape->count;
  run.kv = kv;
  run.batch = batch;
  run.forms = tape->forms.data;
  run.memory = tape->memory.data;
  run.counters = tape->counters.data;
  team_run(team, team_level(team)->run_tape, &run);
  return PAL_OK;
}

}  // extern "C"
