// The activations of gated feed-forward blocks, one vector at a time. Included inside the level's namespace.

enum { ACT_SILU, ACT_GELU, ACT_GELU_TANH };

PAL_INLINE F exp(F a) { return exp2(a * 1.44269504f); }
PAL_INLINE F sigmoid(F a) { return 1.0f / (1.0f + exp(-a)); }
// 1 - 2 / (e^2a + 1); near 0, where that cancels, a polynomial.
PAL_INLINE F tanh(F a) {
  F square = a * a;
  F p = fma(square, set1(-1.7f / 31.5f), set1(2.0f / 15.0f));
  p = fma(square, p, set1(-1.0f / 3.0f));
  F small = fma(square * a, p, a);
  return select(square < 0.01f, small, 1.0f - 2.0f / (1.0f + exp(a + a)));
}
PAL_INLINE F silu(F a) { return a / (1.0f + exp(-a)); }
PAL_INLINE F gelu_tanh(F a) {
  F inner = a * fma(a * a, set1(0.7978845608f * 0.044715f), set1(0.7978845608f));
  return a * sigmoid(inner + inner);  // (1 + tanh(z)) / 2 = sigmoid(2 z)
}
// a * Phi(a), the upper tail by Abramowitz and Stegun 7.1.26 (absolute error 1.5e-7).
PAL_INLINE F gelu(F a) {
  F z = abs(a) * 0.70710678f;
  F t = 1.0f / fma(z, set1(0.3275911f), set1(1.0f));
  F p = set1(1.061405429f);
  p = fma(p, t, set1(-1.453152027f));
  p = fma(p, t, set1(1.421413741f));
  p = fma(p, t, set1(-0.284496736f));
  p = fma(p, t, set1(0.254829592f));
  F tail = 0.5f * p * t * exp(-z * z);
  return a * select(a < 0.0f, tail, 1.0f - tail);
}
PAL_INLINE F activate(F a, int kind) {
  return kind == ACT_SILU ? silu(a) : kind == ACT_GELU ? gelu(a) : gelu_tanh(a);
}
