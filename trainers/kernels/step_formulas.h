/* The formulas of optimizer steps for one value, the same text in C (cpu/steps.c) and CUDA (cuda/steps.cu). Names are
 * those of trainers/kernels/optimizer_steps.py; coupled, shrink: times the tensor's decay. The including file defines A,
 * the type in registers, INLINE and root(). */

struct moved { A w, one, other; }; /* weight and states */

/* v is 0 for a step that keeps none. */
INLINE struct moved momentum_formula(A w, A v, A g, A coupled, A shrink, A ratio, A momentum, A gradient_scale,
                                     A step_scale, int nesterov) {
  A d = gradient_scale * (ratio * (g + coupled * w)), speed = d + momentum * v;
  struct moved now = {w - shrink * w - step_scale * (nesterov ? momentum * speed + d : speed), speed, 0};
  return now;
}

struct moments { A mean, square, direction; };

/* rest1, rest2: 1 - beta. */
INLINE struct moments adam_moments(A w, A m, A v, A g, A coupled, A beta1, A beta2, A rest1, A rest2, A eps, A m_scale,
                                   A v_scale, int decay_in_direction) {
  A decayed = coupled * w, slope = g + (decay_in_direction ? 0 : decayed);
  A mean = beta1 * m + rest1 * slope;
  A square = beta2 * v + rest2 * (slope * slope);
  struct moments now = {mean, square, mean * m_scale / (root(square * v_scale) + eps) + (decay_in_direction ? decayed : 0)};
  return now;
}

/* rate: times the trust ratio. */
INLINE struct moved adam_formula(A w, struct moments now, A shrink, A rate) {
  struct moved then = {w - shrink * w - rate * now.direction, now.mean, now.square};
  return then;
}

/* rest: 1 - mu2. */
INLINE struct moved rmsprop_formula(A w, A m, A delta, A g, A coupled, A shrink, A mu1, A mu2, A rest, A eps, A sgd,
                                    A rmsprop, A rate) {
  A slope = g + coupled * w;
  A square = mu2 * m + rest * (slope * slope);
  A speed = mu1 * delta - (sgd + rmsprop / (root(square) + eps)) * slope;
  struct moved now = {w - shrink * w + rate * speed, square, speed};
  return now;
}

/* A tensor's trust ratio from its norms; 1 if it is exempt from decay (decay below 0), or a norm is 0. */
INLINE double trust_ratio(double of_w, double of_direction, double decay, double coefficient, double decay_in_trust,
                          double eps, double clip_rate, double low, double high) {
  double against = of_direction + decay_in_trust * decay * of_w + eps;
  double ratio = coefficient * (of_w < low ? low : of_w > high ? high : of_w) / (against == 0 ? 1.0 : against);
  if (clip_rate > 0 && ratio > clip_rate) ratio = clip_rate;
  if (clip_rate > 0) ratio /= clip_rate;
  return decay < 0 || of_w == 0 || of_direction == 0 ? 1.0 : ratio;
}
