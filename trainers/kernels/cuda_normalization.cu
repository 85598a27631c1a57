// Batch normalisation, and ReLU after it, of (groups, rows, channels): each group has statistics of its own.

// Where a thread works in (groups, rows, channels): V channels from `channel` on, of every `step`-th row. A block is
// `lanes` threads wide; blocks are x: channels, y: rows, z: groups.
struct Place { size group, channel, row, step; bool inside; };

INLINE Place place(int t, size channels, size lanes) {
  size lines = THREADS / lanes, channel = (blockIdx.x * lanes + t % lanes) * V;
  return {blockIdx.z, channel, blockIdx.y * lines + t / lanes, gridDim.y * lines, channel < channels};
}

INLINE size offset(const Place& p, size row, size rows, size channels) {
  return (p.group * rows + row) * channels + p.channel;
}

// V numbers of a vector (groups, channels).
struct Vector { A at[V]; };

INLINE Vector vector(const A* of, const Place& p, size channels) {
  Vector numbers;
  for (int v = 0; v < V; ++v) numbers.at[v] = p.inside ? of[p.group * channels + p.channel + v] : A(0);
  return numbers;
}

// The parts of a block's threads, two sums for each of V channels, added up to parts (groups, blocks, 2, channels).
INLINE void fold(const double* sums, double* parts, size channels, size lanes) {
  EACH_THREAD(t) {
    for (int number = t; number < 2 * V * lanes; number += THREADS) {
      size lane = number % lanes, which = number / lanes, channel = (blockIdx.x * lanes + lane) * V + which / 2;
      double total = 0;
      for (int other = lane; other < THREADS; other += lanes) total += sums[which * THREADS + other];
      if (channel < channels)
        parts[(((size)blockIdx.z * gridDim.y + blockIdx.y) * 2 + which % 2) * channels + channel] = total;
    }
  }
}

// Sums of x and of its square.
KERNEL moments(READ x, double* parts, size rows, size channels, size lanes) {
  SHARED double sums[2 * V * THREADS];
  EACH_THREAD(t) {
    Place p = place(t, channels, lanes);
    double sum[V] = {}, square[V] = {};
    if (p.inside) {
#pragma unroll 4
      for (size row = p.row; row < rows; row += p.step) {
        Values values = load(x, offset(p, row, rows, channels));
        for (int v = 0; v < V; ++v) {
          double value = wide(values.at[v]);
          sum[v] += value;
          square[v] += value * value;
        }
      }
    }
    for (int v = 0; v < V; ++v) {
      sums[2 * v * THREADS + t] = sum[v];
      sums[(2 * v + 1) * THREADS + t] = square[v];
    }
  }
  fold(sums, parts, channels, lanes);
}

// Parts (groups, count, 2, channels) added up to (2, groups, channels). With values > 0, of which they are the sums and
// the sums of squares: mean and biased variance. A block is 8 channels of one group.
KERNEL totals(const double* parts, double* total, size count, size channels, size groups, double values) {
  SHARED double sums[2 * THREADS];
  EACH_THREAD(t) {
    size channel = blockIdx.x * 8 + t % 8;
    double sum = 0, other = 0;
    if (channel < channels) {
#pragma unroll 4
      for (size number = t / 8; number < count; number += THREADS / 8) {
        const double* part = parts + ((size)blockIdx.y * count + number) * 2 * channels + channel;
        sum += part[0];
        other += part[channels];
      }
    }
    sums[t] = sum;
    sums[THREADS + t] = other;
  }
  EACH_THREAD(t) {
    size channel = blockIdx.x * 8 + t;
    if (t < 8 && channel < channels) {
      double sum = 0, other = 0;
      for (int line = t; line < THREADS; line += 8) {
        sum += sums[line];
        other += sums[THREADS + line];
      }
      if (values > 0) {
        sum /= values;
        other = other / values - sum * sum;
        if (other < 0) other = 0;
      }
      total[blockIdx.y * channels + channel] = sum;
      total[(groups + blockIdx.y) * channels + channel] = other;
    }
  }
}

// From mean and variance (groups, channels) and gamma and beta (channels): mean, 1 / deviation, gamma / deviation and
// beta, (4, groups, channels).
KERNEL scales(const double* mean, const double* variance, VECTOR gamma, VECTOR beta, A* found, double eps,
              size channels, size count) {
  EACH_THREAD(t) {
    size at = (size)blockIdx.x * THREADS + t, channel = at % channels;
    if (at < count) {
      A inverse = (A)(1 / sqrt(variance[at] + eps));
      found[at] = (A)mean[at];
      found[count + at] = inverse;
      found[2 * count + at] = gamma[channel] * inverse;
      found[3 * count + at] = beta[channel];
    }
  }
}

// From the totals of gradient_sums, of these rows and of those of the whole groups, `values` each: slope and shift of
// input_gradient, (2, groups, channels), and the gradients of gamma and beta, (2, channels).
KERNEL slopes(const double* sums, const double* whole, VECTOR scales, A* found, A* gradients, double values,
              size channels, size count) {
  EACH_THREAD(t) {
    size channel = (size)blockIdx.x * THREADS + t;
    if (channel < channels) {
      double ggamma = 0, gbeta = 0;
      for (size at = channel; at < count; at += channels) {
        double inverse = scales[count + at], scale = scales[2 * count + at];
        found[at] = (A)(scale * inverse * inverse * whole[count + at] / values);
        found[count + at] = (A)(scale * whole[at] / values);
        ggamma += sums[count + at] * inverse;
        gbeta += sums[at];
      }
      gradients[channel] = (A)ggamma;
      gradients[channels + channel] = (A)gbeta;
    }
  }
}

