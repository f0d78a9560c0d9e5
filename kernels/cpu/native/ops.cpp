// The C interface of single operations and of sampling: arguments are checked and memory is kept here, the work is the
// level's.
#include <string.h>

#include <new>

#include "checks.h"
#include "grow.h"
#include "level_table.h"
#include "palmette_cpu.h"
#include "plan.h"
#include "team.h"

using namespace pal;

struct pal_sampler {
  Grow<char> memory;
};

extern "C" {

int pal_rms_norm(pal_team* team, const float* x, int64_t rows, int64_t n, const float* weight, float eps, float* out) {
  if (!team || !x || !weight || !out) return fail(PAL_BAD_ARGUMENT, "pal_rms_norm: a NULL pointer");
  team_level(team)->norm(x, rows, n, weight, eps, out);
  return PAL_OK;
}

int pal_gate(pal_team* team, const float* x, int64_t rows, int64_t n, int kind, float* out) {
  if (!team || !x || !out) return fail(PAL_BAD_ARGUMENT, "pal_gate: a NULL pointer");
  if (kind < 0 || kind > 2) return fail(PAL_BAD_ARGUMENT, "unknown activation %d", kind);
  team_level(team)->gate(x, rows, n, kind, out);
  return PAL_OK;
}

int pal_embed(pal_team* team, const pal_op* op, const int64_t* tokens, int64_t rows, float* out) {
  if (!team || !op || !op->weight || !tokens || !out) return fail(PAL_BAD_ARGUMENT, "pal_embed: a NULL pointer");
  if (!within(tokens, rows, op->rows)) return fail(PAL_BAD_ARGUMENT, "a token that the embedding lacks");
  team_level(team)->embed(op, tokens, rows, out);
  return PAL_OK;
}

int pal_rope_write(pal_team* team, const pal_op* op, const pal_kv* kv, const float* inv_freq, const int64_t* positions,
                   const int64_t* slots, int64_t rows, float* qkv) {
  if (!team || !op || !inv_freq || !positions || !slots || !qkv) {
    return fail(PAL_BAD_ARGUMENT, "pal_rope_write: a NULL pointer");
  }
  if (int code = check_kv(kv)) return code;
  if (!within(slots, rows, kv->slots)) return fail(PAL_BAD_ARGUMENT, "a token goes to a slot that the cache lacks");
  Grow<float> angles;
  if (!angles.room(op->rot + 1)) return no_memory("angles");
  team_level(team)->rotate(op, kv, positions, slots, rows, inv_freq, angles.data, qkv);
  return PAL_OK;
}

int pal_attention(pal_team* team, const pal_op* op, const pal_kv* kv, const pal_batch* batch, const float* q, int share,
                  float* out) {
  if (!team || !op || !batch || !q || !out) return fail(PAL_BAD_ARGUMENT, "pal_attention: a NULL pointer");
  if (int code = check_kv(kv)) return code;
  if (op->heads < 1 || op->heads % kv->kv_heads) return fail(PAL_BAD_ARGUMENT, "odd heads");
  if (int code = check_segments(kv, batch)) return code;
  if (!batch->rows) return PAL_OK;
  PlanMemory* memory = plan_memory_new();
  if (!memory) return no_memory("a plan");
  const int threads = team_threads(team);
  const AttendPlan* plan =
      plan_attention(memory, batch, op->heads, (int)kv->kv_heads, (int)kv->head_dim, threads, share != 0);
  Grow<char> scratch;
  const size_t stride = plan ? attend_memory(plan) : 0;
  const bool room = plan && scratch.room((int64_t)stride * threads);
  if (room) team_level(team)->attend(team, op, kv, plan, q, out, scratch.data, stride);
  plan_memory_free(memory);
  return room ? PAL_OK : no_memory("attention");
}

pal_sampler* pal_sampler_new(void) { return new (std::nothrow) pal_sampler; }
void pal_sampler_free(pal_sampler* sampler) { delete sampler; }

}  // extern "C"

namespace {

struct SampleJob {
  pal_team* team;
  float* logits;
  int64_t rows, vocab, stride;
  const pal_sample_row* asked;
  pal_sample_out* out;
  char* memory;
  size_t memory_stride;
  Counter next;
};

void sample_phase(void* argument, int thread) {
  SampleJob* job = (SampleJob*)argument;
  char* memory = job->memory + thread * job->memory_stride;
  for (int64_t row; (row = take(&job->next)) < job->rows;) {
    float* logits = job->logits + row * job->stride;
    team_level(job->team)->sample(logits, job->vocab, job->asked + row, job->out + row, memory);
  }
}

}  // namespace

extern "C" int pal_sample(pal_team* team, pal_sampler* sampler, float* logits, int64_t rows, int64_t vocab,
                          int64_t stride, const pal_sample_row* asked, pal_sample_out* out) {
  if (!team || !sampler || (rows && (!logits || !asked || !out))) {
    return fail(PAL_BAD_ARGUMENT, "pal_sample: a NULL pointer");
  }
  if (vocab < 1 || vocab > INT32_MAX || stride < vocab) {
    return fail(PAL_BAD_ARGUMENT, "pal_sample: a row has no %lld logits", (long long)vocab);
  }
  for (int64_t i = 0; i < rows; i++) {
    const pal_sample_row& row = asked[i];
    if (!within(row.banned, row.banned_count, vocab) || !within(row.asked, row.asked_count, vocab)) {
      return fail(PAL_BAD_ARGUMENT, "row %lld names a token beyond the vocabulary", (long long)i);
    }
  }
  const pal_level_table* level = team_level(team);
  const size_t memory = (level->sample_memory(vocab) + 63) / 64 * 64;
  SampleJob job = {team, logits, rows, vocab, stride, asked, out, nullptr, memory, {0}};
  if (!sampler->memory.room((int64_t)job.memory_stride * team_threads(team))) return no_memory("sampling");
  job.memory = sampler->memory.data;
  if (rows) team_run(team, sample_phase, &job);
  return PAL_OK;
}
