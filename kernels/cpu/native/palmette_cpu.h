// The C interface of palmette's kernels for processors. Plain pointers and sizes, no torch and no Python.
// Functions that can fail return 0 or an error code (or NULL); pal_error() has the message, for the calling thread.
#ifndef PALMETTE_CPU_H
#define PALMETTE_CPU_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PAL_API __attribute__((visibility("default")))

enum { PAL_OK = 0, PAL_BAD_ARGUMENT = 1, PAL_NO_MEMORY = 2 };

// ---- levels: the instruction sets that the library was built for

// The best level that this processor runs, or the one that the environment variable PALMETTE_CPU names; NULL if it
// names one that cannot run here.
PAL_API const char* pal_level(void);
// The levels that can run here, best last, separated by blanks.
PAL_API const char* pal_levels(void);
PAL_API const char* pal_error(void);

// ---- threads

// A team of `threads` threads, the caller of each function among them; the others sleep between calls. `level`: the
// instruction set of all that is done with this team and of the weights packed for it; NULL: pal_level().
typedef struct pal_team pal_team;
PAL_API pal_team* pal_team_new(int threads, const char* level);
PAL_API void pal_team_free(pal_team*);

// ---- weights

enum { PAL_F32, PAL_F16, PAL_BF16, PAL_Q8_0, PAL_Q4_0, PAL_Q4_1, PAL_Q4_K, PAL_Q6_K, PAL_FORMATS };

// `rows` output columns of a weight [n, k], one after the other as they lie in the file.
typedef struct {
  int32_t format;
  int32_t unused;
  int64_t rows;
  const void* data;
} pal_part;

// A weight [n, k], n the sum of the parts' rows, packed for the team's level; `data` may go away afterwards.
// k: any for F32, F16, BF16; a multiple of 32, or of 256 for Q4_K and Q6_K. bias: float [n] or NULL.
typedef struct pal_weight pal_weight;
PAL_API pal_weight* pal_weight_new(pal_team*, int64_t k, const pal_part* parts, int count, const float* bias);
PAL_API void pal_weight_free(pal_weight*);
PAL_API int64_t pal_weight_bytes(const pal_weight*);

// out[rows][n] = x[rows][k] @ weight^T + bias, or the same added to out. All float, rows one after the other.
PAL_API int pal_linear(pal_team*, const pal_weight*, const float* x, int64_t rows, float* out, int add);
// `count` elements of a format as float; a whole number of blocks.
PAL_API int pal_dequantize(int format, const void* data, int64_t count, float* out);
// For measuring: every thread of the team runs the bare inner loop of a format's matmul `rounds` times; returns how many
// multiply-adds each did, or -1.
PAL_API int64_t pal_ceiling(pal_team*, int format, int64_t rounds);

// ---- a step of a model

enum { PAL_KV_F32, PAL_KV_BF16, PAL_KV_I8 };

// The cache: element d of head h of slot s in layer l of K is k[l * layer_stride + s * slot_stride + h * head_dim + d].
// PAL_KV_I8: times k_scale[(l * layer_stride + s * slot_stride) / head_dim + h]; the others have no scales.
typedef struct {
  void *k, *v;
  float *k_scale, *v_scale;
  int32_t dtype, unused;
  int64_t layers, slots, layer_stride, slot_stride, kv_heads, head_dim;
} pal_kv;

// A step's tokens, as kernels/ragged.py describes them. rows: T, segments: S, outputs: R. logits: float [R][vocabulary].
typedef struct {
  int64_t rows, segments, outputs;
  const int64_t *tokens, *positions, *slots, *seg_start, *kv_start, *kv_slots, *out_rows;
  float* logits;
} pal_batch;