// Adds the statistics of a micro-batch's groups to those seen, (1 + 3 * channels): the sum of the weights, and those of
// weighted means, variances times a factor, and squared means.
KERNEL see(const double* mean, const double* variance, const double* weights, double* seen, double factor,
           size channels, size groups) {
  EACH_THREAD(t) {
    size channel = (size)blockIdx.x * THREADS + t;
    if (channel < channels) {
      double total = 0, means = 0, variances = 0, squares = 0;
      for (size group = 0; group < groups; ++group) {
        double about = mean[group * channels + channel], weight = weights[group];
        total += weight;
        means += weight * about;
        variances += weight * variance[group * channels + channel];
        squares += weight * about * about;
      }
      if (channel == 0) seen[0] += total;
      seen[1 + channel] += means;
      seen[1 + channels + channel] += factor * variances;
      seen[1 + 2 * channels + channel] += squares;
    }
  }
}

INLINE A normal(A x, A mean, A scale, A beta) { return fused(x - mean, scale, beta); }

// y = (x - mean) * scale + beta + plus, and of that what is above 0, where that is asked; plus may be null.
KERNEL normalized(READ x, READ plus, T* y, VECTOR mean, VECTOR scale, VECTOR beta, size relu, size rows, size channels,
                  size lanes) {
  EACH_THREAD(t) {
    Place p = place(t, channels, lanes);
    Vector about = vector(mean, p, channels), times = vector(scale, p, channels), by = vector(beta, p, channels);
    if (p.inside) {
#pragma unroll 2
      for (size row = p.row; row < rows; row += p.step) {
        size at = offset(p, row, rows, channels);
        Values values = load(x, at), more = plus ? load(plus, at) : values;
        for (int v = 0; v < V; ++v) {
          A found = normal(wide(values.at[v]), about.at[v], times.at[v], by.at[v]);
          if (plus) found += wide(more.at[v]);
          narrow(relu && found < 0 ? A(0) : found, values.at[v]);
        }
        store(y, at, values);
      }
    }
  }
}

// Sums of gy and of gy * (x - mean), of the gy that count: all of them; with relu, those where y > 0, and then the
// others are 0 in `counted`; without y, those where x was normalised to above 0.
KERNEL gradient_sums(READ gy, READ x, READ y, T* counted, VECTOR mean, VECTOR scale, VECTOR beta, double* parts,
                     size relu, size rows, size channels, size lanes) {
  SHARED double sums[2 * V * THREADS];
  EACH_THREAD(t) {
    Place p = place(t, channels, lanes);
    Vector about = vector(mean, p, channels), times = vector(scale, p, channels), by = vector(beta, p, channels);
    double sum[V] = {}, product[V] = {};
    if (p.inside) {
#pragma unroll 2
      for (size row = p.row; row < rows; row += p.step) {
        size at = offset(p, row, rows, channels);
        Values slopes = load(gy, at), values = load(x, at), outputs = y ? load(y, at) : values;
        for (int v = 0; v < V; ++v) {
          A value = wide(values.at[v]), slope = wide(slopes.at[v]);
          if (relu) {
            A out = y ? wide(outputs.at[v]) : normal(value, about.at[v], times.at[v], by.at[v]);
            if (!(out > 0)) slope = 0;
          }
          if (y) narrow(slope, slopes.at[v]);
          sum[v] += slope;
          product[v] += (double)(slope * (value - about.at[v]));
        }
        if (y) store(counted, at, slopes);
      }
    }
    for (int v = 0; v < V; ++v) {
      sums[2 * v * THREADS + t] = sum[v];
      sums[(2 * v + 1) * THREADS + t] = product[v];
    }
  }
  fold(sums, parts, channels, lanes);
}

// gx = gy * scale - ((x - mean) * slope + shift); with relu only the gy where x was normalised to above 0.
KERNEL input_gradient(READ gy, READ x, T* gx, VECTOR mean, VECTOR scale, VECTOR beta, VECTOR slope, VECTOR shift,
                      size relu, size rows, size channels, size lanes) {
  EACH_THREAD(t) {
    Place p = place(t, channels, lanes);
    Vector about = vector(mean, p, channels), times = vector(scale, p, channels), by = vector(beta, p, channels);
    Vector incline = vector(slope, p, channels), plus = vector(shift, p, channels);
    if (p.inside) {
#pragma unroll 2
      for (size row = p.row; row < rows; row += p.step) {
        size at = offset(p, row, rows, channels);
        Values slopes = load(gy, at), values = load(x, at);
        for (int v = 0; v < V; ++v) {
          A value = wide(values.at[v]), found = wide(slopes.at[v]);
          if (relu && !(normal(value, about.at[v], times.at[v], by.at[v]) > 0)) found = 0;
          narrow(found * times.at[v] - normal(value, about.at[v], incline.at[v], plus.at[v]), values.at[v]);
        }
        store(gx, at, values);
      }
    }
  }
}

