// Of many tensors at once, wherever they lie: `chunks` has for each block the number of a tensor and the value that it
// begins at, the others are indexed by that number: addresses as integers, and counts of values.
enum { CHUNK = 1 << 14 };

struct Chunk { size tensor, start, stop; };

INLINE Chunk chunk_of(const size* chunks, const size* counts) {
  size tensor = chunks[2 * blockIdx.x], start = chunks[2 * blockIdx.x + 1], count = counts[tensor];
  return {tensor, start, start + CHUNK < count ? start + CHUNK : count};
}

// Sums of squares of weights and gradients of each chunk, (chunks, 2).
KERNEL squares(const size* chunks, const size* counts, const size* weights, const size* gradients, double* parts) {
  SHARED double sums[2 * THREADS];
  EACH_THREAD(t) {
    Chunk chunk = chunk_of(chunks, counts);
    const T* w = (const T*)weights[chunk.tensor];
    const T* g = (const T*)gradients[chunk.tensor];
    double of_w = 0, of_g = 0;
#pragma unroll 4
    for (size at = chunk.start + t; at < chunk.stop; at += THREADS) {
      double weight = wide(w[at]), slope = wide(g[at]);
      of_w += weight * weight;
      of_g += slope * slope;
    }
    sums[t] = of_w;
    sums[THREADS + t] = of_g;
  }
  EACH_THREAD(t) {
    if (t < 2) {
      double total = 0;
      for (int other = 0; other < THREADS; ++other) total += sums[t * THREADS + other];
      parts[2 * blockIdx.x + t] = total;
    }
  }
}

// The trust ratio of each tensor: chunks `firsts[tensor]` up to the next are its own. 1 where decay is below 0, which
// exempts it, and where a norm is 0.
KERNEL ratios(const double* parts, const size* firsts, const double* decays, double* found, double coefficient,
              double decay_in_trust, double eps, double clip_rate, size tensors) {
  EACH_THREAD(t) {
    size tensor = (size)blockIdx.x * THREADS + t;
    if (tensor < tensors) {
      double of_w = 0, of_g = 0;
      for (size chunk = firsts[tensor]; chunk < firsts[tensor + 1]; ++chunk) {
        of_w += parts[2 * chunk];
        of_g += parts[2 * chunk + 1];
      }
      of_w = sqrt(of_w);
      of_g = sqrt(of_g);
      double against = of_g + decay_in_trust * decays[tensor] * of_w + eps;
      double ratio = coefficient * of_w / (against == 0 ? 1.0 : against);
      if (clip_rate > 0 && ratio > clip_rate) ratio = clip_rate;
      if (clip_rate > 0) ratio /= clip_rate;
      found[tensor] = decays[tensor] < 0 || of_w == 0 || of_g == 0 ? 1.0 : ratio;
    }
  }
}

// d = ratio (g + coupled lambda w);  w <- w - shrink lambda w;  v <- m v + within d
// w <- w - beside v, or with nesterov w <- w - beside (m v + within d);  lambda: decay where it is above 0
KERNEL momentum_step(const size* chunks, const size* counts, const size* weights, const size* gradients,
                     const size* states, const double* decays, const double* ratios, double momentum, double within,
                     double beside, double coupled, double shrink, size nesterov) {
  EACH_THREAD(t) {
    Chunk chunk = chunk_of(chunks, counts);
    T* w = (T*)weights[chunk.tensor];
    T* v = (T*)states[chunk.tensor];
    const T* g = (const T*)gradients[chunk.tensor];
    A ratio = (A)(ratios ? ratios[chunk.tensor] : 1.0), decay = (A)(decays[chunk.tensor] > 0 ? decays[chunk.tensor] : 0);
    A keep = (A)momentum, in = (A)within, out = (A)beside, less = (A)shrink * decay, more = (A)coupled * decay;
#pragma unroll 4
    for (size at = chunk.start + t; at < chunk.stop; at += THREADS) {
      A weight = wide(w[at]), d = in * (ratio * (wide(g[at]) + more * weight)), speed = keep * wide(v[at]) + d;
      narrow(speed, v[at]);
      narrow(weight - less * weight - out * (nesterov ? keep * speed + d : speed), w[at]);
    }
  }
}

// 1 for each tensor with an infinity or a NaN; the others' places stay.
KERNEL not_finite(const size* chunks, const size* counts, const size* values, unsigned char* found) {
  EACH_THREAD(t) {
    Chunk chunk = chunk_of(chunks, counts);
    const T* x = (const T*)values[chunk.tensor];
    bool odd = false;
#pragma unroll 4
    for (size at = chunk.start + t; at < chunk.stop; at += THREADS) {
      A value = wide(x[at]);
      if (!(value - value == 0)) odd = true;
    }
    if (odd) found[chunk.tensor] = 1;
  }
}