// Operations and what they use, in the words of kernels/tape.py. Registers: 0 x, 1 h, 2 qkv, 3 a, 4 g, from 8 on
// cos and sin. All data stays the caller's and must outlive the tape.
enum {
  PAL_EMBED,         // dst = rows of weight (kind: format, rows: vocabulary, columns) * scale
  PAL_ANGLES,        // dst = cos and sin of position * weight[rot / 2]
  PAL_NORM,          // dst = RMS norm of src * weight[columns]; eps
  PAL_LINEAR,        // dst = src @ weight (pal_weight)
  PAL_LINEAR_ADD,    // x += src @ weight (pal_weight)
  PAL_ADD,           // x += src
  PAL_ROTATE_WRITE,  // qkv: norm of the heads by weight, weight2 [head_dim] or NULL; turn by src; K and V to the cache
  PAL_ATTEND,        // a = attention of qkv's queries in `layer`; scale, window, softcap
  PAL_GATE,          // a = act(first half of g) * second half; kind: 0 silu, 1 gelu, 2 gelu_tanh
  PAL_PICK_ROWS,     // x = only the rows whose logits are wanted
  PAL_LOGITS,        // the batch's logits = src @ weight (pal_weight); softcap
  PAL_OPS
};
typedef struct {
  int32_t code, layer, src, dst, heads, kv_heads, head_dim, rot, window, kind;
  float eps, scale, softcap, unused;
  int64_t rows, columns;
  const void *weight, *weight2;
} pal_op;

typedef struct pal_tape pal_tape;
// PAL_BAD_ARGUMENT in words where registers, shapes or the order of operations do not fit.
PAL_API pal_tape* pal_tape_new(const pal_op* ops, int count);
PAL_API void pal_tape_free(pal_tape*);
// K and V of all tokens are in the cache afterwards, the logits in the batch. One call at a time on one tape.
PAL_API int pal_run(pal_team*, pal_tape*, const pal_kv*, const pal_batch*);
// Whether segments that begin with the same slots read them once (the default), or each for itself.
PAL_API void pal_tape_share(pal_tape*, int share);

// Operations by themselves, float in and out, rows one after the other.
PAL_API int pal_rms_norm(pal_team*, const float* x, int64_t rows, int64_t n, const float* weight, float eps, float* out);
PAL_API int pal_gate(pal_team*, const float* x, int64_t rows, int64_t n, int kind, float* out);  // x[rows][2 n]
PAL_API int pal_embed(pal_team*, const pal_op* op, const int64_t* tokens, int64_t rows, float* out);
// qkv[rows][heads + 2 kv_heads][head_dim] turned in place, K and V written. op: as PAL_ROTATE_WRITE.
PAL_API int pal_rope_write(pal_team*, const pal_op* op, const pal_kv*, const float* inv_freq, const int64_t* positions,
                           const int64_t* slots, int64_t rows, float* qkv);
// q, out[rows][heads][head_dim]; of the batch only the segments and their slots are read. op: as PAL_ATTEND, and heads.
PAL_API int pal_attention(pal_team*, const pal_op* op, const pal_kv*, const pal_batch*, const float* q, int share,
                          float* out);

// ---- from logits to tokens

// What runtime/sampler.py asks for a row. mask: bits of the allowed tokens, or NULL. top_k <= 0, top_p >= 1, min_p <= 0:
// off. temperature <= 0: the largest. uniform in [0, 1). top: -1 for no log-probabilities, else so many best tokens.
typedef struct {
  const int32_t* mask;
  const int64_t* banned;
  const int64_t* asked;  // tokens whose log-probabilities are wanted, too ...
  float* asked_values;   // ... and where these go
  int64_t* top_ids;      // [top]
  float* top_values;     // [top]
  double temperature, top_p, min_p, uniform;
  int64_t top_k;
  int32_t banned_count, asked_count, top, unused;
} pal_sample_row;
typedef struct {
  int64_t token;  // -1: all logits are -inf; -2: one is NaN or +inf
  float logprob;
  int32_t top_count;
} pal_sample_out;

typedef struct pal_sampler pal_sampler;
PAL_API pal_sampler* pal_sampler_new(void);
PAL_API void pal_sampler_free(pal_sampler*);
// logits[rows][vocab], `stride` apart; masked and banned ones become -inf.
PAL_API int pal_sample(pal_team*, pal_sampler*, float* logits, int64_t rows, int64_t vocab, int64_t stride,
                       const pal_sample_row* asked, pal_sample_out* out);

#ifdef __cplusplus
}
#endif
#endif
