// A step: the phases of a tape, run by all threads of a team. Included inside the level's namespace.

static const int kv_size[] = {4, 2, 1};

static RotateCall rotate_call(const pal_op& op, const pal_kv& kv) {
  const int64_t layer = op.layer * kv.layer_stride, scales = layer / kv.head_dim;
  RotateCall c;
  c.heads = op.heads;
  c.kv_heads = op.kv_heads;
  c.head_dim = op.head_dim;
  c.half = op.rot / 2;
  c.q_norm = (const float*)op.weight;
  c.k_norm = (const float*)op.weight2;
  c.eps = op.eps;
  c.k = (char*)kv.k + layer * kv_size[kv.dtype];
  c.v = (char*)kv.v + layer * kv_size[kv.dtype];
  c.k_scale = kv.k_scale ? kv.k_scale + scales : nullptr;
  c.v_scale = kv.v_scale ? kv.v_scale + scales : nullptr;
  c.dtype = kv.dtype;
  c.slot_stride = kv.slot_stride;
  return c;
}

static AttendCall attend_call(const pal_op& op, const pal_kv& kv) {
  const int64_t layer = op.layer * kv.layer_stride, scales = layer / kv.head_dim;
  AttendCall c = {};
  c.scale = op.scale;
  c.softcap = op.softcap;
  c.window = op.window;
  c.k = (const char*)kv.k + layer * kv_size[kv.dtype];
  c.v = (const char*)kv.v + layer * kv_size[kv.dtype];
  c.k_scale = kv.k_scale ? kv.k_scale + scales : nullptr;
  c.v_scale = kv.v_scale ? kv.v_scale + scales : nullptr;
  c.dtype = kv.dtype;
  c.slot_stride = kv.slot_stride;
  return c;
}

static void embed_row(const pal_op& op, int64_t token, float* out) {
  dequantize(op.kind, (const char*)op.weight + (size_t)token * row_bytes(op.kind, op.columns), op.columns, out);
  if (op.scale != 1.0f) scale_row(out, op.scale, op.columns);
}

// `reg`: where the registers are read.
static void run_row(const TapeRun& run, float* const* reg, const pal_op& op, int64_t row, float* to) {
  const int64_t n = op.columns;
  const float* from = reg[op.src] + row * run.width[op.src];
  switch (op.code) {
    case PAL_EMBED: return embed_row(op, run.batch->tokens[row], to);
    case PAL_ANGLES: return angles_row(run.batch->positions[row], (const float*)op.weight, op.rot / 2, to);
    case PAL_NORM: return rms_norm_row(from, (const float*)op.weight, op.eps, n, to);
    case PAL_ADD: return add_row(to, from, n);
    case PAL_GATE: return gate_row(from, op.kind, n, to);
    case PAL_ROTATE_WRITE: return rotate_and_write_row(rotate_call(op, *run.kv), to, from, run.batch->slots[row]);
    case PAL_PICK_ROWS:
      memcpy(to, reg[op.src] + run.batch->out_rows[row] * run.width[op.src], (size_t)n * 4);
      return;
    case PAL_LOGITS: return softcap_row(run.batch->logits + row * op.columns, op.softcap, op.columns);
  }
}

// Rows go to whoever is free, some at a time.
static void run_rows(const TapeRun& run, float* const* reg, const Phase& phase, int64_t rows, Counter* counter,
                     int threads) {
  const int forms = phase.weight ? activation_forms(phase.weight) & ~FORM_FLOAT : 0;
  Rows to = {};
  int64_t k = 0;
  if (forms) {
    k = phase.weight->k;
    to = rows_in(run.forms, reg[phase.source], run.width[phase.source], rows, k, forms);
  }
  const int64_t at_once = rows / (4 * threads) + 1;
  for (;;) {
    int64_t row = take(counter) * at_once;
    if (row >= rows) return;
    const int64_t end = row + at_once < rows ? row + at_once : rows;
    for (; row < end; row++) {
      for (int32_t i = phase.begin; i < phase.end; i++) {
        const pal_op& op = run.ops[i];
        run_row(run, reg, op, row, run.reg[op.dst] + row * run.width[op.dst]);
      }
      if (forms) quantize_row(to.x + row * to.stride, k, forms, &to, row);
    }
  }
}

// All rows, by this thread for itself: into its own memory, where `reg` then points. Keys and values every thread
// writes to the same place: the same bytes, so that each may read them without waiting for another.
static void run_own(const TapeRun& run, float** reg, const Phase& phase, int64_t rows, char* own) {
  for (int32_t i = phase.begin; i < phase.end; i++) {
    const pal_op& op = run.ops[i];
    const int64_t width = run.width[op.dst];
    float* to = (float*)(own + run.own_register[op.dst]);
    if (op.code == PAL_ROTATE_WRITE) memcpy(to, reg[op.dst], (size_t)(rows * width) * 4);
    for (int64_t row = 0; row < rows; row++) run_row(run, reg, op, row, to + row * width);
    reg[op.dst] = to;
  }
  const int forms = phase.weight ? activation_forms(phase.weight) & ~FORM_FLOAT : 0;
  if (!forms) return;
  const int64_t k = phase.weight->k;
  const Rows to = rows_in(own + run.own_forms, reg[phase.source], run.width[phase.source], rows, k, forms);
  for (int64_t row = 0; row < rows; row++) quantize_row(to.x + row * to.stride, k, forms, &to, row);
}

