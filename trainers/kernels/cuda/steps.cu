// Steps of an optimizer by the formulas of trainers/kernels/step_formulas.h. Arguments have for each tensor the
// addresses of its weights, gradient and states, its decay (below 0: none) and its trust ratio; states and ratios may
// be null.
#define STEP const size* chunks, const size* counts, const size* weights, const size* gradients, const size* states, \
  const size* others, const double* decays, double coupled, double shrink

struct Part { size start, stop; T *w, *one, *other; const T* g; A more, less; };

INLINE Part part_of(STEP) {
  Chunk chunk = chunk_of(chunks, counts);
  double decay = decays[chunk.tensor] > 0 ? decays[chunk.tensor] : 0;
  return {chunk.start, chunk.stop, (T*)weights[chunk.tensor], states ? (T*)states[chunk.tensor] : nullptr,
          others ? (T*)others[chunk.tensor] : nullptr, (const T*)gradients[chunk.tensor], (A)(coupled * decay),
          (A)(shrink * decay)};
}

#define PART part_of(chunks, counts, weights, gradients, states, others, decays, coupled, shrink)
#define EACH_PLACE(t, at, part) _Pragma("unroll 4") \
  for (size at = part.start + t; at < part.stop; at += THREADS)

INLINE A ratio_of(const double* ratios, const size* chunks) {
  return ratios ? (A)ratios[chunks[2 * blockIdx.x]] : A(1);
}

// Adds the sums of squares of a block's threads into parts, (chunks, 2).
INLINE void add_up(const double* sums, double* parts) {
  EACH_THREAD(t) {
    if (t < 2) {
      double total = 0;
      for (int other = 0; other < THREADS; ++other) total += sums[t * THREADS + other];
      parts[2 * blockIdx.x + t] = total;
    }
  }
}

#define MOMENTUM double momentum, double gradient_scale, double step_scale, double nesterov

// Sums of squares of weights and gradients.
KERNEL momentum_norms(STEP, double* parts, MOMENTUM) {
  SHARED double sums[2 * THREADS];
  EACH_THREAD(t) {
    Part part = PART;
    double of_w = 0, of_g = 0;
    EACH_PLACE(t, at, part) {
      double weight = wide(part.w[at]), slope = wide(part.g[at]);
      of_w += weight * weight;
      of_g += slope * slope;
    }
    sums[t] = of_w;
    sums[THREADS + t] = of_g;
  }
  add_up(sums, parts);
}

KERNEL momentum_step(STEP, const double* ratios, MOMENTUM) {
  EACH_THREAD(t) {
    Part part = PART;
    A ratio = ratio_of(ratios, chunks);
    EACH_PLACE(t, at, part) {
      moved now = momentum_formula(wide(part.w[at]), part.one ? wide(part.one[at]) : A(0), wide(part.g[at]), part.more,
                                   part.less, ratio, (A)momentum, (A)gradient_scale, (A)step_scale, nesterov != 0);
      if (part.one) narrow(now.one, part.one[at]);
      narrow(now.w, part.w[at]);
    }
  }
}

#define ADAM double beta1, double beta2, double eps, double rate, double m_scale, double v_scale, \
  double decay_in_direction
#define MOMENTS_AT(at) adam_moments(wide(part.w[at]), wide(part.one[at]), wide(part.other[at]), wide(part.g[at]), \
  part.more, (A)beta1, (A)beta2, (A)(1 - beta1), (A)(1 - beta2), (A)eps, (A)m_scale, (A)v_scale, decay_in_direction != 0)

// Sums of squares of weights and directions; does not change the states.
KERNEL adam_norms(STEP, double* parts, ADAM) {
  SHARED double sums[2 * THREADS];
  EACH_THREAD(t) {
    Part part = PART;
    double of_w = 0, of_r = 0;
    EACH_PLACE(t, at, part) {
      double weight = wide(part.w[at]), direction = MOMENTS_AT(at).direction;
      of_w += weight * weight;
      of_r += direction * direction;
    }
    sums[t] = of_w;
    sums[THREADS + t] = of_r;
  }
  add_up(sums, parts);
}

KERNEL adam_step(STEP, const double* ratios, ADAM) {
  EACH_THREAD(t) {
    Part part = PART;
    A by = (A)rate * ratio_of(ratios, chunks);
    EACH_PLACE(t, at, part) {
      moved now = adam_formula(wide(part.w[at]), MOMENTS_AT(at), part.less, by);
      narrow(now.one, part.one[at]);
      narrow(now.other, part.other[at]);
      narrow(now.w, part.w[at]);
    }
  }
}

KERNEL rmsprop_step(STEP, const double* ratios, double mu1, double mu2, double eps, double sgd, double rmsprop,
                    double rate) {
  EACH_THREAD(t) {
    Part part = PART;
    EACH_PLACE(t, at, part) {
      moved now = rmsprop_formula(wide(part.w[at]), wide(part.one[at]), wide(part.other[at]), wide(part.g[at]), part.more,
                                  part.less, (A)mu1, (A)mu2, (A)(1 - mu2), (A)eps, (A)sgd, (A)rmsprop, (A)rate);
      narrow(now.one, part.one[at]);
      narrow(now.other, part.other[at]);
      narrow(now.w, part.w[at]);
    }
  }
}

// The trust ratio of each tensor, from parts of its chunks, `firsts[tensor]` up to the next.
KERNEL ratios(const double* parts, const size* firsts, const double* decays, double* found, double coefficient,
              double decay_in_trust, double eps, double clip_rate, double low, double high, size tensors) {
  EACH_THREAD(t) {
    size tensor = (size)blockIdx.x * THREADS + t;
    if (tensor < tensors) {
      double of_w = 0, of_d = 0;
      for (size chunk = firsts[tensor]; chunk < firsts[tensor + 1]; ++chunk) {
        of_w += parts[2 * chunk];
        of_d += parts[2 * chunk + 1];
      }
      found[tensor] = trust_ratio(sqrt(of_w), sqrt(of_d), decays[tensor], coefficient, decay_in_trust, eps, clip_rate,
                                  low, high);
    }
  }
}
