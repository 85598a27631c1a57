// Steps of an optimizer; for formulas and names see trainers/kernels/optimizer_steps.py. Arguments have for each tensor the
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

// Sums of squares of weights and gradients.
KERNEL momentum_norms(STEP, double* parts, double momentum, double within, double beside, double nesterov) {
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

KERNEL momentum_step(STEP, const double* ratios, double momentum, double within, double beside, double nesterov) {
  EACH_THREAD(t) {
    Part part = PART;
    A ratio = ratio_of(ratios, chunks), keep = (A)momentum, in = (A)within, out = (A)beside;
    EACH_PLACE(t, at, part) {
      A weight = wide(part.w[at]), d = in * (ratio * (wide(part.g[at]) + part.more * weight)), speed = d;
      if (part.one) {
        speed += keep * wide(part.one[at]);
        narrow(speed, part.one[at]);
      }
      narrow(weight - part.less * weight - out * (nesterov ? keep * speed + d : speed), part.w[at]);
    }
  }
}

// What m, v and r of Adam and LAMB become at a place.
struct Moments { A mean, square, direction; };

#define ADAM double beta1, double beta2, double eps, double rate, double over_m, double over_v, double inside

INLINE Moments moments_at(const Part& part, size at, ADAM) {
  A decayed = part.more * wide(part.w[at]), g = wide(part.g[at]) + (inside ? 0 : decayed);
  A mean = (A)beta1 * wide(part.one[at]) + (A)(1 - beta1) * g;
  A square = (A)beta2 * wide(part.other[at]) + (A)(1 - beta2) * (g * g);
  A direction = mean * (A)over_m / (root(square * (A)over_v) + (A)eps) + (inside ? decayed : 0);
  return {mean, square, direction};
}

// Sums of squares of weights and directions; does not change the states.
KERNEL adam_norms(STEP, double* parts, ADAM) {
  SHARED double sums[2 * THREADS];
  EACH_THREAD(t) {
    Part part = PART;
    double of_w = 0, of_r = 0;
    EACH_PLACE(t, at, part) {
      double weight = wide(part.w[at]);
      double direction = moments_at(part, at, beta1, beta2, eps, rate, over_m, over_v, inside).direction;
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
      A weight = wide(part.w[at]);
      Moments found = moments_at(part, at, beta1, beta2, eps, rate, over_m, over_v, inside);
      narrow(found.mean, part.one[at]);
      narrow(found.square, part.other[at]);
      narrow(weight - part.less * weight - by * found.direction, part.w[at]);
    }
  }
}

KERNEL rmsprop_step(STEP, const double* ratios, double mu1, double mu2, double eps, double sgd, double rmsprop,
                    double rate) {
  EACH_THREAD(t) {
    Part part = PART;
    EACH_PLACE(t, at, part) {
      A weight = wide(part.w[at]), g = wide(part.g[at]) + part.more * weight;
      A square = (A)mu2 * wide(part.one[at]) + (A)(1 - mu2) * (g * g);
      A speed = (A)mu1 * wide(part.other[at]) - ((A)sgd + (A)rmsprop / (root(square) + (A)eps)) * g;
      narrow(square, part.one[at]);
      narrow(speed, part.other[at]);
      narrow(weight - part.less * weight + (A)rate * speed, part.w[at]);
    }
  }
}

// The trust ratio of each tensor, from parts of its chunks, `firsts[tensor]` up to the next. 1 where its decay is below
// 0 (exempt), and where a norm is 0.
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
      of_w = sqrt(of_w);
      of_d = sqrt(of_d);
      double against = of_d + decay_in_trust * decays[tensor] * of_w + eps;
      double phi = of_w < low ? low : of_w > high ? high : of_w;
      double ratio = coefficient * phi / (against == 0 ? 1.0 : against);
      if (clip_rate > 0 && ratio > clip_rate) ratio = clip_rate;
      if (clip_rate > 0) ratio /= clip_rate;
      found[tensor] = decays[tensor] < 0 || of_w == 0 || of_d == 0 ? 1.0 : ratio;
    }
  }
}
