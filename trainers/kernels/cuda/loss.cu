// Softmax cross entropy of logits (samples, classes); `lanes` threads of a block share a sample.
//
// `targets` are labels of `bytes` each, 4 or 8, or where that is 0 mixtures of labels, float (samples, classes).

#define LOGITS READ x, const void* targets, double smoothing, size bytes, size samples, size classes, size lanes

// A thread's sample and classes: every `lanes`-th from `first` on. A label outside the classes is not `known`.
struct Sample { size number, start, first, label; bool inside, known; };

INLINE Sample sample(int t, const void* targets, size bytes, size samples, size classes, size lanes) {
  size number = blockIdx.x * (THREADS / lanes) + t / lanes, label = 0;
  bool inside = number < samples;
  if (inside && bytes) label = bytes == 4 ? ((const int*)targets)[number] : ((const size*)targets)[number];
  return {number, number * classes, t % lanes, label, inside, label >= 0 && label < classes};
}

// q of a class: (1 - e) share + e / K, where e is the smoothing and K the number of classes.
INLINE A target(const Sample& s, size k, const void* targets, double smoothing, size bytes, size classes) {
  A share = bytes ? A(k == s.label) : (A)((const float*)targets)[s.start + k];
  return (A)(1 - smoothing) * share + (A)(smoothing / (double)classes);
}

// -sum of q log p for each sample; and in `kept`, (samples, 3), its largest logit, 1 / the sum of exp(logit - largest),
// and the sum of its q. NaN where the label is not known; nothing is read out of bounds then.
KERNEL cross_entropy(LOGITS, double* losses, A* kept) {
  SHARED A highs[THREADS];
  SHARED double sums[3 * THREADS];
  EACH_THREAD(t) {
    Sample s = sample(t, targets, bytes, samples, classes, lanes);
    A high = -INFINITY;
    if (s.inside) {
#pragma unroll 4
      for (size k = s.first; k < classes; k += lanes) {
        A value = wide(x[s.start + k]);
        if (value > high) high = value;
      }
    }
    highs[t] = high;
  }
  EACH_THREAD(t) {
    Sample s = sample(t, targets, bytes, samples, classes, lanes);
    double exponentials = 0, products = 0, total = 0;
    A high = -INFINITY;
    for (int other = t - s.first; other < t - s.first + lanes; ++other)
      if (highs[other] > high) high = highs[other];
    if (s.inside) {
#pragma unroll 4
      for (size k = s.first; k < classes; k += lanes) {
        A below = wide(x[s.start + k]) - high, q = target(s, k, targets, smoothing, bytes, classes);
        exponentials += exponential(below);
        if (q != 0) products += (double)q * below;  // where q is 0 the logit may be -infinity
        total += q;
      }
      if (s.first == 0) kept[3 * s.number] = high;
    }
    sums[t] = exponentials;
    sums[THREADS + t] = products;
    sums[2 * THREADS + t] = total;
  }
  EACH_THREAD(t) {
    Sample s = sample(t, targets, bytes, samples, classes, lanes);
    if (s.inside && s.first == 0) {
      double exponentials = 0, products = 0, total = 0;
      for (int other = t; other < t + lanes; ++other) {
        exponentials += sums[other];
        products += sums[THREADS + other];
        total += sums[2 * THREADS + other];
      }
      if (!s.known) exponentials = INFINITY - INFINITY;
      losses[s.number] = total * log(exponentials) - products;
      kept[3 * s.number + 1] = (A)(1 / exponentials);
      kept[3 * s.number + 2] = (A)total;
    }
  }
}

// The mean, by one block.
KERNEL mean_loss(const double* losses, A* mean, size samples) {
  SHARED double sums[THREADS];
  EACH_THREAD(t) {
    double sum = 0;
#pragma unroll 4
    for (size number = t; number < samples; number += THREADS) sum += losses[number];
    sums[t] = sum;
  }
  EACH_THREAD(t) {
    if (t == 0) {
      double total = 0;
      for (int other = 0; other < THREADS; ++other) total += sums[other];
      mean[0] = (A)(total / (double)samples);
    }
  }
}

// gx = gy / samples * (p * (sum of q) - q); gy is one number.
KERNEL cross_entropy_gradient(LOGITS, VECTOR kept, VECTOR gy, T* gx) {
  EACH_THREAD(t) {
    Sample s = sample(t, targets, bytes, samples, classes, lanes);
    if (s.inside) {
      A high = kept[3 * s.number], inverse = kept[3 * s.number + 1], total = kept[3 * s.number + 2];
      A times = gy[0] / (A)samples;
#pragma unroll 4
      for (size k = s.first; k < classes; k += lanes) {
        A p = exponential(wide(x[s.start + k]) - high) * inverse;
        narrow(times * (total * p - target(s, k, targets, smoothing, bytes, classes)), gx[s.start + k]);
      }
    }
  }
}