// What a thread reads of the next matrix from phase `at` on, where few rows make a step wait for its weights.
static int next_read(const TapeRun& run, int64_t at, int thread, int threads, Soon* soon) {
  for (int64_t i = at; i < run.count && i < at + 4; i++) {
    const Phase& phase = run.phases[i];
    if (phase.kind != PHASE_GEMM) continue;
    const int64_t rows = phase.picked ? run.batch->outputs : run.batch->rows;
    return rows <= FEW_ROWS && rows > 0 ? first_read(phase.weight, rows, phase.gate >= 0, thread, threads, soon) : 0;
  }
  return 0;
}

static void run_tape(void* argument, int thread) {
  const TapeRun& run = *(const TapeRun*)argument;
  const int threads = team_threads(run.team);
  const pal_batch& batch = *run.batch;
  char* own = run.own ? run.own + thread * run.own_stride : nullptr;
  float* reg[REGISTERS];  // where this thread reads them
  memcpy(reg, run.reg, sizeof reg);
  void* forms = run.forms;
  bool behind = false;  // whether something was written that another thread reads next
  int64_t turn = 0;     // of phases that all do together
  for (int64_t i = 0; i < run.count; i++) {
    const Phase& phase = run.phases[i];
    const int64_t rows = phase.picked ? batch.outputs : batch.rows;
    if (rows == 0) continue;
    const bool nothing = phase.kind == PHASE_ROWS && phase.begin == phase.end &&
                         (!phase.weight || activation_forms(phase.weight) == FORM_FLOAT);
    if (nothing) continue;
    if (behind && threads > 1) {
      Soon soon[2];
      team_barrier(run.team, soon, next_read(run, i, thread, threads, soon));
    }
    behind = !(own && phase.own);
    if (!behind) {
      run_own(run, reg, phase, rows, own);
      forms = own + run.own_forms;
      continue;
    }
    // All have left the phase before, whose counters the next one takes.
    Counter* counters = run.counters + turn++ % 2 * threads;
    run.counters[turn % 2 * threads + thread].value = 0;
    const pal_op& op = run.ops[phase.begin];
    if (phase.kind == PHASE_ROWS) {
      run_rows(run, reg, phase, rows, counters, threads);
      forms = run.forms;
    } else if (phase.kind == PHASE_ATTEND) {
      AttendCall call = attend_call(op, *run.kv);
      call.q = reg[REG_QKV];
      call.q_stride = run.width[REG_QKV];
      call.out = reg[REG_A] = run.reg[REG_A];
      call.out_stride = run.width[REG_A];
      attend(call, *run.plan, counters, run.memory + thread * run.memory_stride);
    } else {
      const pal_weight* w = phase.weight;
      const Rows a = rows_in(forms, reg[phase.source], run.width[phase.source], rows, w->k,
                             activation_forms(w) & ~FORM_FLOAT);
      if (phase.target >= 0) reg[phase.target] = run.reg[phase.target];
      float* out = phase.target < 0 ? batch.logits : run.reg[phase.target];
      const int64_t stride = phase.target < 0 ? w->n : run.width[phase.target];
      const int epilogue = phase.gate >= 0 ? EPI_GATE + phase.gate : phase.add ? EPI_ADD : EPI_STORE;
      gemm(w, &a, rows, epilogue, out, stride, counters, thread, threads);
    }
  }
}

// ---- the same by themselves

static void norm_rows(const float* x, int64_t rows, int64_t n, const float* weight, float eps, float* out) {
  for (int64_t i = 0; i < rows; i++) rms_norm_row(x + i * n, weight, eps, n, out + i * n);
}

static void gate_rows(const float* x, int64_t rows, int64_t n, int kind, float* out) {
  for (int64_t i = 0; i < rows; i++) gate_row(x + 2 * i * n, kind, n, out + i * n);
}

static void embed_rows(const pal_op* op, const int64_t* tokens, int64_t rows, float* out) {
  for (int64_t i = 0; i < rows; i++) embed_row(*op, tokens[i], out + i * op->columns);
}

static void rotate_rows(const pal_op* op, const pal_kv* kv, const int64_t* positions, const int64_t* slots,
                        int64_t rows, const float* inv_freq, float* angles, float* qkv) {
  const RotateCall call = rotate_call(*op, *kv);
  const int64_t width = (int64_t)(op->heads + 2 * op->kv_heads) * op->head_dim;
  for (int64_t i = 0; i < rows; i++) {
    angles_row(positions[i], inv_freq, call.half, angles);
    rotate_and_write_row(call, qkv + i * width, angles, slots[i]);
  }
}

struct AttendJob {
  AttendCall call;
  const AttendPlan* plan;
  char* memory;
  size_t stride;
  Counter counter;
};

static void attend_phase(void* argument, int thread) {
  AttendJob* job = (AttendJob*)argument;
  attend(job->call, *job->plan, &job->counter, job->memory + thread * job->stride);
}

static void attend_once(pal_team* team, const pal_op* op, const pal_kv* kv, const AttendPlan* plan, const float* q,
                        float* out, char* memory, size_t stride) {
  AttendJob job = {attend_call(*op, *kv), plan, memory, stride, {0}};
  job.call.q = q;
  job.call.out = out;
  job.call.q_stride = job.call.out_stride = (int64_t)plan->heads * plan->head_dim;
  team_run(team, attend_phase, &job);
}
