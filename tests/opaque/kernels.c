/* Kernels of the opaque layers: what Transformer Engine computes on a GPU, on the CPU and through raw pointers.
 *
 * Each takes strided arrays of float32, bfloat16, float16 or float8, computes in float32 and writes its outputs. Nothing
 * here is known to PyTorch's dispatcher. `by_pointer.py` is the same in numpy, for a machine without a compiler.
 */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { FLOAT32, BFLOAT16, FLOAT16, E4M3, E5M2 };
enum { ASSIGN, ACCUMULATE };

typedef struct {
  void *data;
  int dtype;
  long size[4];   /* leading sizes are 1 */
  long stride[4]; /* in elements */
} array;

/* Numbers ------------------------------------------------------------------------------------------------------ */

static float from_bits(uint32_t bits) { float value; memcpy(&value, &bits, 4); return value; }
static uint32_t to_bits(float value) { uint32_t bits; memcpy(&bits, &value, 4); return bits; }

static uint16_t to_bfloat16(float value) {
  uint32_t bits = to_bits(value);
  if (isnan(value)) return (uint16_t)(bits >> 16 | 64);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A small float with `mantissa` bits after the point and an exponent bias; no sign. Subnormals included. */
static float unpack(unsigned code, int mantissa, int bias) {
  int exponent = (int)(code >> mantissa);
  float fraction = (float)(code & ((1u << mantissa) - 1)) / (float)(1 << mantissa);
  return exponent ? ldexpf(1 + fraction, exponent - bias) : ldexpf(fraction, 1 - bias);
}

static unsigned pack(float value, int mantissa, int bias) { /* rounds to even; may carry into the exponent */
  int exponent;
  frexpf(value, &exponent);
  exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
  float steps = rintf(ldexpf(value, mantissa - exponent));
  return (unsigned)steps + ((unsigned)(exponent + bias - 1) << mantissa);
}

static float from_float16(uint16_t half) {
  float sign = half & 0x8000 ? -1.0f : 1.0f;
  unsigned code = half & 0x7fff;
  if (code > 0x7c00) return NAN;
  return sign * (code == 0x7c00 ? INFINITY : unpack(code, 10, 15));
}

static uint16_t to_float16(float value) {
  uint16_t sign = signbit(value) ? 0x8000 : 0;
  float size = fabsf(value);
  if (isnan(value)) return 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;
  return sign | (size == 0 ? 0 : (uint16_t)pack(size, 10, 15));
}

static float from_float8(uint8_t byte, int dtype) {
  float sign = byte & 0x80 ? -1.0f : 1.0f;
  unsigned code = byte & 0x7f;
  if (dtype == E4M3) return code == 0x7f ? NAN : sign * unpack(code, 3, 7);
  if (code > 0x7c) return NAN;
  return sign * (code == 0x7c ? INFINITY : unpack(code, 2, 15));
}

static uint8_t to_float8(float value, int dtype) { /* saturates; NaN stays */
  uint8_t sign = signbit(value) ? 0x80 : 0;
  float largest = dtype == E4M3 ? 448.0f : 57344.0f, size = fminf(fabsf(value), largest);
  if (isnan(value)) return 0x7f;
  if (size == 0) return sign;
  return sign | (uint8_t)(dtype == E4M3 ? pack(size, 3, 7) : pack(size, 2, 15));
}

/* Arrays ------------------------------------------------------------------------------------------------------- */

static long count(array a) { return a.size[0] * a.size[1] * a.size[2] * a.size[3]; }

static float element(array a, long at) {
  switch (a.dtype) {
    case FLOAT32: return ((float *)a.data)[at];
    case BFLOAT16: return from_bits((uint32_t)((uint16_t *)a.data)[at] << 16);
    case FLOAT16: return from_float16(((uint16_t *)a.data)[at]);
    default: return from_float8(((uint8_t *)a.data)[at], a.dtype);
  }
}

static void put(array a, long at, float value) {
  switch (a.dtype) {
    case FLOAT32: ((float *)a.data)[at] = value; break;
    case BFLOAT16: ((uint16_t *)a.data)[at] = to_bfloat16(value); break;
    case FLOAT16: ((uint16_t *)a.data)[at] = to_float16(value); break;
    default: ((uint8_t *)a.data)[at] = to_float8(value, a.dtype);
  }
}

#define EACH(a, at)                                                                        \
  for (long i0 = 0; i0 < a.size[0]; i0++) for (long i1 = 0; i1 < a.size[1]; i1++)           \
  for (long i2 = 0; i2 < a.size[2]; i2++) for (long i3 = 0, at; i3 < a.size[3] &&           \
    ((at = i0 * a.stride[0] + i1 * a.stride[1] + i2 * a.stride[2] + i3 * a.stride[3]), 1); i3++)

static float *scratch(long n) { return calloc((size_t)(n ? n : 1), sizeof(float)); }

static float *load(array a) { /* contiguous float32; NULL where there is no array */
  if (!a.data) return NULL;
  float *values = scratch(count(a));
  long n = 0;
  EACH(a, at) values[n++] = element(a, at);
  return values;
}

static void store(array a, const float *values, int mode) {
  if (!a.data) return;
  long n = 0;
  EACH(a, at) { put(a, at, mode == ACCUMULATE ? element(a, at) + values[n] : values[n]); n++; }
}

/* out[m, n] += left[m, k] right[k, n] */
static void multiply(const float *left, const float *right, float *out, long m, long n, long k) {
  for (long i = 0; i < m; i++)
    for (long j = 0; j < k; j++) {
      float factor = left[i * k + j];
      for (long l = 0; l < n; l++) out[i * n + l] += factor * right[j * n + l];
    }
}

static float *transposed(const float *a, long rows, long columns) {
  float *t = scratch(rows * columns);
  for (long i = 0; i < rows; i++) for (long j = 0; j < columns; j++) t[j * rows + i] = a[i * columns + j];
  return t;
}

/* Linear ------------------------------------------------------------------------------------------------------- */

/* out = left right, where each operand may be given transposed: out[m, n], left[m, k] or [k, m], right[k, n] or [n, k].
   bias [n] is added to every row. */
void gemm(array left, array right, array bias, array out, long left_t, long right_t, long mode) {
  long m = out.size[2], n = out.size[3], k = left_t ? left.size[2] : left.size[3];
  float *a = load(left), *b = load(right), *c = load(bias), *sum = scratch(m * n), *other;
  if (left_t) { other = transposed(a, k, m); free(a); a = other; }
  if (right_t) { other = transposed(b, n, k); free(b); b = other; }
  multiply(a, b, sum, m, n, k);
  if (c) for (long i = 0; i < m * n; i++) sum[i] += c[i % n];
  store(out, sum, mode);
  free(a); free(b); free(c); free(sum);
}

/* out[n] = sum of the rows of x[m, n] */
void sum_rows(array x, array out, long mode) {
  long m = x.size[2], n = x.size[3];
  float *a = load(x), *sum = scratch(n);
  for (long i = 0; i < m; i++) for (long j = 0; j < n; j++) sum[j] += a[i * n + j];
  store(out, sum, mode);
  free(a); free(sum);
}

/* Norm: LayerNorm, or RMSNorm where is_rms; mean and rsigma are kept for the backward ----------------------------- */

void norm_forward(array x, array weight, array bias, array out, array mean, array rsigma, float eps, long is_rms) {
  long m = x.size[2], n = x.size[3];
  float *a = load(x), *w = load(weight), *b = load(bias), *mu = scratch(m), *rs = scratch(m);
  for (long i = 0; i < m; i++) {
    double sum = 0, squares = 0;
    float *row = a + i * n;
    if (!is_rms) for (long j = 0; j < n; j++) sum += row[j];
    mu[i] = (float)(sum / n);
    for (long j = 0; j < n; j++) squares += (double)(row[j] - mu[i]) * (row[j] - mu[i]);
    rs[i] = (float)(1 / sqrt(squares / n + eps));
    for (long j = 0; j < n; j++) row[j] = (row[j] - mu[i]) * rs[i] * w[j] + (b ? b[j] : 0);
  }
  store(out, a, ASSIGN); store(mean, mu, ASSIGN); store(rsigma, rs, ASSIGN);
  free(a); free(w); free(b); free(mu); free(rs);
}

void norm_backward(array grad, array x, array mean, array rsigma, array weight, array dx, array dw, array db,
                   long is_rms) {
  long m = x.size[2], n = x.size[3];
  float *g = load(grad), *a = load(x), *mu = load(mean), *rs = load(rsigma), *w = load(weight);
  float *of_weight = scratch(n), *of_bias = scratch(n);
  for (long i = 0; i < m; i++) {
    double along = 0, total = 0;
    float *row = a + i * n, *grow = g + i * n;
    for (long j = 0; j < n; j++) {
      row[j] = (row[j] - mu[i]) * rs[i];
      of_weight[j] += grow[j] * row[j];
      of_bias[j] += grow[j];
      grow[j] *= w[j];
      along += (double)grow[j] * row[j];
      total += grow[j];
    }
    float mean_along = (float)(along / n), mean_total = is_rms ? 0 : (float)(total / n);
    for (long j = 0; j < n; j++) grow[j] = rs[i] * (grow[j] - mean_total - row[j] * mean_along);
  }
  store(dx, g, ASSIGN); store(dw, of_weight, ASSIGN); store(db, of_bias, ASSIGN);
  free(g); free(a); free(mu); free(rs); free(w); free(of_weight); free(of_bias);
}

/* GELU, as torch.nn.functional.gelu ------------------------------------------------------------------------------- */

void gelu_forward(array x, array out) {
  float *a = load(x);
  for (long i = 0; i < count(x); i++) a[i] = 0.5f * a[i] * (1 + erff(a[i] * 0.70710678f));
  store(out, a, ASSIGN);
  free(a);
}

void gelu_backward(array grad, array x, array dx) {
  float *g = load(grad), *a = load(x);
  for (long i = 0; i < count(x); i++)
    g[i] *= 0.5f * (1 + erff(a[i] * 0.70710678f)) + a[i] * 0.39894228f * expf(-0.5f * a[i] * a[i]);
  store(dx, g, ASSIGN);
  free(g); free(a);
}

/* Attention: q, out [sq, b, h, d], k, v [sk, b, hk, d], lse [1, b, h, sq] ------------------------------------------- */

enum { NO_MASK, CAUSAL, ARBITRARY };

typedef struct {
  float scale, dropout;
  int mask_type;
  const int64_t *query_positions, *key_positions, *rng_state;
  const uint8_t *mask; /* [b, sq, sk], 1 where masked */
} attention;

static float kept(const attention *how, uint64_t at) { /* 0, or the factor of what dropout leaves */
  if (how->dropout <= 0) return 1;
  uint64_t hash = (uint64_t)how->rng_state[0] + 0x9e3779b97f4a7c15ull * (at + 1 + (uint64_t)how->rng_state[1]);
  hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9ull;
  hash = (hash ^ hash >> 27) * 0x94d049bb133111ebull;
  float uniform = (float)((hash ^ hash >> 31) >> 40) / 16777216.0f;
  return uniform < how->dropout ? 0 : 1 / (1 - how->dropout);
}

static int is_masked(const attention *how, long b, long i, long j, long sq, long sk) {
  if (how->mask_type == CAUSAL) return how->key_positions[j] > how->query_positions[i];
  return how->mask_type == ARBITRARY && how->mask[(b * sq + i) * sk + j];
}

static float *row(float *values, array a, long s, long b, long h) {
  return values + ((s * a.size[1] + b) * a.size[2] + h) * a.size[3];
}

static float dot(const float *a, const float *b, long n) {
  float sum = 0;
  for (long i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}

void attention_forward(array q, array k, array v, array out, array lse, attention how) {
  long sq = q.size[0], nb = q.size[1], nh = q.size[2], d = q.size[3], sk = k.size[0], dv = v.size[3];
  long group = nh / k.size[2];
  float *Q = load(q), *K = load(k), *V = load(v), *O = scratch(count(out)), *L = scratch(count(lse)), *p = scratch(sk);
  for (long b = 0; b < nb; b++) for (long h = 0; h < nh; h++) for (long i = 0; i < sq; i++) {
    float largest = -INFINITY, sum = 0, *o = row(O, out, i, b, h);
    for (long j = 0; j < sk; j++) {
      p[j] = is_masked(&how, b, i, j, sq, sk) ? -INFINITY
           : how.scale * dot(row(Q, q, i, b, h), row(K, k, j, b, h / group), d);
      if (p[j] > largest || isnan(p[j])) largest = p[j];
    }
    float *l = L + (b * nh + h) * sq + i;
    *l = -INFINITY; /* a row that sees nothing: zero output */
    if (largest == -INFINITY) continue;
    for (long j = 0; j < sk; j++) sum += p[j] = expf(p[j] - largest);
    *l = logf(sum) + largest;
    for (long j = 0; j < sk; j++) {
      float weight = p[j] / sum * kept(&how, (uint64_t)(((b * nh + h) * sq + i) * sk + j));
      if (p[j] == 0) continue; /* masked keys are not read */
      float *w = row(V, v, j, b, h / group);
      for (long e = 0; e < dv; e++) o[e] += weight * w[e];
    }
  }
  store(out, O, ASSIGN); store(lse, L, ASSIGN);
  free(Q); free(K); free(V); free(O); free(L); free(p);
}

void attention_backward(array grad, array q, array k, array v, array out, array lse, array dq, array dk, array dv,
                        attention how) {
  long sq = q.size[0], nb = q.size[1], nh = q.size[2], d = q.size[3], sk = k.size[0], e_max = v.size[3];
  long group = nh / k.size[2];
  float *Q = load(q), *K = load(k), *V = load(v), *O = load(out), *G = load(grad), *L = load(lse);
  float *DQ = scratch(count(q)), *DK = scratch(count(k)), *DV = scratch(count(v));
  for (long b = 0; b < nb; b++) for (long h = 0; h < nh; h++) for (long i = 0; i < sq; i++) {
    float l = L[(b * nh + h) * sq + i], *g = row(G, grad, i, b, h), *x = row(Q, q, i, b, h), *dx = row(DQ, q, i, b, h);
    if (l == -INFINITY) continue;
    float delta = dot(g, row(O, out, i, b, h), e_max);
    for (long j = 0; j < sk; j++) {
      if (is_masked(&how, b, i, j, sq, sk)) continue;
      float *y = row(K, k, j, b, h / group), *dy = row(DK, k, j, b, h / group);
      float *w = row(V, v, j, b, h / group), *dw = row(DV, v, j, b, h / group);
      float p = expf(how.scale * dot(x, y, d) - l), keep = kept(&how, (uint64_t)(((b * nh + h) * sq + i) * sk + j));
      float ds = p * (keep * dot(g, w, e_max) - delta) * how.scale;
      for (long e = 0; e < e_max; e++) dw[e] += p * keep * g[e];
      for (long e = 0; e < d; e++) { dx[e] += ds * y[e]; dy[e] += ds * x[e]; }
    }
  }
  store(dq, DQ, ASSIGN); store(dk, DK, ASSIGN); store(dv, DV, ASSIGN);
  free(Q); free(K); free(V); free(O); free(G); free(L); free(DQ); free(DK); free(DV);
}

/* Rope: x, out [s, b, h, d], angles [s, 1, 1, r]; what is past r passes; sign -1 turns back ---------------------------- */

void rope(array x, array angles, array out, long sign) {
  long s = x.size[0], per_token = x.size[1] * x.size[2], d = x.size[3], r = angles.size[3], half = r / 2;
  float *a = load(x), *angle = load(angles), *turned = scratch(count(x));
  for (long i = 0; i < s * per_token; i++) {
    const float *from = a + i * d, *theta = angle + i / per_token * r;
    float *to = turned + i * d;
    for (long j = 0; j < d; j++) {
      if (j >= r) { to[j] = from[j]; continue; }
      if (sign > 0) to[j] = from[j] * cosf(theta[j]) + (j < half ? -from[j + half] : from[j - half]) * sinf(theta[j]);
      else { /* the transpose */
        long other = j < half ? j + half : j - half;
        to[j] = from[j] * cosf(theta[j]) + (j < half ? from[other] : -from[other]) * sinf(theta[other]);
      }
    }
  }
  store(out, turned, ASSIGN);
  free(a); free(angle); free(turned);
}

/* Permutation: rows [m] of int32 say which row of x each row of out is ------------------------------------------------- */

/* out[i] = x[rows[i]], times the factor of i where there are factors */
void gather_rows(array x, const int32_t *rows, array factors, array out) {
  long m = out.size[2], n = out.size[3];
  float *a = load(x), *f = load(factors), *taken = scratch(m * n);
  for (long i = 0; i < m; i++) for (long j = 0; j < n; j++) taken[i * n + j] = a[rows[i] * n + j] * (f ? f[i] : 1);
  store(out, taken, ASSIGN);
  free(a); free(f); free(taken);
}

/* out[rows[i]] += x[i], times the factor of i where there are factors */
void scatter_rows(array x, const int32_t *rows, array factors, array out) {
  long m = x.size[2], n = x.size[3];
  float *a = load(x), *f = load(factors), *sum = scratch(count(out));
  for (long i = 0; i < m; i++) for (long j = 0; j < n; j++) sum[rows[i] * n + j] += a[i * n + j] * (f ? f[i] : 1);
  store(out, sum, ASSIGN);
  free(a); free(f); free(sum);
}

/* The rows of tokens sorted by expert, and the place of each pair in probs[tokens, experts]; returns how many. */
long sort_by_expert(const uint8_t *routing_map, long tokens, long experts, int32_t *rows, int32_t *pairs) {
  long n = 0;
  for (long e = 0; e < experts; e++) for (long t = 0; t < tokens; t++)
    if (routing_map[t * experts + e]) { rows[n] = (int32_t)t; pairs[n++] = (int32_t)(t * experts + e); }
  return n;
}

/* Delayed scaling -------------------------------------------------------------------------------------------------- */

/* data = x * scale in its float8 format; the largest |x| goes into amax where it is above what is there. */
void quantize(array x, array data, const float *scale, float *amax, float *scale_inv) {
  float *a = load(x), largest = 0;
  for (long i = 0; i < count(x); i++) { largest = fmaxf(largest, fabsf(a[i])); a[i] *= *scale; }
  if (largest > *amax) *amax = largest;
  *scale_inv = 1 / *scale;
  store(data, a, ASSIGN);
  free(a);
}

void dequantize(array data, const float *scale_inv, array out) {
  float *a = load(data);
  for (long i = 0; i < count(data); i++) a[i] *= *scale_inv;
  store(out, a, ASSIGN);
  free(a);
}

/* Write one value over the first elements of x from `first` on, in memory order: a kernel that has gone wrong. Where
   `value` is not given each element is written over with what it is. */
void spoil(array x, long first, long elements, float value, long is_given) {
  for (long i = first; i < first + elements; i++) put(x, i, is_given ? value : element(x, i));
}
