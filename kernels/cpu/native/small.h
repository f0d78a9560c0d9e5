// The operations between matrix products, one row at a time. Included inside the level's namespace.

// Sum of squares in one order that n fixes: four vectors of running sums, then the rest.
static float sum_of_squares(const float* x, int64_t n) {
  F a = {}, b = {}, c = {}, d = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    F x0 = load(x + i), x1 = load(x + i + W), x2 = load(x + i + 2 * W), x3 = load(x + i + 3 * W);
    a = fma(x0, x0, a);
    b = fma(x1, x1, b);
    c = fma(x2, x2, c);
    d = fma(x3, x3, d);
  }
  for (; i + W <= n; i += W) {
    F v = load(x + i);
    a = fma(v, v, a);
  }
  if (i < n) {
    F v = load_n(x + i, (int)(n - i));
    b = fma(v, v, b);
  }
  return reduce_add((a + b) + (c + d));
}

// out = x / sqrt(mean(x^2) + eps) * weight; `out` may be x.
static void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float factor = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, load(x + i) * factor * load(weight + i));
  for (; i < n; i++) out[i] = x[i] * factor * weight[i];
}

static void add_row(float* x, const float* other, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(x + i, load(x + i) + load(other + i));
  for (; i < n; i++) x[i] += other[i];
}

// x[2 n] holds gate and up side by side; out[n] = act(gate) * up.
static void gate_row(const float* x, int kind, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(out + i, activate(load(x + i), kind) * load(x + n + i));
  if (i < n) {
    int rest = (int)(n - i);
    store_n(out + i, activate(load_n(x + i, rest), kind) * load_n(x + n + i, rest), rest);
  }
}

// x = cap * tanh(x / cap)
static void softcap_row(float* x, float cap, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store(x + i, tanh(load(x + i) / cap) * cap);
  if (i < n) store_n(x + i, tanh(load_n(x + i, (int)(n - i)) / cap) * cap, (int)(n - i));
}

// cos[half], then sin[half], of position * inv_freq; the product in float, as the models were trained.
static void angles_row(int64_t position, const float* inv_freq, int64_t half, float* out) {
  for (int64_t i = 0; i < half; i++) {
    float angle = (float)position * inv_freq[i];
    out[i] = cosf(angle);
    out[half + i] = sinf(angle);
  }
}

// Turn one head: element i pairs with i + half, for the first 2 * half; the rest stay.
static void rope_head(float* x, const float* angles, int64_t half) {
  int64_t i = 0;
  for (; i + W <= half; i += W) {
    F a = load(x + i), b = load(x + half + i), c = load(angles + i), s = load(angles + half + i);
    store(x + i, fma(a, c, -(b * s)));
    store(x + half + i, fma(b, c, a * s));
  }
  if (i < half) {
    int rest = (int)(half - i);
    F a = load_n(x + i, rest), b = load_n(x + half + i, rest);
    F c = load_n(angles + i, rest), s = load_n(angles + half + i, rest);
    store_n(x + i, fma(a, c, -(b * s)), rest);
    store_n(x + half + i, fma(b, c, a * s), rest);
  }
}

// One head's key or value into the cache; int8 with a scale of its own.
static void write_head(const float* x, int64_t n, int32_t dtype, void* to, float* scale) {
  int64_t i = 0;
  switch (dtype) {
    case PAL_KV_F32: memcpy(to, x, (size_t)n * 4); return;
    case PAL_KV_BF16: {
      uint16_t* out = (uint16_t*)to;
      for (; i + W <= n; i += W) bf16_store(out + i, load(x + i));
      if (i < n) {
        uint16_t rest[W];
        bf16_store(rest, load_n(x + i, (int)(n - i)));
        memcpy(out + i, rest, (size_t)(n - i) * 2);
      }
      return;
    }
    default: {
      int8_t* out = (int8_t*)to;
      float most = 0.0f;
      for (i = 0; i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
      const float factor = most > 0.0f ? 127.0f / most : 0.0f;
      *scale = most / 127.0f;
      for (i = 0; i < n; i++) out[i] = (int8_t)lrintf(x[i] * factor);
    }
  }
}

struct RotateCall {
  int32_t heads, kv_heads;
  int64_t head_dim, half;
  const float *q_norm, *k_norm;  // [D] or NULL
  float eps;
  void *k, *v;  // of the layer
  float *k_scale, *v_scale;
  int32_t dtype;
  int64_t slot_stride;
};

// qkv[heads + 2 * kv_heads][D] of one token: norm the heads where the model does, turn q and k in place, put k and v
// into the slot.
static void rotate_and_write_row(const RotateCall& c, float* qkv, const float* angles, int64_t slot) {
  static const int size_of[] = {4, 2, 1};
  const int64_t d = c.head_dim;
  for (int32_t h = 0; h < c.heads + c.kv_heads; h++) {
    const float* norm = h < c.heads ? c.q_norm : c.k_norm;
    if (norm) rms_norm_row(qkv + h * d, norm, c.eps, d, qkv + h * d);
    rope_head(qkv + h * d, angles, c.half);
  }
  const float* k = qkv + c.heads * d;
  const float* v = k + c.kv_heads * d;
  for (int32_t h = 0; h < c.kv_heads; h++) {
    int64_t at = (slot * c.slot_stride + h * d) * size_of[c.dtype], scale = slot * c.kv_heads + h;
    write_head(k + h * d, d, c.dtype, (char*)c.k + at, c.k_scale ? c.k_scale + scale : nullptr);
    write_head(v + h * d, d, c.dtype, (char*)c.v + at, c.v_scale ? c.v_scale + scale : nullptr);
  }
}

static void scale_row(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i++) x[i] *= factor;
}
